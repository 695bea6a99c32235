"""The Broker port of the nodes of a simulated cluster, as far as the MQTT plugin uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lakemq.broker_core.api.cluster.channels import ChannelEvents
from lakemq.broker_core.api.errors import LakeMQError, NotLeader, OutcomeUnknown, Unavailable
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.ports import BoundPublish, Wanted
from lakemq.broker_core.api.records.batch import (
    BatchHeader,
    ProducerStamp,
    RecordBatch,
    encode_with_header,
)
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.internal_topics import is_node_own
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    Acks,
    AppendResult,
    Columns,
    CommittedBatch,
    Credentials,
    FetchResult,
    NodeInfo,
    Offset,
    Placed,
    Principal,
    TopicConfig,
    TopicInfo,
)
from tests.support.cluster.simulated_brokers import Part, Pending, SimulatedBroker, SimulatedLog
from tests.support.mqtt.cluster.network import SimChannel

if TYPE_CHECKING:
    from tests.support.mqtt.cluster.world import World

ANSWER_S = 60.0
"""How long a publish is tried: longer than any failure lasts."""
PATIENCE_S = 2.0
RETRY_S = 0.1


class Copy(NamedTuple):
    """When an append that was committed reached its leader, and was committed, in seconds."""

    reached_s: float
    committed_s: float


class TimedPart(Part):
    """Knows when its batches came: `copies`, by producer and sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[tuple[int, int], Copy] = {}
        self._reached_s: dict[asyncio.Future[AppendResult], float] = {}

    def reached(self, pending: Pending) -> None:
        """It is in the leader's log."""
        self._reached_s[pending.done] = asyncio.get_running_loop().time()

    def commit(self, each: Pending) -> AppendResult:
        now_s = asyncio.get_running_loop().time()
        reached_s = self._reached_s.pop(each.done, now_s)
        key = (each.header.producer_id, each.header.base_sequence)
        self.copies.setdefault(key, Copy(reached_s, now_s))
        return super().commit(each)


class Log(SimulatedLog):
    """As `SimulatedLog`; a fetch waits for the commit rather than looking again and again."""

    _broker: Broker  # type: ignore[assignment]
    _part: TimedPart

    def __init__(self, broker: Broker, name: str, number: int) -> None:
        self._broker, self._world = broker, broker.mqtt_world
        self._place = (name, number)
        self._part = broker.mqtt_world.part_of(broker.node_id, name, number)

    def between(self, start: int, end: int) -> list[tuple[BatchHeader, bytes]]:
        return [each for each in self._part.stored if start <= each[0].last_offset < end]

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        found = super().append(batch, header, acks)
        self._part.reached(self._part.pending[-1])
        return found

    def _commit(self, last: Pending) -> None:
        part, world = self._part, self._broker.mqtt_world
        if last in part.pending and not world.commits(self._broker.node_id, self._place[0]):
            if self._broker.alive:
                world.later(0.2, lambda: self._commit(last))
            return
        while last in part.pending:
            each = part.pending.pop(0)
            result = part.commit(each)
            part.known_end = part.end
            # Taps have got the records before who published them is answered.
            world.committed(self._broker.node_id, *self._place)
            if not each.done.done():
                each.done.set_result(result)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        part = self._part
        if wait_ms and part.known_end <= offset <= part.end:
            await self._broker.mqtt_world.grown(part, wait_ms / 1000)
        return await super().fetch(offset, bytes_max=bytes_max)


class Reader:
    """Implements `PartitionReader`: of whichever node leads, over the network."""

    def __init__(self, broker: Broker, place: tuple[str, int], wanted: Wanted | None) -> None:
        self._broker, self._place, self._wanted = broker, place, wanted

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        log, leader = await self._broker.way(self._place)
        got = await log.fetch(offset, bytes_max=bytes_max, wait_ms=wait_ms)
        wants = leader.filters.get(self._wanted.filter) if self._wanted is not None else None
        if wants is not None and self._wanted is not None and leader is not self._broker:
            peer, number = self._broker.mqtt_world.peer(self._broker.node_id), self._wanted.number
            topic, partition = self._place
            kept = [
                data
                for header, data in log.between(offset, got.next_offset)
                if wants(
                    peer, number, CommittedBatch(topic, partition, Offset(header.base_offset), data)
                )
            ]
            got = replace(got, data=b"".join(kept))
        await self._broker.back(leader)
        return got

    async def bounds(self) -> tuple[Offset, Offset]:
        log, leader = await self._broker.way(self._place)
        found = log.log_start_offset, log.high_watermark
        await self._broker.back(leader)
        return found

    async def log_end(self) -> Offset:
        try:
            log, leader = await self._broker.way(self._place)
            found = log.log_end_offset
            await self._broker.back(leader)
        except (LakeMQError, asyncio.CancelledError):
            self._broker.unanswered.append((self._place, asyncio.get_running_loop().time()))
            raise
        return found


class Sender:
    """What one life of a node sends to one partition: in order, each batch once."""

    def __init__(self, broker: Broker, place: tuple[str, int]) -> None:
        world = broker.mqtt_world
        world.producer_ids += 1
        world.producers[world.producer_ids] = broker
        self._broker, self._place = broker, place
        self._producer_id, self._sequence = world.producer_ids, 0
        self._before: asyncio.Task[Any] | None = None

    def send(self, columns: Columns) -> asyncio.Task[AppendResult]:
        count = len(columns.values)
        stamp = ProducerStamp(self._producer_id, 0, self._sequence)
        self._sequence += count
        now_ms = self._broker.mqtt_world.now_ms()
        header, batch = encode_with_header(columns, now_ms=now_ms, producer=stamp)
        task = asyncio.create_task(self._send(header, batch, self._before))
        self._before = task
        return task

    async def _send(
        self, header: BatchHeader, batch: bytes, before: asyncio.Task[Any] | None
    ) -> AppendResult:
        if before is not None and not before.done():
            await asyncio.wait([before])
        loop, sent = asyncio.get_running_loop(), False
        until_s = loop.time() + ANSWER_S
        while True:
            try:
                log, leader = await self._broker.way(self._place)
                sent = True
                async with asyncio.timeout_at(until_s):
                    result = await log.append(batch, header, Acks.REPLICATED)
                    await self._broker.back(leader)
                return result
            except (LakeMQError, TimeoutError) as error:
                if loop.time() > until_s - RETRY_S:
                    kind = OutcomeUnknown if sent else NotLeader
                    raise kind(f"{self._place} does not answer: {error}") from None
            await asyncio.sleep(RETRY_S)


class Route:
    """Implements `AppendTarget`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        opened = RecordBatch(batch)
        columns = Columns(opened.values(), opened.keys(), opened.encoded_headers())
        return self._sender.send(columns)


class Broker(SimulatedBroker):
    """Of one life of one node."""

    def __init__(self, world: World, node_id: str) -> None:
        super().__init__(world, node_id)
        self.mqtt_world = world
        self.filters: dict[str, Any] = {}
        self.known_nodes: tuple[NodeInfo, ...] = ()
        self._node_watchers: list[Callable[[], None]] = []
        self._serving_watchers: list[Callable[[], None]] = []
        self._senders: dict[tuple[str, int], Sender] = {}
        self.heard_s = asyncio.get_running_loop().time()
        """When the MetaService was heard last."""
        self.unanswered: list[tuple[tuple[str, int], float]] = []
        """Partitions whose end no leader told, and when that was given up."""

    # -- what the cluster tells it

    def learn_nodes(self, nodes: tuple[NodeInfo, ...]) -> None:
        if nodes != self.known_nodes:
            self.known_nodes = nodes
            for told in tuple(self._node_watchers):
                told()

    def lease_changed(self) -> None:
        for told in tuple(self._serving_watchers):
            told()

    def readable(self, name: str) -> None:
        """`deliver` tells."""

    def deliver(self, name: str, batches: Sequence[CommittedBatch]) -> None:
        for topic, tap in tuple(self._taps):
            if topic == name and self.alive:
                tap(batches)  # type: ignore[arg-type]

    # -- topics

    async def create_topic(  # type: ignore[override]
        self,
        name: str,
        partitions: int | None = None,
        config: TopicConfig | None = None,
        *,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicInfo:
        return await self.ensure_topic(name, partitions)

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        await asyncio.sleep(self.world.dice.uniform(0, 0.01))
        info = self.world.topics.get(name) or self.world.create(name, partitions or 1)
        self.learn(info)
        return self.topic(name)

    # -- partitions

    def serves(self, name: str, number: int) -> bool:
        if is_node_own(name):
            return True
        leased = self.mqtt_world.leased(self.node_id)
        return leased and super().serves(name, number)

    def partition(self, name: str, number: int, leader_epoch: int = 0) -> Log:
        check_partition(self.topic(name), number)
        if not self.serves(name, number):
            known = leadership(self.topic(name), number)
            raise NotLeader(f"{name}/{number}", leader=known.leader or "", epoch=known.epoch)
        return Log(self, name, number)

    def reader(  # type: ignore[override]
        self, name: str, number: int, wanted: Wanted | None = None
    ) -> Reader:
        check_partition(self.topic(name), number)
        return Reader(self, (name, number), wanted)

    def route(self, name: str, number: int) -> Route:  # type: ignore[override]
        return Route(self._sender((name, number)))

    def _sender(self, place: tuple[str, int]) -> Sender:
        sender = self._senders.get(place)
        if sender is None:
            sender = self._senders[place] = Sender(self, place)
        return sender

    def readable_end(self, name: str, number: int) -> Offset | None:  # type: ignore[override]
        check_partition(self.topic(name), number)
        return self.mqtt_world.replica_end(self.node_id, name, number)

    async def way(self, place: tuple[str, int]) -> tuple[Log, Broker]:
        """The log of whoever leads, when a request has come there. Raises Unavailable."""
        world = self.mqtt_world
        for _ in range(int(PATIENCE_S / RETRY_S)):
            leader = leadership(self.topic(place[0]), place[1]).leader or ""
            if leader == self.node_id:
                if self.serves(*place):
                    return self.partition(*place), self
            elif leader and world.linked(self.node_id, leader):
                await asyncio.sleep(world.rng.uniform(0, world.delay_max_s))
                other = world.brokers.get(leader)
                if world.runs(leader) and isinstance(other, Broker) and other.serves(*place):
                    return other.partition(*place), other
            await asyncio.sleep(RETRY_S)
        raise Unavailable(f"no node answers for {place}")

    async def back(self, leader: Broker) -> None:
        """The answer has come. Raises Unavailable."""
        if leader is self:
            return
        world = self.mqtt_world
        await asyncio.sleep(world.rng.uniform(0, world.delay_max_s))
        if not leader.alive or not world.linked(self.node_id, leader.node_id):
            await asyncio.sleep(1.0)
            raise Unavailable(f"{leader.node_id} does not answer")

    # -- publishes

    def publish_bound(self, publishes: Sequence[BoundPublish]) -> None:
        for each in publishes:
            asyncio.create_task(self._publish(each))

    async def _publish(self, each: BoundPublish) -> None:
        columns, count = each.columns, self.topic(each.topic).partitions
        keys = columns.keys or [b""] * len(columns.values)
        rows: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            number = 0 if is_node_own(each.topic) else partition_of(key or b"", count)
            rows.setdefault(number, []).append(index)

        async def append(number: int, indexes: list[int]) -> None:
            try:
                base = await self._append(each.topic, number, _some(columns, indexes))
            except LakeMQError as error:
                each.done(indexes, error)
            else:
                each.done(indexes, Placed(number, Offset(base)))

        await asyncio.gather(*(append(*some) for some in rows.items()))

    async def _append(self, topic: str, number: int, columns: Columns) -> int:
        if not is_node_own(topic):
            return (await self._sender((topic, number)).send(columns)).base_offset
        header, batch = encode_with_header(columns, now_ms=self.mqtt_world.now_ms())
        result = await self.partition(topic, number).append(batch, header, Acks.LEADER)
        return result.base_offset

    def reserve_headers(self, topic: str, names: object) -> Callable[[], None]:
        return lambda: None

    def filter_batches(self, name: str, wants: Any) -> Callable[[], None]:
        self.filters[name] = wants
        return lambda: None

    # -- nodes

    def nodes(self) -> list[NodeInfo]:
        return list(self.known_nodes)

    def watch_nodes(self, told: Callable[[], None]) -> Callable[[], None]:
        self._node_watchers.append(told)
        return lambda: self._node_watchers.remove(told)

    def watch_serving(self, told: Callable[[], None]) -> Callable[[], None]:
        self._serving_watchers.append(told)
        return lambda: self._serving_watchers.remove(told)

    def in_touch(self) -> bool:
        return self.mqtt_world.leased(self.node_id)

    def channel(self, name: str, events: ChannelEvents) -> SimChannel:
        return self.mqtt_world.channels.open(self.node_id, name, events)

    # -- clients

    def recognize(self, credentials: Credentials) -> Principal | None:
        return None

    async def authenticate(self, credentials: Credentials) -> Principal:
        await asyncio.sleep(0)
        return ANONYMOUS

    def charge(self, principal: Principal, **used: int) -> int:
        return 0

    def ended(self, principal: Principal) -> bool:
        return False

    def on_access_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def _some(columns: Columns, indexes: Sequence[int]) -> Columns:
    def column(found: Sequence[Any] | None) -> list[Any] | None:
        return None if found is None else [found[each] for each in indexes]

    values = [columns.values[each] for each in indexes]
    times = column(columns.timestamps_ms)
    return Columns(values, column(columns.keys), column(columns.headers), times)


def taken(part: Part, start: int, end: int, place: tuple[str, int]) -> list[CommittedBatch]:
    """Committed batches of a partition between two offsets."""
    return [
        CommittedBatch(*place, Offset(header.base_offset), data)
        for header, data in part.stored
        if start <= header.last_offset < end
    ]
