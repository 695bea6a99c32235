"""Committed batches of any partition: from this node's replica where it has what is wanted, else
from the node that leads the partition, whichever that is by then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable, UnknownTopic
from lakemq.broker_core.api.leadership import check_partition, leadership, leads
from lakemq.broker_core.api.partition_ports import Wanted
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.state.internal_topics import is_node_own
from lakemq.broker_core.api.types import FetchResult, Offset, TopicInfo
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.reading.fetch_frames import FetchRequest, Wants
from lakemq.broker_core.cluster.reading.fetch_link import FetchLinks
from lakemq.broker_core.partitions import Partitions

PATIENCE_S: Final = 5.0
"""How long a reader tries again when no node answers as the leader; beside the time that it waits
for records."""
_RETRY_FIRST_MS: Final = 10
_RETRY_MAX_MS: Final = 200
_rng: Final = random.Random()
ResultT = TypeVar("ResultT")


class Readers:
    """Lives on the event loop."""

    def __init__(self, node_id: str, partitions: Partitions, peers: Peers) -> None:
        self.node_id = node_id
        self.partitions = partitions
        self.links = FetchLinks(peers)
        self._asking: dict[str, set[_Asking]] = {}
        """By topic."""

    def reader(self, topic: str, partition: int, wanted: Wanted | None = None) -> Reader:
        """Raises UnknownTopic, UnknownPartition."""
        info = self.partitions.topic(topic)
        check_partition(info, partition)
        return Reader(self, info, partition, wanted)

    async def ask(
        self, topic: TopicInfo, partition: int, leader: str, request: FetchRequest, connect_s: float
    ) -> FetchResult:
        """What the leader answers. Raises NotLeader as soon as the catalog names another one."""
        asking = _Asking(
            partition, leader, asyncio.ensure_future(self.links.to(leader).ask(request, connect_s))
        )
        under_way = self._asking.setdefault(topic.name, set())
        under_way.add(asking)
        try:
            return await asking.task
        except (asyncio.CancelledError, LakeMQError):
            caller = asyncio.current_task()
            # The reader itself is being ended: that must not be lost because its request has
            # failed, or was given up, in the same moment.
            if caller is not None and caller.cancelling():
                raise asyncio.CancelledError from None
            if asking.moved:
                raise NotLeader(f"{leader} leads it no more") from None
            raise
        finally:
            asking.task.cancel()
            under_way.discard(asking)
            if not under_way and self._asking.get(topic.name) is under_way:
                del self._asking[topic.name]

    def changed(self, name: str, topic: TopicInfo | None) -> None:
        """A topic has changed in the catalog, None: it was deleted."""
        for asking in tuple(self._asking.get(name, ())):
            if topic is None or leadership(topic, asking.partition).leader != asking.leader:
                asking.moved = True
                asking.task.cancel()

    def stop(self) -> None:
        """End the links."""
        self.links.close()


class _Asking:
    """A request that is under way."""

    def __init__(self, partition: int, leader: str, task: asyncio.Future[FetchResult]) -> None:
        self.partition = partition
        self.leader = leader
        self.task = task
        self.moved = False
        """Whether it was given up because another node leads."""


class Reader:
    """Implements `PartitionReader` for one partition of one topic; keeps nothing between calls."""

    def __init__(
        self, readers: Readers, topic: TopicInfo, partition: int, wanted: Wanted | None = None
    ) -> None:
        self._wanted = wanted
        self._readers = readers
        self._topic = topic
        self._partition = partition

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        """See `PartitionReader.fetch`."""
        until_s = asyncio.get_running_loop().time() + wait_ms / 1000

        async def once() -> FetchResult:
            left_ms = int((until_s - asyncio.get_running_loop().time()) * 1000)
            left_ms = max(0, min(wait_ms, left_ms))
            log = self._replica(offset)
            if log is not None:
                return await log.fetch(offset, bytes_max=bytes_max, wait_ms=left_ms)
            return await self._ask(
                Wants.BATCHES, offset=offset, bytes_max=bytes_max, wait_ms=left_ms
            )

        return await self._patiently(once, wait_ms / 1000)

    async def bounds(self) -> tuple[Offset, Offset]:
        """See `PartitionReader.bounds`."""

        async def once() -> tuple[Offset, Offset]:
            log = self._led_here()
            if log is not None:
                return log.log_start_offset, log.high_watermark
            got = await self._ask(Wants.BOUNDS)
            return got.log_start_offset, got.high_watermark

        return await self._patiently(once)

    async def log_end(self) -> Offset:
        """See `PartitionReader.log_end`."""

        async def once() -> Offset:
            log = self._led_here()
            if log is not None:
                return log.log_end_offset
            got = await self._ask(Wants.BOUNDS)
            return max(got.next_offset, got.high_watermark)

        return await self._patiently(once)

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        """See `PartitionReader.offset_for_timestamp`."""

        async def once() -> Offset:
            log = self._led_here()
            if log is not None:
                return await log.offset_for_timestamp(timestamp_ms)
            got = await self._ask(Wants.TIME, timestamp_ms=max(0, timestamp_ms))
            return got.next_offset

        return await self._patiently(once)

    async def _patiently(
        self, once: Callable[[], Awaitable[ResultT]], wait_s: float = 0
    ) -> ResultT:
        """Do it again while no node answers as the leader. Raises Unavailable at last."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s + PATIENCE_S
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                return await once()
            except (NotLeader, Unavailable) as error:
                if loop.time() >= deadline_s:
                    raise Unavailable(
                        f"{self._topic.name}/{self._partition} can't be read now: {error}"
                    ) from None
            await asyncio.sleep(backoff.next_s())

    def _now(self) -> TopicInfo:
        """Raises UnknownTopic, also where another topic has the name by now."""
        info = self._readers.partitions.topic(self._topic.name)
        if info.topic_id != self._topic.topic_id:
            raise UnknownTopic(f"topic {info.name!r} was deleted; another one has its name")
        return info

    def _replica(self, offset: Offset) -> PartitionLog | None:
        """The replica of this node, where it has what is wanted or what comes next, and the
        catalog counts on it; None: ask the leader, which alone can say that there is no such
        offset."""
        info, readers = self._now(), self._readers
        if is_node_own(info.name):
            return readers.partitions.log(info.name, self._partition)
        log = readers.partitions.replica(info.name, self._partition)
        if log is None:
            return None
        if leads(readers.node_id, info, self._partition):
            return log
        in_sync = readers.node_id in leadership(info, self._partition).in_sync
        has = log.log_start_offset <= offset <= log.log_end_offset
        return log if in_sync and has else None

    def _led_here(self) -> PartitionLog | None:
        """The log, where this node leads it. Raises NotLeader while it is not sure to."""
        info, readers = self._now(), self._readers
        if is_node_own(info.name) or leads(readers.node_id, info, self._partition):
            return readers.partitions.log(info.name, self._partition)
        return None

    async def _ask(
        self,
        wants: Wants,
        *,
        offset: int = 0,
        bytes_max: int = 0,
        wait_ms: int = 0,
        timestamp_ms: int = 0,
    ) -> FetchResult:
        info = self._now()
        leader = leadership(info, self._partition).leader
        if leader is None or leader == self._readers.node_id:
            raise NotLeader(f"partition {self._partition} of {info.name} has no leader now")
        request = FetchRequest(
            0, info.topic_id, self._partition, wants, offset, bytes_max, wait_ms, timestamp_ms,
            self._wanted if wants is Wants.BATCHES else None,
        )  # fmt: skip
        got = await self._readers.ask(info, self._partition, leader, request, PATIENCE_S)
        if wants is Wants.BATCHES and got.next_offset < offset:
            raise Unavailable(f"{leader} answered with offsets below {offset}")
        return got
