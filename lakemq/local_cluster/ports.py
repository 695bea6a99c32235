"""Ports that stay free until a node takes them, again and again."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_RNG: Final = random.SystemRandom()
_FIRST: Final = 12_000
_SYSTEM_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports on which nothing listens, and that nothing gets by chance while their server is down.

    Of the ports that the system gives out itself, one may become the near end of another
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
            port = _RNG.randrange(min(_FIRST, end - 1000), end)
            try:
                held.append(socket.create_server((host, port)))
            except OSError:
                continue
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def free_port(host: str = "127.0.0.1") -> int:
    """One such port."""
    return free_ports(1, host)[0]
