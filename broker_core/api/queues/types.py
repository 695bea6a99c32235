"""Queues: values that protocols and coordinators exchange. Times are milliseconds."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

EARLIEST: Final = -1
LATEST: Final = -2
"""In place of offsets, where a queue is reset."""

GivenSettings = Mapping[str, str | int]
"""Those of `QueueSettings` that are asked for, by name."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Of all queues of a node."""

    queues_max: int = 1000
    user_share_max: float = 0.5
    """Share of `queues_max` that one user may take up."""
    consumers_max: int = 1000
    """Of one queue."""
    prefetch_max: int = 10_000
    """Records that one consumer may hold."""
    window_records_max: int = 10_000
    """Unfinished records of a partition that a queue keeps in memory."""
    delivery_max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a queue, the same for all its consumers."""

    lock_ms: int = 30_000
    """How long a delivered record stays locked for its consumer (ms)."""
    attempts_max: int = 0
    """Failed deliveries after which a record goes to `dead_letter`; 0: it never does."""
    dead_letter: str = ""
    """Topic of dead letters; empty: there is none."""
    order: str = "none"
    """`key`: of each key one record at a time, the oldest first; `none`: any record at any time."""
    backoff_ms: int = 1000
    """Pause before the second delivery of a record that was handed back; doubles each time (ms)."""
    backoff_ms_max: int = 60_000
    """Longest pause (ms)."""
    start: str = "earliest"
    """`earliest` or `latest`: where a new queue, or a partition that is new to it, begins."""

    def backoff_of(self, attempts: int) -> int:
        """Pause before the next delivery, after `attempts` of them (ms)."""
        # The shift is bounded because attempts need not be: the number would grow without end.
        return min(self.backoff_ms_max, self.backoff_ms << min(20, max(0, attempts - 1)))


class Settlement(enum.IntEnum):
    """How a consumer settles a record that it acquired (AcknowledgeType of KIP-932)."""

    ACCEPT = 0
    """Processed."""
    RETRY = 1
    """Failed: deliver it again after a backoff."""
    RELEASE = 2
    """Not processed: deliver it again, and do not count this attempt."""
    REJECT = 3
    """Never deliver it again: write it to the dead letters, or drop it if the queue has none."""
    EXTEND = 4
    """Still being processed: restart the lock's time."""


@dataclass(frozen=True, slots=True)
class QueueDelivery:
    """Records that a consumer has from now on, until it settles them or their lock ends."""

    partition: int
    batch: bytes
    """A record batch; offsets are those of the topic, and not all of a range need be there."""
    attempts: Sequence[int]
    """Of each record; 1: its first delivery."""
    lock_ms: int


@dataclass(frozen=True, slots=True)
class QueuePartition:
    """A partition of a queue, as operators see it."""

    partition: int
    start_offset: int
    """All records before it are done with."""
    high_watermark: int
    held: int
    """Records handed out and not settled."""
    backlog: int
    """Records not settled, handed out or not."""
    dead_letters: int
    """Records that wait to be written to the dead letters."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue, as operators see it."""

    group: str
    topic: str
    settings: QueueSettings
    consumers: int
    partitions: Sequence[QueuePartition]


class QueueLevels(NamedTuple):
    """Of a queue that has, or had, consumers here, for metrics."""

    group: str
    topic: str
    consumers: int
    held: int
    backlog: int


@dataclass(slots=True)
class QueueCounters:
    """Records since the broker started, of all queues."""

    delivered: int = 0
    settled: int = 0
    expired: int = 0
    dead_letters: int = 0
