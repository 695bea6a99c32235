"""From the Raft thread to the event loop: what was applied and what was answered, in order."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Any

Call = tuple[Callable[..., None], tuple[Any, ...]]


class LoopQueue:
    """Calls made in the Raft thread run in the event loop, in order, many per wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: collections.deque[Call] = collections.deque()
        self._scheduled = False

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Raft thread."""
        self._calls.append((function, arguments))
        # `drain` resets it before it takes calls, so one that is appended in between is either
        # taken or wakes the loop again.
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self.drain)
            except RuntimeError:
                self._scheduled = False  # the loop is closed: nothing is left to call

    def drain(self) -> None:
        """Event loop."""
        self._scheduled = False  # before looking: a call made from here on wakes the loop again
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)
