"""Ports for servers that tests stop and start again on the same one."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_SYSTEM_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 12_000
_chance: Final = random.SystemRandom()


def lasting_port(host: str = "127.0.0.1") -> int:
    """A free port that nobody gets by chance while its server is down.

    Of the ports that the system gives out itself, one may become the near end of anybody's
    connection meanwhile; a client that tries again and again to reach it may even be connected to
    itself. Then the server can't come back. So this one is from below that range.
    """
    try:
        below = int(_SYSTEM_RANGE.read_text().split()[0])
    except OSError:  # another system: what IANA calls dynamic ports
        below = 49_152
    while True:
        port = _chance.randrange(min(_FIRST, below - 1), below)
        with socket.socket() as sock:
            try:
                sock.bind((host, port))
            except OSError:
                continue
            return port
