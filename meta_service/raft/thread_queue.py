"""How other threads and members reach the Raft thread: posted calls and sockets, between two ticks.

Stands where pysyncobj has its socket poller, so that waiting for work and being woken are one.
"""

from __future__ import annotations

import collections
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final

_CALLS_MAX: Final = 4096
"""Calls run before the next tick, so that heartbeats are never late."""

_ONE: Final = (1).to_bytes(8, sys.byteorder)
"""What an event counts up by (eventfd(2)); in a pipe any bytes will do."""
_READ_BYTES: Final = 1024


def _event() -> tuple[int, int]:
    """Descriptors to read and to write; both never block. A pipe where there is no eventfd."""
    if hasattr(os, "eventfd"):
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return event, event
    ends = os.pipe()
    for each in ends:
        os.set_blocking(each, False)
    return ends


class ThreadQueue:
    """Calls for one thread, in order. `post` is safe from any thread."""

    def __init__(self) -> None:
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._event, self._signal = _event()
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)
        self._handlers: dict[int, Callable[[], None]] = {self._event: self._take_event}
        self._open = threading.Lock()
        """Held while the descriptor is written or closed: its number may be reused at once."""
        self._woken = False
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether the next tick has work at once, so that nothing is waited for."""

    def __len__(self) -> int:
        return len(self._calls)

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the thread of `poll`, behind the calls posted before."""
        self._calls.append(call)
        # Read without the lock: the worst that can happen is one write too many. An append comes
        # first, so a reader that resets `_woken` afterwards sees the call.
        if not self._woken:
            with self._open:
                if self._event >= 0:
                    self._woken = True
                    os.write(self._signal, _ONE)

    def watch(self, descriptor: int, events: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever the descriptor is ready for any of `events` (poll(2)), or has
        failed. In the thread of `poll`, as `unwatch`."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Before the descriptor is closed."""
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)

    def poll(self, timeout_s: float) -> None:
        """Wait up to that long for calls and descriptors, then run calls and handlers."""
        self._woken = False  # before looking: a call posted from here on writes the event
        if self._calls or self.is_busy():
            timeout_s = 0.0
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            handler = self._handlers.get(descriptor)
            if handler is not None:  # else one before it has ended the watch
                handler()
        # The length is taken once: calls that are posted meanwhile wait for the next tick.
        for _ in range(min(len(self._calls), _CALLS_MAX)):
            self._calls.popleft()()

    def _take_event(self) -> None:
        os.read(self._event, _READ_BYTES)

    def close(self) -> None:
        """Calls posted from here on are never run."""
        with self._open:
            os.close(self._event)
            if self._signal != self._event:
                os.close(self._signal)
            self._event = self._signal = -1
