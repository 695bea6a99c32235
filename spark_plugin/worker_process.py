"""What a task of ours sets in the Python worker of Spark that runs it, and the next ones too."""

from __future__ import annotations

import gc
import os
import socket
from contextlib import suppress
from typing import Any, Final

_SOCKETS: Final = "/proc/self/fd"
_TCP: Final = (socket.AF_INET, socket.AF_INET6)
_frozen: list[bool] = []
"""Not empty once it is done."""


class SentToWorker:
    """An object that Spark sends to its Python workers with each task.

    Spark sends a task in two small pieces. Nagle's algorithm holds the second one back until the
    first is acknowledged, which Linux delays by 40 ms while it has nothing to send (RFC 1122,
    4.2.3.2). The first piece is whole when this object is made of it.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_received()


def acknowledge_received() -> None:
    """Have all TCP sockets of this process acknowledge what they have received. Does nothing where
    there is no TCP_QUICKACK."""
    if not hasattr(socket, "TCP_QUICKACK") or not os.path.isdir(_SOCKETS):
        return
    for name in os.listdir(_SOCKETS):
        # One may be closed meanwhile, by gRPC's threads.
        with suppress(OSError):
            if os.readlink(f"{_SOCKETS}/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as each:
                    if each.family in _TCP and each.type == socket.SOCK_STREAM:
                        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def freeze_imports() -> None:
    """In a task: keep what its process has imported out of garbage collections, once.

    Spark's worker collects garbage after each task, which takes tens of ms for the modules that a
    task of ours imports, and the worker's next task waits for it.
    """
    from pyspark import TaskContext

    if not _frozen and TaskContext.get() is not None:
        _frozen.append(True)
        gc.freeze()
