"""What the partition logs of one storage engine share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

from lakemq.plugins.journal.log.flusher import Flusher

# Nothing is refused for lack of space before the disk was looked at.
ROOM_UNKNOWN: Final = 1 << 62


@dataclass
class Counters:
    """Plain numbers that metrics are read from."""

    appended_records: int = 0
    appended_bytes: int = 0
    flushes: int = 0
    failed_flushes: int = 0
    duplicates: int = 0
    refused_appends: int = 0
    tail_reads: int = 0
    disk_reads: int = 0
    read_bytes: int = 0
    scrubbed_bytes: int = 0
    damages_found: int = 0
    repaired_segments: int = 0

    def found_damage(self) -> None:
        """Readers of several threads may lose a count to each other; damage is rare."""
        self.damages_found += 1


@dataclass
class LogContext:
    """What the logs of one storage engine share."""

    loop: asyncio.AbstractEventLoop
    flusher: Flusher
    readers: Executor
    remote_readers: Executor
    now_ms: Callable[[], int]
    unflushed_max_bytes: int
    unflushed_total_max_bytes: int
    checkpoint_interval_bytes: int
    producers_max: int
    counters: Counters = field(default_factory=Counters)
    unflushed_bytes: int = 0
    """Of all logs together."""
    room_bytes: int = ROOM_UNKNOWN
    """Free space above the reserve when it was last looked at, less what was appended since: so
    the reserve is kept however fast appends come."""

    @property
    def space_short(self) -> bool:
        """Free space is below the reserve: appends are refused."""
        return self.room_bytes <= 0
