"""The simulated log as a storage engine, so that the suites for engines say whether it is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
)
from lakemq.broker_core.api.ports import Tap
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.replica_ports import EpochEnd
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    CommittedBatch,
    FetchResult,
    Offset,
    TopicInfo,
)
from tests.support.replica_log import Disk, Refused, SimulatedLog

_ALL = 1 << 30


class SimulatedReplicaLog:
    """What `ReplicaLog` has for replication, over a `SimulatedLog`. A flush takes a turn."""

    def __init__(self, name: str, partition: int, disk: Disk) -> None:
        self.log = SimulatedLog(disk)
        self._name, self._partition = name, partition
        self._alone = False
        self._acks_min = Acks.MEMORY
        self._refusal = ""
        self._taps: list[Tap] = []
        self._may_answer: Callable[[], bool] = _always
        self._told_durable: Callable[[], None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[Offset]]] = []
        self._flushing = False
        self.log.when_committed = self._committed

    def __getattr__(self, name: str) -> object:
        # Positions and epochs are the log's.
        return getattr(self.log, name)

    def epoch_end(self, epoch: int) -> EpochEnd:
        return EpochEnd(*self.log.epoch_end(epoch))

    # ------------------------------------------------------------ roles

    def lead(self, epoch: int, *, alone: bool, acks_min: Acks = Acks.MEMORY) -> None:
        self._check_epoch(epoch)
        self.log.lead(epoch)
        self._alone, self._acks_min = alone, acks_min
        if alone:
            self.log.commit_to(self.log.durable_end)

    def follow(self, epoch: int) -> None:
        self._check_epoch(epoch)
        self.log.follow(epoch)

    def _check_epoch(self, epoch: int) -> None:
        if epoch < max(self.log.last_epoch(), self.log.epoch):
            raise ValueError(f"epoch {epoch} is over")

    def refuse_replicated(self, reason: str) -> None:
        self._refusal = reason

    @property
    def sendable_end(self) -> Offset:
        return self.log.durable_end

    @property
    def leads(self) -> bool:
        return self.log.leads

    def when_appended(self, callback: Callable[[], None] | None) -> None:
        """Nothing is read before it is durable."""

    def answer_while(self, holds: Callable[[], bool] | None) -> None:
        self._may_answer = holds or _always

    def when_durable(self, callback: Callable[[], None] | None) -> None:
        self._told_durable = callback

    def commit_to(self, offset: Offset) -> None:
        self.log.commit_to(offset)

    def _committed(self, before: int) -> None:
        batches = [
            CommittedBatch(self._name, self._partition, Offset(each.header.base_offset), each.data)
            for each in self.log.batches_between(before, self.log.high_watermark)
        ]
        for tap in self._taps:
            tap(batches)

    # ------------------------------------------------------------ writing

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        acks = max(acks, self._acks_min)
        if acks is Acks.REPLICATED and self._refusal:
            future.set_exception(NotEnoughReplicas(self._refusal))
            return future
        before = self.log.log_end_offset

        def done(end: int, committed: bool) -> None:
            if future.done():
                return
            if not committed:
                future.set_exception(NotLeader("another node leads now"))
                return
            base = Offset(end - header.record_count)
            future.set_result(AppendResult(base, Offset(end - 1), acks, base < before))

        try:
            self.log.append(batch, header, done)
        except Refused as error:
            future.set_exception(NotLeader(str(error)))
            return future
        if acks is not Acks.REPLICATED and not future.done():
            end = self.log.log_end_offset
            self._after_flush(end).add_done_callback(lambda _: done(end, self._may_answer()))
        self._flush_soon()
        return future

    def append_replica(self, batches: bytes) -> asyncio.Future[Offset]:
        try:
            self.log.append_replica(batches)
        except Refused as error:
            failed: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
            failed.set_exception(CorruptBatch(str(error)))
            return failed
        self._flush_soon()
        return self._after_flush(self.log.log_end_offset)

    def _after_flush(self, end: int) -> asyncio.Future[Offset]:
        future: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future))
        return future

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if not self.log.flush():
            return
        if self._alone:
            self.log.commit_to(self.log.durable_end)
        done = [each for end, each in self._waiting if end <= self.log.durable_end]
        self._waiting = [each for each in self._waiting if each[0] > self.log.durable_end]
        for future in done:
            future.set_result(self.log.durable_end)
        if self._told_durable is not None:
            self._told_durable()

    # ------------------------------------------------------------ reading, cutting

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        """`bytes_max`: all that is committed is given."""
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise OffsetOutOfRange(f"{offset}")
        found = log.batches_between(offset, log.high_watermark)
        end = Offset(found[-1].header.last_offset + 1) if found else offset
        data = b"".join(each.data for each in found)
        return FetchResult(data, end, log.high_watermark, log.log_start_offset)

    def read_replica(self, offset: Offset, bytes_max: int) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.log.log_start_offset <= offset <= self.log.log_end_offset:
            future.set_result(self.log.read(offset, self.log.durable_end, _ALL))
        else:
            future.set_exception(OffsetOutOfRange(f"{offset}"))
        return future

    async def truncate(self, offset: Offset) -> None:
        self.log.truncate(offset)

    async def restart_at(self, offset: Offset) -> None:
        self.log.restart_at(offset)

    async def delete_records(self, before: Offset) -> Offset:
        self.log.delete_records(before)
        return self.log.log_start_offset

    def tap(self, tap: Tap) -> Callable[[], None]:
        self._taps.append(tap)
        return lambda: self._taps.remove(tap)


class SimulatedStorage:
    """Logs over disks that outlive it."""

    name = "simulated"

    def __init__(self, disks: dict[int, Disk]) -> None:
        self._disks = disks
        self._logs: dict[int, SimulatedReplicaLog] = {}

    async def start(self) -> None:
        """Nothing is to be recovered before a log is opened."""

    async def stop(self) -> None:
        for log in self._all():
            log.flush()
            log.log.checkpoint()

    def _all(self) -> Iterable[SimulatedReplicaLog]:
        return self._logs.values()

    async def open_partition(self, topic: TopicInfo, partition: int) -> SimulatedReplicaLog:
        if partition not in self._logs:
            disk = self._disks.setdefault(partition, Disk(""))
            self._logs[partition] = SimulatedReplicaLog(topic.name, partition, disk)
        return self._logs[partition]


def _always() -> bool:
    return True
