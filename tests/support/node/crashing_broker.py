"""A `Broker` over simulated disks that can end at any moment: what was appended and not flushed is
then there, gone, or half of it there, as the dice have it. For simulations of the coordinator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from lakemq.broker_core.api.errors import LakeMQError, OffsetOutOfRange, StorageFull, UnknownTopic
from lakemq.broker_core.api.leadership import check_leads, check_partition, leads
from lakemq.broker_core.api.records.batch import BatchHeader, RecordBatch, stamp
from lakemq.broker_core.api.state.internal_topics import SHARED, is_node_own
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    FetchResult,
    Leadership,
    Offset,
    Operation,
    PartitionStatus,
    Principal,
    Resource,
    TopicConfig,
    TopicInfo,
)
from lakemq.plugins.journal.segment.producers import ProducerTable


@dataclass
class Disk:
    """What survives: batches of every partition, and the catalog."""

    topics: dict[str, TopicInfo] = field(default_factory=dict)
    logs: dict[tuple[str, int], list[tuple[BatchHeader, bytes]]] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    producer_ids: int = 0

    def records(self, topic: str, partition: int) -> list[bytes]:
        return [
            value or b""
            for _, data in self.logs.get((topic, partition), [])
            for value in RecordBatch(data).values()
        ]


class CrashingLog:
    """Implements the `PartitionLog` port, as far as the coordinator uses it."""

    def __init__(self, broker: CrashingBroker, place: tuple[str, int]) -> None:
        self._broker = broker
        self._place = place
        self._stored = broker.disk.logs.setdefault(place, [])
        self._waiting: list[tuple[BatchHeader, bytes, asyncio.Future[AppendResult]]] = []
        self._flush_due = False
        self._producers = ProducerTable()
        for header, _ in self._stored:
            if header.producer_id >= 0:
                self._producers.note(header, 0)
        self._end = self.high_watermark

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self._broker.disk.starts.get(self._place, 0))

    @property
    def high_watermark(self) -> Offset:
        if not self._stored:
            return self.log_start_offset
        return Offset(self._stored[-1][0].last_offset + 1)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self._end)

    def status(self) -> PartitionStatus:
        state = "full" if self._broker.fails() else "online"
        return PartitionStatus(self._place[1], state, 0, 0, 0, 0, 0)

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        broker = self._broker
        broker.step()
        try:
            if broker.fails():
                raise StorageFull("the dice say so")
            known = self._producers.check(header) if header.producer_id >= 0 else None
        except LakeMQError as error:
            future.set_exception(error)
            return future
        if known is not None:
            offsets = (Offset(known.base_offset), Offset(known.last_offset))
            future.set_result(AppendResult(*offsets, Acks.LEADER, True))
            return future
        stamped, data = stamp(batch, header, self._end, 0)
        self._end += header.last_offset_delta + 1
        if header.producer_id >= 0:
            self._producers.note(stamped, 0)
        self._waiting.append((stamped, data, future))
        self._flush_later()
        return future

    def _flush_later(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._broker.later(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._broker.step()
        waiting, self._waiting = self._waiting, []
        for header, data, future in waiting:
            self._stored.append((header, data))
            if not future.done():
                base, last = Offset(header.base_offset), Offset(header.last_offset)
                future.set_result(AppendResult(base, last, Acks.LEADER))

    def crash(self, dice: random.Random) -> None:
        """Of what was not flushed, a prefix is on disk."""
        for header, data, _ in self._waiting[: dice.randint(0, len(self._waiting))]:
            self._stored.append((header, data))
        for _, _, future in self._waiting:
            future.cancel()
        self._waiting.clear()

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        await asyncio.sleep(0)
        start, end = self.log_start_offset, self.high_watermark
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} of {self._place}: {start} to {end}")
        data, following = b"", offset
        for header, batch in self._stored:
            if header.last_offset < offset:
                continue
            if data and len(data) + len(batch) > bytes_max:
                break
            data, following = data + batch, Offset(header.last_offset + 1)
        return FetchResult(data, following, end, start)

    async def delete_records(self, before: Offset) -> Offset:
        await self._broker.a_while()
        self._broker.disk.starts[self._place] = max(before, self.log_start_offset)
        return self.log_start_offset


class CrashingBroker:
    """Implements the `Broker` port, as far as the coordinator uses it."""

    node_id = cluster_id = "simulated"

    def __init__(self, disk: Disk, dice: random.Random, crash_at: int, fail_rate: float) -> None:
        self.disk = disk
        self.steps = 0
        self.dead = asyncio.Event()
        self._dice = dice
        self._crash_at = crash_at
        self._fail_rate = fail_rate
        self._logs: dict[tuple[str, int], CrashingLog] = {}

    def step(self) -> None:
        """Something is about to reach the disk: the moment at which a node may end."""
        self.steps += 1
        if self.steps >= self._crash_at and not self.dead.is_set():
            for log in self._logs.values():
                log.crash(self._dice)
            self.dead.set()
        if self.dead.is_set():
            raise Crashed

    def fails(self) -> bool:
        return self._dice.random() < self._fail_rate

    def later(self, work: Callable[[], None], hops: int | None = None) -> None:
        """After a while."""
        left = self._dice.randint(0, 6) if hops is None else hops
        loop = asyncio.get_running_loop()
        if left:
            loop.call_soon(self.later, work, left - 1)
        else:
            loop.call_soon(self._alive, work)

    async def a_while(self) -> None:
        for _ in range(self._dice.randint(1, 12)):
            await asyncio.sleep(0)

    def _alive(self, work: Callable[[], None]) -> None:
        if not self.dead.is_set():
            with suppress(Crashed):
                work()

    # -- the port

    def topics(self) -> list[TopicInfo]:
        return list(self.disk.topics.values())

    def topic(self, name: str) -> TopicInfo:
        if name not in self.disk.topics:
            raise UnknownTopic(name)
        return self.disk.topics[name]

    def topic_defaults(self) -> TopicConfig:
        return TopicConfig()

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        *,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        self.step()
        await asyncio.sleep(0)
        topic_id = f"{len(self.disk.topics):032x}"
        count = partitions or 1
        leaders = (Leadership(self.node_id, 1),) * count if name in SHARED else ()
        info = TopicInfo(name, topic_id, count, config or TopicConfig(), leaders=leaders)
        self.disk.topics[name] = info
        return info

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        return self.disk.topics.get(name) or await self.create_topic(name, partitions)

    def partition(self, topic: str, partition: int) -> CrashingLog:
        check_partition(self.topic(topic), partition)
        if self.topic(topic).leaders and not is_node_own(topic):
            check_leads(self.node_id, self.topic(topic), partition)
        place = (topic, partition)
        if place not in self._logs:
            self._logs[place] = CrashingLog(self, place)
        return self._logs[place]

    def route(self, topic: str, partition: int) -> CrashingLog:
        return self.partition(topic, partition)

    def watch_topics(
        self, on_change: Callable[[str, TopicInfo | None], None]
    ) -> Callable[[], None]:
        return lambda: None

    def watch_serving(self, on_change: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def serves(self, topic: str, partition: int) -> bool:
        return not self.topic(topic).leaders or leads(self.node_id, self.topic(topic), partition)

    def check_leads(self, topic: str, partition: int, role: str) -> None:
        if self.topic(topic).leaders:
            check_leads(self.node_id, self.topic(topic), partition, role=role)

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        pass

    async def allocate_producer_id(self, principal: Principal | None = None) -> int:
        self.step()
        self.disk.producer_ids += 1
        await asyncio.sleep(0)
        return self.disk.producer_ids


class Crashed(BaseException):
    """The simulated node has ended in the middle of a call."""
