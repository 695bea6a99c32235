"""Goal: a member that takes nothing costs the others no memory: what is too much is dropped."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from lakemq.meta_service.raft.transport import _QUEUE_MESSAGES_MAX, _Link


def test_what_a_slow_member_does_not_take_is_dropped_and_counted() -> None:
    stuck = threading.Event()
    wire: Any = SimpleNamespace(dropped=0, channel_to=lambda *_: stuck.wait())
    link = _Link(wire, "n2", "127.0.0.1:1")
    link.send(b"not connected: the engine repeats it")
    assert link._queue.empty()
    link._connected = True
    for _ in range(_QUEUE_MESSAGES_MAX + 3):
        link.send(b"x")
    assert (wire.dropped, link._queue.qsize()) == (3, _QUEUE_MESSAGES_MAX)
