"""Ports that stay free until a test's own server takes them, again and again."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_DICE: Final = random.SystemRandom()
_FIRST: Final = 12_000
_SYSTEM_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody listens on, nor gets by chance while a test's server is down.

    Of the ports that the system gives out itself, one may become the near end of anybody's
    connection meanwhile; a client that tries again and again to reach it may even be connected to
    itself. So these are from below that range.
    """
    try:
        end = int(_SYSTEM_RANGE.read_text().split()[0])
    except OSError:  # another system: what IANA calls dynamic ports
        end = 49_152
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            port = _DICE.randrange(min(_FIRST, end - 1000), end)
            try:
                held.append(socket.create_server((host, port)))
            except OSError:
                continue
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def free_port(host: str = "127.0.0.1") -> int:
    return free_ports(1, host)[0]
