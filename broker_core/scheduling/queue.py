"""The queue of schedules: what waits, by partition of their topic, and limits.

Ids that were delivered or cancelled are remembered for a while, so that a client that asks again
for one of them does not schedule it twice.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
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

    key: str
    """Its id."""
    due_ms: int
    topic: str
    topic_id: str
    partition: int
    records: int
    size_bytes: int
    log_partition: int
    offset: int
    written: Any = None
    """The append under way, for the caller alone."""

    @property
    def entry(self) -> StagedRef:
        """How the commit that delivers it names its batch."""
        return StagedRef(self.log_partition, self.offset, self.records)


class ScheduleQueue:
    """All schedules of this node that have not been delivered."""

    def __init__(self, limits: ScheduleLimits) -> None:
        self.limits = limits
        self._queues: defaultdict[int, DueQueue[PendingSchedule]] = defaultdict(DueQueue)
        """By partition of the topic of schedules."""
        self._done: dict[int, OrderedDict[str, int]] = {}
        """Partition of the topic of schedules -> id -> when it ended."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __getitem__(self, log_partition: int) -> DueQueue[PendingSchedule]:
        """What waits in one partition of the topic of schedules. Only what is durable is scheduled:
        a delivery must not name a record that a crash could take back."""
        return self._queues[log_partition]

    @property
    def size_bytes(self) -> int:
        """Of all that wait."""
        return sum(each.size_bytes for each in self._queues.values())

    def check(self, schedule_id: str, deliver_at_ms: int, size_bytes: int, now_ms: int) -> None:
        """Raises InvalidRequest, StagingFull."""
        limits = self.limits
        if not 1 <= len(schedule_id.encode()) <= ID_MAX_BYTES or not schedule_id.isprintable():
            raise InvalidRequest(
                f"schedule_id is {schedule_id[:100]!r}; it takes 1 to {ID_MAX_BYTES} printable "
                "characters"
            )
        if not 0 <= deliver_at_ms <= now_ms + limits.horizon_ms:
            raise InvalidRequest(
                f"deliver_at_ms is {deliver_at_ms}; it takes 0 to {now_ms + limits.horizon_ms} now"
            )
        if len(self) >= limits.batches_max:
            raise StagingFull(
                f"{len(self)} batches are scheduled; schedules.batches_max allows no more"
            )
        if self.size_bytes + size_bytes > limits.bytes_max:
            raise StagingFull(
                f"{self.size_bytes} bytes are scheduled; schedules.bytes_max is {limits.bytes_max}"
            )

    def find(self, schedule_id: str) -> PendingSchedule | None:
        """The pending schedule of that id; None: there is none."""
        found = (each.get(schedule_id) for each in self._queues.values())
        return next((each for each in found if each is not None), None)

    def ended_ms(self, schedule_id: str) -> int | None:
        """When it was delivered or cancelled, if that was not long ago."""
        found = (done.get(schedule_id) for done in self._done.values())
        return next((each for each in found if each is not None), None)

    def add(self, waiting: PendingSchedule) -> None:
        """The newest of an id counts, of those in one partition. It is not scheduled yet."""
        self[waiting.log_partition].add(waiting)
        self._done.get(waiting.log_partition, OrderedDict()).pop(waiting.key, None)

    def end(self, schedule_id: str, log_partition: int, now_ms: int) -> None:
        """It was delivered or cancelled."""
        self[log_partition].remove(schedule_id)
        done = self._done.setdefault(log_partition, OrderedDict())
        done[schedule_id] = now_ms
        done.move_to_end(schedule_id)

    def drop(self, log_partition: int) -> None:
        """Forget all of one partition of the topic of schedules."""
        self._queues.pop(log_partition, None)
        self._done.pop(log_partition, None)

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

    def upcoming(self) -> list[PendingSchedule]:
        """Everything that is scheduled, next first."""
        found = (
            each
            for queue in self._queues.values()
            for each in queue
            if queue.is_scheduled(each.key)
        )
        return sorted(found, key=lambda each: each.due_ms)
