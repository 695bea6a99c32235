"""A replicated log in memory, whose disk the test can hold, fill and tear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    StorageFenced,
    StorageFull,
)
from lakemq.broker_core.api.records.batch import (
    BatchHeader,
    RecordBatch,
    encode,
    read_header,
    split,
    stamp,
)
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, Offset, PartitionStatus


class MemoryReplicaLog:
    """Implements what replication calls of `ReplicaLog`, and `append`."""

    def __init__(self, segment_records: int = 1_000_000) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.log_start_offset = Offset(0)
        self.high_watermark = Offset(0)
        self.durable_end = Offset(0)
        self.role = ""
        self.epoch = 0
        self.acks_min = Acks.MEMORY
        self.held = False
        """Nothing is flushed while it is so; `flush` goes on."""
        self.failure: LakeMQError | None = None
        """What flushes fail with."""
        self.slow_reads: asyncio.Event | None = None
        """Reads of replicas wait for it, as those of a disk do."""
        self.reason = ""
        self.rolls: list[int] = []
        self.cuts: list[int] = []
        self.cut_error: Exception | None = None
        """What `truncate` fails with."""
        self._segment_records = segment_records
        self._when_durable: Callable[[], None] | None = None
        self._when_appended: Callable[[], None] | None = None
        self._sent_end = Offset(0)
        self.may_answer: Callable[[], bool] | None = None
        self._replicas: list[tuple[Offset, asyncio.Future[Offset]]] = []
        self._appends: list[tuple[AppendResult, asyncio.Future[AppendResult]]] = []
        self._flush_due = False

    # -- what a test looks at

    @property
    def log_end_offset(self) -> Offset:
        return (
            Offset(self.batches[-1][0].last_offset + 1) if self.batches else self.log_start_offset
        )

    def values(self) -> list[bytes | None]:
        return [value for _, data in self.batches for value in RecordBatch(data).values()]

    def status(self) -> PartitionStatus:
        state = {StorageFull: "full", StorageFenced: "fenced"}.get(type(self.failure), "online")
        return PartitionStatus(0, state, 0, 0, 0, 0, 0)

    @property
    def sendable_end(self) -> Offset:
        return self.durable_end if self._when_appended is None else self.log_end_offset

    @property
    def leads(self) -> bool:
        return self.role == "leader"

    # -- roles

    def lead(self, epoch: int, *, alone: bool, acks_min: Acks = Acks.MEMORY) -> None:
        if epoch < self.last_epoch():
            raise ValueError(epoch)
        self.role, self.epoch, self.acks_min = "leader", epoch, acks_min

    def follow(self, epoch: int) -> None:
        if epoch < self.last_epoch():
            raise ValueError(epoch)
        self.role, self.epoch = "follower", epoch
        for _, future in self._appends:
            if not future.done():
                future.set_exception(NotLeader("no more"))
        self._appends.clear()

    def refuse_replicated(self, reason: str) -> None:
        self.reason = reason

    def answer_while(self, holds: Callable[[], bool] | None) -> None:
        self.may_answer = holds

    def when_durable(self, callback: Callable[[], None] | None) -> None:
        self._when_durable = callback

    def when_appended(self, callback: Callable[[], None] | None) -> None:
        self._when_appended = callback

    def commit_to(self, offset: Offset) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.durable_end))
        for result, future in list(self._appends):
            if result.last_offset < self.high_watermark:
                self._appends.remove((result, future))
                future.set_result(result)

    # -- appends

    def append(self, *values: bytes) -> asyncio.Future[AppendResult]:
        """Acks `replicated`."""
        assert self.role == "leader"
        batch = encode(Columns(list(values)), now_ms=1_000)
        header, data = stamp(batch, read_header(batch), self.log_end_offset, self.epoch)
        self.batches.append((header, data))
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        base, last = Offset(header.base_offset), Offset(header.last_offset)
        self._appends.append((AppendResult(base, last, Acks.REPLICATED), future))
        if self._when_appended is not None:
            self._when_appended()
        self._flush_soon()
        return future

    def append_replica(self, batches: bytes) -> asyncio.Future[Offset]:
        assert self.role == "follower"
        future: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        for position, header in split(batches):
            assert header.base_offset >= self.log_end_offset
            self.batches.append((header, batches[position : position + header.total_bytes]))
        self._replicas.append((self.log_end_offset, future))
        self._flush_soon()
        return future

    def _flush_soon(self) -> None:
        if not self._flush_due and not self.held:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        replicas, self._replicas = self._replicas, []
        if self.failure is not None:
            self.batches = [each for each in self.batches if each[0].last_offset < self.durable_end]
            if self._sent_end > self.durable_end and self.leads:
                self.role = ""
        else:
            self.durable_end = self.log_end_offset
        for end, future in replicas:
            if self.failure is not None:
                future.set_exception(self.failure)
            else:
                future.set_result(end)
        if self._when_durable is not None:
            self._when_durable()

    # -- reads

    def read_replica(self, offset: Offset, bytes_max: int) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.slow_reads is None:
            self._read(future, offset, bytes_max)
        else:
            waiting = asyncio.ensure_future(self.slow_reads.wait())
            waiting.add_done_callback(lambda _: self._read(future, offset, bytes_max))
        return future

    def _read(self, future: asyncio.Future[bytes], offset: Offset, bytes_max: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            future.set_exception(OffsetOutOfRange(str(offset)))
            return
        found = b""
        for header, data in self.batches:
            if header.last_offset < offset or header.last_offset >= self.sendable_end:
                continue
            if found and len(found) + len(data) > bytes_max:
                break
            if self.segment_start(header.base_offset) != self.segment_start(offset):
                break
            found += data
            self._sent_end = max(self._sent_end, Offset(header.last_offset + 1))
        future.set_result(found)

    def last_epoch(self, offset: Offset | None = None) -> int:
        end = self.log_end_offset if offset is None else offset
        below = [header.leader_epoch for header, _ in self.batches if header.base_offset < end]
        return below[-1] if below else -1

    def epoch_end(self, epoch: int) -> tuple[int, Offset]:
        below = [header for header, _ in self.batches if header.leader_epoch <= epoch]
        if not below:
            return -1, self.log_start_offset
        return below[-1].leader_epoch, Offset(below[-1].last_offset + 1)

    def segment_start(self, offset: Offset) -> Offset:
        return Offset(offset - offset % self._segment_records)

    # -- the log begins or ends elsewhere

    async def truncate(self, offset: Offset) -> None:
        assert offset >= self.high_watermark
        await asyncio.sleep(0)
        self.cuts.append(offset)
        if self.cut_error is not None:
            raise self.cut_error
        self.batches = [each for each in self.batches if each[0].last_offset < offset]
        self.durable_end = self.log_end_offset

    async def restart_at(self, offset: Offset) -> None:
        await asyncio.sleep(0)
        self.batches = []
        self.log_start_offset = self.high_watermark = self.durable_end = offset

    async def delete_records(self, before: Offset) -> Offset:
        await asyncio.sleep(0)
        self.batches = [each for each in self.batches if each[0].last_offset >= before]
        self.log_start_offset = before
        return before

    def roll_at(self, offset: Offset) -> None:
        self.rolls.append(offset)
