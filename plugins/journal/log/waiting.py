"""Appends that wait: for their flush, and behind it for the high watermark."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from lakemq.broker_core.api.ports import AppendDone
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.plugins.journal.log.writer import Stamped


class Waiting(NamedTuple):
    """An append that waits for its flush. No data: a duplicate waiting for its original."""

    stamped: Stamped
    done: AppendDone | None
    """None: answered already (acks memory), or given up."""
    acks: Acks = Acks.LEADER


class Unflushed:
    """What followers may copy of a leader's log before it is flushed here, in one leader epoch."""

    __slots__ = ("begin", "epoch", "sent_end", "wake")

    def __init__(self, epoch: int, begin: int, wake: Callable[[], None] | None) -> None:
        self.epoch = epoch
        self.begin = begin
        """Only from here on: what is before it was not appended in this epoch, or not told."""
        self.wake = wake
        """Called when there is more."""
        self.sent_end = 0
        """Followers may have everything below it."""


class Uncommitted:
    """Appends that are durable here and wait for the high watermark, by offset."""

    def __init__(self) -> None:
        # Answers, not batches: while too few replicas are in sync, nothing ends their number.
        self._entries: deque[tuple[AppendResult, AppendDone]] = deque()
        self._late: list[tuple[int, int, AppendResult, AppendDone]] = []
        """A heap of those with offsets below the last entry's, by offset and order of coming: a
        duplicate comes with the offsets of its original, behind newer ones."""
        self._late_count = 0
        # Here, for the log itself has as many attributes as CPython keeps fast.
        self.may_answer: Callable[[], bool] | None = None
        """Whether appends may be answered when their flush ends; None: always."""

    def add(self, result: AppendResult, done: AppendDone) -> None:
        """Keep an append until `take` passes it."""
        entries, last = self._entries, result.last_offset
        if entries and last < entries[-1][0].last_offset:
            self._late_count += 1
            heappush(self._late, (last, self._late_count, result, done))
        else:
            entries.append((result, done))

    def take(self, high_watermark: int) -> list[tuple[AppendResult, AppendDone]]:
        """Remove and return the appends below the high watermark."""
        entries, taken = self._entries, []
        while entries and entries[0][0].last_offset < high_watermark:
            taken.append(entries.popleft())
        late = self._late
        if late and late[0][0] < high_watermark:
            while late and late[0][0] < high_watermark:
                taken.append(heappop(late)[2:])
            taken.sort(key=_last_offset)  # stable: originals before their duplicates
        return taken

    def take_all(self) -> list[AppendDone]:
        """Remove all; whom to tell."""
        taken = [*(done for _, done in self._entries), *(each[3] for each in self._late)]
        self._entries.clear()
        self._late.clear()
        return taken


def _last_offset(waiting: tuple[AppendResult, AppendDone]) -> int:
    return waiting[0].last_offset


def placed(stamped: Stamped, acks: Acks) -> AppendResult:
    """The answer to an append that has reached `acks`."""
    header = stamped.header
    return AppendResult(
        Offset(header.base_offset), Offset(header.last_offset), acks, not stamped.data
    )
