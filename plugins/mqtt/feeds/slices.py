"""Work on many records, cut into turns of the event loop. Edge: asks the clock.

A stored batch has up to 250,000 records, and one record may go to many subscribers: clients must be
able to connect meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

TURN_S: Final = 0.05
_WAITING_MAX_BYTES: Final = 64 * 1024 * 1024
"""With more waiting, turns are not ended early: who appends is slowed down by a busy loop sooner
than that memory fills up."""


class Slices:
    """Runs pieces of work one after the other, in order."""

    def __init__(
        self, after: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._after = after
        self._clock = clock
        self._waiting: deque[tuple[Iterator[None], int]] = deque()
        self._bytes = 0
        self._due: asyncio.Handle | None = None

    def add(self, work: Iterator[None], size_bytes: int) -> None:
        """`work` yields wherever it may be interrupted; `size_bytes`: what it keeps in memory."""
        self._waiting.append((work, size_bytes))
        self._bytes += size_bytes

    @property
    def waiting(self) -> bool:
        """Whether there is work that has not been done."""
        return bool(self._waiting)

    def begin(self) -> None:
        """Do what was added, at once as far as a turn goes; unless a turn is due anyway."""
        if self._due is None:
            self._turn()

    def _turn(self) -> None:
        self._due = None
        end = self._clock() + TURN_S
        while self._waiting:
            work, size_bytes = self._waiting[0]
            for _ in work:
                if self._clock() >= end and self._bytes <= _WAITING_MAX_BYTES:
                    self._due = asyncio.get_running_loop().call_soon(self._turn)
                    self._after()
                    return
            self._waiting.popleft()
            self._bytes -= size_bytes
        self._after()

    def stop(self) -> None:
        """Give up what has not been done."""
        self._waiting.clear()
        self._bytes = 0
        if self._due is not None:
            self._due.cancel()
            self._due = None
