"""Scheduled batches: values and the port of the scheduler. Times are milliseconds since the epoch
by the broker's wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lakemq.broker_core.api.types import Principal


class ScheduleAsked(NamedTuple):
    """One batch to append to its partition later, all its records at the same time."""

    schedule_id: str
    """The caller's choice, 1 to 64 bytes; makes requests idempotent."""
    topic: str
    partition: int
    batch: bytes
    deliver_at_ms: int
    keep_timestamps: bool = False
    """Otherwise the timestamps are moved so that the first record's is `deliver_at_ms`."""


class ScheduleAnswer(NamedTuple):
    """What became of a request to schedule a batch."""

    deliver_at_ms: int
    duplicate: bool
    """A batch was scheduled under this id before; nothing was done now."""


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """A batch that is not due yet."""

    schedule_id: str
    topic: str
    partition: int
    deliver_at_ms: int
    records: int
    size_bytes: int


@dataclass
class ScheduleCounters:
    """Counts since the start, and current levels, for metrics."""

    scheduled: int = 0
    delivered: int = 0
    cancelled: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    late_ms: int = 0
    """How late the newest delivery was."""


class Schedules(Protocol):
    """The scheduler. Errors are those of `lakemq.broker_core.api.errors`."""

    @property
    def counters(self) -> ScheduleCounters:
        """Read by metrics."""

    def now_ms(self) -> int:
        """The clock that `deliver_at_ms` is compared with."""

    async def schedule(self, asked: ScheduleAsked, *, principal: Principal) -> ScheduleAnswer:
        """Keep a batch until it is due; returns when it is on disk. A time in the past means now.

        Raises InvalidRequest (too far ahead, or the id), StagingFull (too much is scheduled),
        NotLeader, and what `Broker.append` raises.
        """

    async def cancel(self, schedule_id: str, *, principal: Principal) -> None:
        """Delete a scheduled batch. Raises UnknownSchedule: this node keeps none of that id, or it
        was delivered, or is being delivered now; Unavailable: that is not known yet."""

    def describe(
        self, topic: str, count_max: int, *, principal: Principal
    ) -> Sequence[ScheduledBatch]:
        """Scheduled batches, next first; empty `topic`: of all that the principal may describe."""

    def coordinators(self) -> Sequence[str]:
        """Nodes that keep schedules and deliver them, in order."""
