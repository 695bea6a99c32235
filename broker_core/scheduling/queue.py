"""The queue of schedules: a heap by time, an index by id, limits.

Ids that were delivered or cancelled are remembered for a while, so that a client that asks again
for one of them does not schedule it twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from lakemq.broker_core.api.errors import InvalidRequest, StagingFull
from lakemq.broker_core.api.scheduling.due_queue import DueQueue
from lakemq.broker_core.transactions.state import StagedRef

ID_MAX_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """What may be scheduled on one node."""

    batches_max: int
    bytes_max: int
    horizon_ms: int
    """How far ahead a time may be."""


@dataclass(slots=True, eq=False)
class PendingSchedule:
    """One batch that waits for its time."""

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
    """The append under way, for the caller alone."""

    @property
    def entry(self) -> StagedRef:
        """How the commit that delivers it names its batch."""
        return StagedRef(self.log_partition, self.offset, self.records)


class ScheduleQueue:
    """All schedules of this node that have not been delivered."""

    def __init__(self, limits: ScheduleLimits) -> None:
        self.size_bytes = 0
        self._limits = limits
        self._due: dict[int, DueQueue[PendingSchedule]] = {}
        """By partition of the topic of schedules; only what is durable."""
        self._waiting: dict[str, PendingSchedule] = {}
        self._done: dict[int, OrderedDict[str, int]] = {}
        """Partition of the topic of schedules -> id -> when it ended."""
        self._by_offset: dict[tuple[int, int], PendingSchedule] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, schedule_id: str, deliver_at_ms: int, size_bytes: int, now_ms: int) -> None:
        """Raises InvalidRequest, StagingFull."""
        limits = self._limits
        if not 1 <= len(schedule_id.encode()) <= ID_MAX_BYTES or not schedule_id.isprintable():
            raise InvalidRequest(
                f"schedule_id is {schedule_id[:100]!r}; it takes 1 to {ID_MAX_BYTES} printable "
                "characters"
            )
        if not 0 <= deliver_at_ms <= now_ms + limits.horizon_ms:
            raise InvalidRequest(
                f"deliver_at_ms is {deliver_at_ms}; it takes 0 to {now_ms + limits.horizon_ms} now"
            )
        if len(self._waiting) >= limits.batches_max:
            raise StagingFull(
                f"{len(self._waiting)} batches are scheduled; schedules.batches_max allows no more"
            )
        if self.size_bytes + size_bytes > limits.bytes_max:
            raise StagingFull(
                f"{self.size_bytes} bytes are scheduled; schedules.bytes_max is {limits.bytes_max}"
            )

    def find(self, schedule_id: str) -> PendingSchedule | None:
        """The pending schedule of that id; None: there is none."""
        return self._waiting.get(schedule_id)

    def ended_ms(self, schedule_id: str) -> int | None:
        """When it was delivered or cancelled, if that was not long ago."""
        found = (done.get(schedule_id) for done in self._done.values())
        return next((each for each in found if each is not None), None)

    def at(self, log_partition: int, offsets: Iterable[int]) -> list[PendingSchedule]:
        """The pending schedules whose records have these offsets."""
        found = [self._by_offset.get((log_partition, offset)) for offset in offsets]
        return [each for each in found if each is not None]

    def add(self, waiting: PendingSchedule) -> None:
        """The newest of an id counts."""
        self.remove(waiting.schedule_id)
        self.delete(waiting.schedule_id)
        self._waiting[waiting.schedule_id] = waiting
        self._by_offset[waiting.log_partition, waiting.offset] = waiting
        self.size_bytes += waiting.size_bytes
        # Not before: a delivery must not name a record that a crash could take back.
        if waiting.durable:
            self._push(waiting)

    def _push(self, waiting: PendingSchedule) -> None:
        self._queue(waiting.log_partition).add(waiting.deliver_at_ms, waiting)

    def _queue(self, log_partition: int) -> DueQueue[PendingSchedule]:
        if log_partition not in self._due:
            self._due[log_partition] = DueQueue(self._counts)
        return self._due[log_partition]

    def remove(self, schedule_id: str) -> PendingSchedule | None:
        """It is not pending any more; its heap entry is dropped when its time comes."""
        waiting = self._waiting.pop(schedule_id, None)
        if waiting is not None:
            self.size_bytes -= waiting.size_bytes
            self._by_offset.pop((waiting.log_partition, waiting.offset), None)
            self._queue(waiting.log_partition).prune(len(self._waiting))
        return waiting

    def end(self, schedule_id: str, log_partition: int, now_ms: int) -> None:
        """It was delivered or cancelled."""
        self.remove(schedule_id)
        done = self._done.setdefault(log_partition, OrderedDict())
        done[schedule_id] = now_ms
        done.move_to_end(schedule_id)

    def delete(self, schedule_id: str) -> None:
        """Nothing is remembered of it any more."""
        self.remove(schedule_id)
        for done in self._done.values():
            done.pop(schedule_id, None)

    def _counts(self, waiting: PendingSchedule) -> bool:
        """Whether its heap entry is still to be delivered."""
        return self._waiting.get(waiting.schedule_id) is waiting and not waiting.delivering

    def next_ms(self, log_partition: int) -> int | None:
        """When the next one of a partition is due; None: nothing is pending."""
        first = self._queue(log_partition).first()
        return None if first is None else first[0]

    def take_due(
        self, log_partition: int, now_ms: int, batches_max: int, bytes_max: int
    ) -> list[PendingSchedule]:
        """What is due, in the order of time, up to the limits but one at least. Each is given once,
        unless it is put back."""
        found: list[PendingSchedule] = []
        size = 0
        queue = self._queue(log_partition)
        while (first := queue.first()) is not None and first[0] <= now_ms:
            waiting = first[1]
            if found and (len(found) >= batches_max or size + waiting.size_bytes > bytes_max):
                break
            queue.take(now_ms)
            waiting.delivering = True
            found.append(waiting)
            size += waiting.size_bytes
        return found

    def put_back(self, some: Iterable[PendingSchedule]) -> None:
        """They could not be delivered now."""
        for waiting in some:
            waiting.delivering = False
            self._push(waiting)

    def became_durable(self, waiting: PendingSchedule) -> None:
        """It may be delivered from now on, also if its time has come meanwhile."""
        waiting.durable = True
        if self._counts(waiting):
            self._push(waiting)

    def expire_ended(self, log_partition: int, ended_before_ms: int) -> list[str]:
        """Forget the ids that ended before then; returns them."""
        done = self._done.get(log_partition, OrderedDict())
        found = []
        while done:
            schedule_id, ended_ms = next(iter(done.items()))
            # They are in the order in which they ended, so the rest is newer.
            if ended_ms >= ended_before_ms:
                break
            del done[schedule_id]
            found.append(schedule_id)
        return found

    def upcoming(self) -> Iterator[PendingSchedule]:
        """Everything that is pending, next first."""
        return iter(sorted(self._waiting.values(), key=lambda each: each.deliver_at_ms))
