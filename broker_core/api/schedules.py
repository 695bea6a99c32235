"""Records that appear later: what a protocol plugin may ask of the scheduler. Pure values and one
port. Times are milliseconds since the epoch by the broker's wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lakemq.broker_core.api.types import Principal


class ScheduleAsked(NamedTuple):
    """One batch that shall be appended to its partition later. Its records are due together."""

    schedule_id: str
    """The caller's choice, 1 to 64 bytes: what is asked twice is done once, and it cancels."""
    topic: str
    partition: int
    batch: bytes
    deliver_at_ms: int
    keep_timestamps: bool = False
    """Else the first record's timestamp becomes the time it was due, and the others follow."""


class ScheduleAnswer(NamedTuple):
    deliver_at_ms: int
    duplicate: bool
    """This id was there already; nothing was done now."""


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What waits for its time."""

    schedule_id: str
    topic: str
    partition: int
    deliver_at_ms: int
    records: int
    size_bytes: int


@dataclass
class ScheduleCounters:
    """Plain numbers that metrics are read from."""

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
    def counters(self) -> ScheduleCounters: ...

    def now_ms(self) -> int:
        """The clock that times are compared with."""

    async def schedule(self, asked: ScheduleAsked, *, principal: Principal) -> ScheduleAnswer:
        """Keep a batch until its time; returns when it is on disk. A time that is over means now.

        InvalidRequest (too far ahead, the id), StagingFull (too much waits), and what
        `Broker.append` refuses.
        """

    async def cancel(self, schedule_id: str, *, principal: Principal) -> None:
        """UnknownSchedule: it is not there, or was delivered, or is being delivered now."""

    def describe(
        self, topic: str, count_max: int, *, principal: Principal
    ) -> Sequence[ScheduledBatch]:
        """What waits, next first; `topic` empty: of all topics that the principal may describe."""
