"""One partition over a simulated disk, with flushes that happen when the test says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from lakemq.broker_core.api.records.batch import NOT_IDEMPOTENT, ProducerStamp, encode, read_header
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    FetchResult,
    Offset,
    TopicConfig,
)
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.flusher import Flushable
from lakemq.plugins.journal.log.folder import IndexCache
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.log.recovery import Recovery, RecoveryContext, create_partition
from lakemq.plugins.journal.tiering.object_store import FolderStore
from tests.unit.journal.simulated_disk import SimulatedDisk

TOPIC_ID = "0123456789abcdef0123456789abcdef"
FOLDER = Path("/journal/topics") / TOPIC_ID / "0"

STORE = Path("/store")


class InlineExecutor(Executor):
    """Runs what it is given at once, on the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def flush(flushable: Flushable) -> None:
    """All of a flush but its end."""
    flushable.begin_flush()
    flushable.write_flush()
    flushable.sync_flush()


class ManualFlusher:
    """Keeps what is to be flushed until `run`; each step can be taken on its own."""

    def __init__(self) -> None:
        self.waiting: list[Flushable] = []

    def submit(self, flushable: Flushable) -> None:
        self.waiting.append(flushable)

    def run(self) -> None:
        while self.waiting:
            flushable = self.waiting.pop(0)
            flush(flushable)
            flushable.end_flush()


class Rig:
    """Opens, crashes and reopens one partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        seed: int = 0,
        config: TopicConfig | None = None,
        interval_bytes: int = 1024,
        checkpoint_interval_bytes: int = 1 << 40,
        tail_max_bytes: int = 1 << 20,
        tiers: bool = False,
    ) -> None:
        self.loop = loop
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(self.rng)
        self.disk.make_folder(FOLDER.parent.parent)
        self.disk.make_folder(STORE)
        for folder in (Path("/"), Path("/journal")):
            self.disk.sync_folder(folder)
        self.config = config or TopicConfig()
        self.now = 1_000_000
        self.interval_bytes = interval_bytes
        self.checkpoint_interval_bytes = checkpoint_interval_bytes
        self.tail_max_bytes = tail_max_bytes
        self.store = FolderStore(self.disk, STORE) if tiers else None
        self.epoch = 0
        self.unflushed_max_bytes = 64 << 20
        self.log = self.open()

    def recovery_context(self) -> RecoveryContext:
        return RecoveryContext(
            self.disk, IndexCache(), lambda: self.now, self.interval_bytes, self.store
        )

    def open(self) -> JournalLog:
        """What a starting process does: recover, and lead alone."""
        log = self.reopen()
        log.lead(max(self.epoch, log.last_epoch()), alone=True)
        return log

    def reopen(self) -> JournalLog:
        """Recover; the log has no role yet."""
        self.flusher = ManualFlusher()
        self.context = LogContext(
            self.loop, self.flusher, InlineExecutor(), InlineExecutor(), lambda: self.now,
            self.unflushed_max_bytes, 256 << 20, self.checkpoint_interval_bytes, 1000,
        )  # fmt: skip
        recovery = self.recovery_context()
        recovered = Recovery(recovery, FOLDER).run()
        if recovered is None:
            recovered = create_partition(recovery, FOLDER, "t", TOPIC_ID, 0)
        self.log = JournalLog(self.context, recovered, "t", 0, self.config, self.tail_max_bytes)
        return self.log

    def lose_power(self) -> JournalLog:
        self.disk.lose_power()
        return self.open()

    def kill(self) -> JournalLog:
        self.disk.kill_process()
        return self.open()

    def append(
        self,
        *values: bytes | None,
        acks: Acks = Acks.LEADER,
        producer: ProducerStamp = NOT_IDEMPOTENT,
        keys: list[bytes | None] | None = None,
        timestamps_ms: list[int] | None = None,
    ) -> asyncio.Future[AppendResult]:
        columns = Columns(list(values), keys, None, timestamps_ms)
        data = encode(columns, producer=producer, now_ms=self.now)
        return self.log.append(data, read_header(data), acks)

    def append_durably(self, *values: bytes | None, **more: Any) -> AppendResult:
        future = self.append(*values, **more)
        self.flusher.run()
        return future.result()

    def fetch(self, offset: int, bytes_max: int = 1 << 20) -> FetchResult:
        """A fetch that doesn't wait; drives the loop."""
        return self.loop.run_until_complete(self.log.fetch(Offset(offset), bytes_max=bytes_max))

    def forget_tail(self) -> None:
        """So that reads go to the disk."""
        self.log.tail.clear()

    def segment_path(self, number: int) -> Path:
        return FOLDER / self.log.folder.manifest.segments[number].log_name


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what background threads do to files, of which nothing tells."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
