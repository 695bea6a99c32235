"""Ports that stay free until a node takes them, again and again."""

from __future__ import annotations

import atexit
import random
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_RNG: Final = random.SystemRandom()
_FIRST: Final = 12_000
_SYSTEM_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BLOCK: Final = 128
_CLAIMS_MAX: Final = 1000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports on which nothing listens, and that nothing gets by chance while their server is down.

    Of the ports that the system gives out itself, one may become the near end of another
    connection meanwhile; a client that tries again and again to reach it may even be connected to
    itself. So these are from below that range. No two calls give the same one, not even in two
    processes that run at once. Raises OSError when there is none left.
    """
    with _lock:
        return [_next_port(host) for _ in range(count)]


def free_port(host: str = "127.0.0.1") -> int:
    """One such port."""
    return free_ports(1, host)[0]


def _next_port(host: str) -> int:
    left = _left.setdefault(host, [])
    while True:
        if not left:
            first = _claim(host)
            left += range(first + 1, first + _BLOCK)
        port = left.pop()
        with suppress(OSError):
            socket.create_server((host, port)).close()
            return port


def _claim(host: str) -> int:
    """A block of ports that is this process' until its end, which holds the first one."""
    try:
        end = int(_SYSTEM_RANGE.read_text().split()[0])
    except OSError:  # another system: what IANA calls dynamic ports
        end = 49_152
    begin = min(_FIRST, end - 1000)
    for _ in range(_CLAIMS_MAX):
        first = begin + _BLOCK * _RNG.randrange((end - begin) // _BLOCK)
        claim = socket.socket()  # no SO_REUSEADDR: a second claim must fail
        try:
            claim.bind((host, first))
        except OSError:
            claim.close()
            continue
        atexit.register(claim.close)
        return first
    raise OSError(f"no {_BLOCK} ports of {host} between {begin} and {end} are left to claim")


_lock: Final = threading.Lock()
_left: Final[dict[str, list[int]]] = {}
"""Host -> ports of its newest block that were not given yet."""
