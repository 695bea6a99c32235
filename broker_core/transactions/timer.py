"""What waits for its time: a heap by time, an index by id, limits. Pure; `now_ms` comes in.

Ids that were delivered or cancelled are remembered for a while, so that asking again for one of
them does not do it again.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from broker_core.api.errors import InvalidRequest, StagingFull
from broker_core.transactions.state import Entry

ID_BYTES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class TimerLimits:
    batches_max: int
    bytes_max: int
    horizon_ms: int
    """How far ahead a time may be."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One batch that waits."""

    schedule_id: str
    deliver_at_ms: int
    topic: str
    topic_id: str
    partition: int
    records: int
    size_bytes: int
    log_partition: int
    offset: int
    durable: bool = False
    delivering: bool = False
    written: Any = None
    """The caller's own; not looked at here."""

    @property
    def entry(self) -> Entry:
        return Entry(self.log_partition, self.offset, self.records)


class Timer:
    """All that waits on this node."""

    def __init__(self, limits: TimerLimits) -> None:
        self.size_bytes = 0
        self._limits = limits
        self._heaps: dict[int, list[tuple[int, int, Waiting]]] = {}
        """By partition of the topic of delayed batches; only what is durable."""
        self._tie = count()
        self._waiting: dict[str, Waiting] = {}
        self._done: dict[int, OrderedDict[str, int]] = {}
        """Partition of the topic of delayed batches -> id -> when it ended."""
        self._places: dict[tuple[int, int], Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, schedule_id: str, deliver_at_ms: int, size_bytes: int, now_ms: int) -> None:
        """Raises InvalidRequest, StagingFull."""
        limits = self._limits
        if not 1 <= len(schedule_id.encode()) <= ID_BYTES_MAX or not schedule_id.isprintable():
            raise InvalidRequest(
                f"schedule_id is {schedule_id[:100]!r}; it takes 1 to {ID_BYTES_MAX} printable "
                "characters"
            )
        if not 0 <= deliver_at_ms <= now_ms + limits.horizon_ms:
            raise InvalidRequest(
                f"deliver_at_ms is {deliver_at_ms}; it takes 0 to {now_ms + limits.horizon_ms} now"
            )
        if len(self._waiting) >= limits.batches_max:
            raise StagingFull(f"{len(self._waiting)} batches wait for their time, the most")
        if self.size_bytes + size_bytes > limits.bytes_max:
            raise StagingFull(
                f"{self.size_bytes} bytes wait for their time; {limits.bytes_max} is the most"
            )

    def find(self, schedule_id: str) -> Waiting | None:
        return self._waiting.get(schedule_id)

    def ended_ms(self, schedule_id: str) -> int | None:
        """When it was delivered or cancelled, if that was not long ago."""
        found = (done.get(schedule_id) for done in self._done.values())
        return next((each for each in found if each is not None), None)

    def at(self, log_partition: int, offsets: Iterable[int]) -> list[Waiting]:
        """What waits and lies at these offsets."""
        found = [self._places.get((log_partition, offset)) for offset in offsets]
        return [each for each in found if each is not None]

    def add(self, waiting: Waiting) -> None:
        """The newest of an id counts."""
        self.remove(waiting.schedule_id)
        self.forget(waiting.schedule_id)
        self._waiting[waiting.schedule_id] = waiting
        self._places[waiting.log_partition, waiting.offset] = waiting
        self.size_bytes += waiting.size_bytes
        if waiting.durable:
            self._push(waiting)

    def _push(self, waiting: Waiting) -> None:
        heap = self._heaps.setdefault(waiting.log_partition, [])
        heapq.heappush(heap, (waiting.deliver_at_ms, next(self._tie), waiting))

    def remove(self, schedule_id: str) -> Waiting | None:
        """It does not wait any more; its place in the heap goes when its time comes."""
        waiting = self._waiting.pop(schedule_id, None)
        if waiting is not None:
            self.size_bytes -= waiting.size_bytes
            self._places.pop((waiting.log_partition, waiting.offset), None)
            self._tidy(waiting.log_partition)
        return waiting

    def _tidy(self, log_partition: int) -> None:
        """Take what does not count out of the heap, when that is most of it."""
        heap = self._heaps.get(log_partition, [])
        if len(heap) > 2 * len(self._waiting) + 64:
            kept = [each for each in heap if self._counts(each[2])]
            heapq.heapify(kept)
            self._heaps[log_partition] = kept

    def end(self, schedule_id: str, log_partition: int, now_ms: int) -> None:
        """It was delivered or cancelled."""
        self.remove(schedule_id)
        done = self._done.setdefault(log_partition, OrderedDict())
        done[schedule_id] = now_ms
        done.move_to_end(schedule_id)

    def forget(self, schedule_id: str) -> None:
        """Nothing is known of it any more."""
        self.remove(schedule_id)
        for done in self._done.values():
            done.pop(schedule_id, None)

    def _counts(self, waiting: Waiting) -> bool:
        """Whether its place in the heap stands for something."""
        return self._waiting.get(waiting.schedule_id) is waiting and not waiting.delivering

    def next_ms(self, log_partition: int) -> int | None:
        """When the next one of a partition is due; None: nothing waits."""
        heap = self._heaps.get(log_partition, [])
        while heap and not self._counts(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take_due(
        self, log_partition: int, now_ms: int, batches_max: int, bytes_max: int
    ) -> list[Waiting]:
        """What is due, in the order of time, as much as goes at a time. Each is given once, unless
        it is put back."""
        found: list[Waiting] = []
        size = 0
        while (due_ms := self.next_ms(log_partition)) is not None and due_ms <= now_ms:
            waiting = self._heaps[log_partition][0][2]
            if found and (len(found) >= batches_max or size + waiting.size_bytes > bytes_max):
                break
            heapq.heappop(self._heaps[log_partition])
            waiting.delivering = True
            found.append(waiting)
            size += waiting.size_bytes
        return found

    def put_back(self, some: Iterable[Waiting]) -> None:
        """They could not be delivered now."""
        for waiting in some:
            waiting.delivering = False
            self._push(waiting)

    def became_durable(self, waiting: Waiting) -> None:
        """From now on it may be delivered, even if its time came meanwhile."""
        waiting.durable = True
        if self._counts(waiting):
            self._push(waiting)

    def forgotten(self, log_partition: int, ended_before_ms: int) -> list[str]:
        """Ids that ended before then, and need not be remembered longer."""
        done = self._done.get(log_partition, OrderedDict())
        found = []
        while done:
            schedule_id, ended_ms = next(iter(done.items()))
            if ended_ms >= ended_before_ms:
                break
            del done[schedule_id]
            found.append(schedule_id)
        return found

    def upcoming(self) -> Iterator[Waiting]:
        """Everything that waits, next first."""
        return iter(sorted(self._waiting.values(), key=lambda each: each.deliver_at_ms))
