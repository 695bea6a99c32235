"""Brokers of a simulated cluster, as far as coordinators use them: partitions with leaders that
move, whose appends are then kept or lost unanswered, and who learns of a new leader late.

Times are those of the event loop. A node serves a partition only while it is alive and what it
knows of the leadership is true, as a lease has it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    Unavailable,
    UnknownTopic,
)
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.records.batch import BatchHeader, RecordBatch, stamp
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    FetchResult,
    Leadership,
    NodeInfo,
    Offset,
    PartitionStatus,
    TopicConfig,
    TopicInfo,
)

APPEND_MAX_S = 0.05
LEARN_MAX_S = 0.5
PATIENCE_S = 5.0


@dataclass
class Pending:
    """An append that is not committed."""

    batch: bytes
    header: BatchHeader
    done: asyncio.Future[AppendResult]


@dataclass
class Part:
    """A partition as it is."""

    stored: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    """Committed."""
    pending: list[Pending] = field(default_factory=list)
    known_end: int = 0
    """High watermark as the leader knows it."""

    @property
    def end(self) -> int:
        return self.stored[-1][0].last_offset + 1 if self.stored else 0

    def commit(self, each: Pending) -> AppendResult:
        for header, _ in self.stored:
            again = (header.producer_id, header.producer_epoch, header.base_sequence)
            ours = (each.header.producer_id, each.header.producer_epoch, each.header.base_sequence)
            if each.header.producer_id >= 0 and again == ours:
                base, last = Offset(header.base_offset), Offset(header.last_offset)
                return AppendResult(base, last, Acks.REPLICATED, True)
        header, data = stamp(each.batch, each.header, self.end, 0)
        self.stored.append((header, data))
        return AppendResult(Offset(header.base_offset), Offset(header.last_offset), Acks.REPLICATED)


class World:
    """The catalog and all partitions."""

    def __init__(self, dice: random.Random, names: tuple[str, ...]) -> None:
        self.dice = dice
        self.names = names
        self.topics: dict[str, TopicInfo] = {}
        self.parts: dict[tuple[str, int], Part] = {}
        self.brokers: dict[str, SimulatedBroker] = {}
        self.producer_ids = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def create(self, name: str, partitions: int) -> TopicInfo:
        leaders = tuple(
            Leadership(self.dice.choice(self.names), 1, self.names) for _ in range(partitions)
        )
        topic_id = f"{len(self.topics) + 1:032x}"
        info = TopicInfo(name, topic_id, partitions, TopicConfig(), 1, leaders)
        self.topics[name] = info
        for number in range(partitions):
            self.parts[name, number] = Part()
        for broker in self.brokers.values():
            broker.learn(info)
        return info

    def move(self, name: str, number: int, leader: str) -> None:
        """Another leader, or the same one in another epoch. What it had not answered is kept, up
        to somewhere, and not answered."""
        info, part = self.topics[name], self.parts[name, number]
        pending, part.pending = part.pending, []
        # A log loses nothing where its leader is the same one.
        same = info.leaders[number].leader == leader
        for each in pending[: len(pending) if same else self.dice.randint(0, len(pending))]:
            part.commit(each)
        for each in pending:
            if not each.done.done():
                each.done.set_exception(NotLeader("it has moved"))
                each.done.exception()
        # The new one may know of an older high watermark until its followers have answered.
        part.known_end = self.dice.randint(0, part.end) if self.dice.random() < 0.5 else part.end
        self.later(self.dice.uniform(0, LEARN_MAX_S), lambda: self._caught_up(part))
        held = info.leaders[number]
        leaders = list(info.leaders)
        leaders[number] = held._replace(leader=leader, epoch=held.epoch + 1)
        changed = replace(info, leaders=tuple(leaders), revision=info.revision + 1)
        self.topics[name] = changed
        for broker in self.brokers.values():
            self.later(self.dice.uniform(0, LEARN_MAX_S), lambda each=broker: each.learn(changed))

    def kill(self, name: str) -> None:
        """What the node leads is led by others; it does nothing any more."""
        self.brokers[name].alive = False
        others = [each for each in self.names if each != name]
        for topic, info in list(self.topics.items()):
            for number, held in enumerate(info.leaders):
                if held.leader == name:
                    self.move(topic, number, self.dice.choice(others))

    def _caught_up(self, part: Part) -> None:
        part.known_end = part.end

    def later(self, after_s: float, work: Callable[[], None]) -> None:
        async def do() -> None:
            await asyncio.sleep(after_s)
            work()

        task = asyncio.get_running_loop().create_task(do())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def leader_log(self, name: str, number: int) -> SimulatedLog:
        """Of whoever leads it by then. Raises Unavailable."""
        for _ in range(100):
            leader = leadership(self.topics[name], number).leader or ""
            if self.brokers[leader].serves(name, number):
                return SimulatedLog(self.brokers[leader], name, number)
            await asyncio.sleep(PATIENCE_S / 100)
        raise Unavailable("no node answers")

    def records(self, name: str) -> list[tuple[int, bytes]]:
        """(partition, value) of all."""
        return [
            (number, value or b"")
            for number in range(self.topics[name].partitions)
            for _, data in self.parts[name, number].stored
            for value in RecordBatch(data).values()
        ]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class SimulatedLog:
    """Implements `PartitionLog` of a leader, and `PartitionReader` over whichever one."""

    def __init__(self, broker: SimulatedBroker, name: str, number: int) -> None:
        self._broker, self._world = broker, broker.world
        self._place = (name, number)
        self._part = broker.world.parts[name, number]

    @property
    def log_start_offset(self) -> Offset:
        return Offset(0)

    @property
    def high_watermark(self) -> Offset:
        return Offset(self._part.known_end)

    @property
    def log_end_offset(self) -> Offset:
        waiting = sum(each.header.last_offset_delta + 1 for each in self._part.pending)
        return Offset(self._part.end + waiting)

    def status(self) -> PartitionStatus:
        return PartitionStatus(self._place[1], "online", 0, 0, 0, 0, 0)

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        each = Pending(batch, header, asyncio.get_running_loop().create_future())
        self._part.pending.append(each)
        self._world.later(self._world.dice.uniform(0, APPEND_MAX_S), lambda: self._commit(each))
        return each.done

    def _commit(self, last: Pending) -> None:
        """All up to this one: appends of a partition end in order."""
        part = self._part
        while last in part.pending:
            each = part.pending.pop(0)
            result = part.commit(each)
            part.known_end = part.end
            if not each.done.done():
                each.done.set_result(result)
        for broker in self._world.brokers.values():
            broker.readable(self._place[0])

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        part = self._part
        if not 0 <= offset <= part.end:
            raise OffsetOutOfRange(f"{offset} of {self._place}")
        until_s = asyncio.get_running_loop().time() + wait_ms / 1000
        while (  # noqa: ASYNC110  in virtual time
            offset >= part.known_end and asyncio.get_running_loop().time() < until_s
        ):
            await asyncio.sleep(0.02)
        data, following = b"", offset
        for header, batch in part.stored:
            if offset <= header.last_offset < part.known_end and (
                not data or len(data) + len(batch) <= bytes_max
            ):
                data, following = data + batch, Offset(header.last_offset + 1)
        return FetchResult(data, following, self.high_watermark, Offset(0))


class SimulatedReader:
    """Implements `PartitionReader`."""

    def __init__(self, broker: SimulatedBroker, name: str, number: int) -> None:
        self._world, self._place = broker.world, (name, number)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        await asyncio.sleep(self._world.dice.uniform(0, 0.02))
        log = await self._world.leader_log(*self._place)
        return await log.fetch(offset, bytes_max=bytes_max, wait_ms=wait_ms)

    async def bounds(self) -> tuple[Offset, Offset]:
        log = await self._world.leader_log(*self._place)
        return log.log_start_offset, log.high_watermark

    async def log_end(self) -> Offset:
        return (await self._world.leader_log(*self._place)).log_end_offset

    async def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> AppendResult:
        """As a route: again and again until it is answered."""
        while True:
            log = await self._world.leader_log(*self._place)
            try:
                return await log.append(batch, header, acks)
            except LakeMQError:
                continue


class Route:
    """Implements `AppendTarget`."""

    def __init__(self, reader: SimulatedReader) -> None:
        self._reader = reader

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        return asyncio.ensure_future(self._reader.append(batch, header, acks))


class SimulatedBroker:
    """Implements `Broker` on one node."""

    cluster_id = "simulated"

    def __init__(self, world: World, node_id: str) -> None:
        self.world, self.node_id = world, node_id
        self.alive = True
        self._known = dict(world.topics)
        self._topic_watchers: list[Callable[[str, TopicInfo | None], None]] = []
        self._taps: list[tuple[str, Callable[[list[object]], None]]] = []
        world.brokers[node_id] = self

    def learn(self, info: TopicInfo) -> None:
        known = self._known.get(info.name)
        if self.alive and (known is None or known.revision < info.revision):
            self._known[info.name] = info
            for told in tuple(self._topic_watchers):
                told(info.name, info)

    def readable(self, name: str) -> None:
        for topic, tap in tuple(self._taps):
            if topic == name and self.alive:
                tap([])

    # -- the port

    def topics(self) -> list[TopicInfo]:
        return list(self._known.values())

    def topic(self, name: str) -> TopicInfo:
        if name not in self._known:
            raise UnknownTopic(name)
        return self._known[name]

    def topic_defaults(self) -> TopicConfig:
        return TopicConfig()

    async def create_topic(
        self, name: str, partitions: int | None = None, config: TopicConfig | None = None
    ) -> TopicInfo:
        await asyncio.sleep(self.world.dice.uniform(0, 0.01))
        return await self.ensure_topic(name, partitions)

    async def ensure_topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        await asyncio.sleep(0)
        return self.world.topics.get(name) or self.world.create(name, partitions or 1)

    def serves(self, name: str, number: int) -> bool:
        known = leadership(self.topic(name), number)
        true = leadership(self.world.topics[name], number)
        same = (known.leader, known.epoch) == (true.leader, true.epoch)
        return self.alive and same and true.leader == self.node_id

    def partition(self, name: str, number: int, leader_epoch: int = 0) -> SimulatedLog:
        check_partition(self.topic(name), number)
        if not self.serves(name, number):
            known = leadership(self.topic(name), number)
            raise NotLeader(f"{name}/{number}", leader=known.leader or "", epoch=known.epoch)
        return SimulatedLog(self, name, number)

    def reader(self, name: str, number: int) -> SimulatedReader:
        check_partition(self.topic(name), number)
        return SimulatedReader(self, name, number)

    def route(self, name: str, number: int) -> Route:
        return Route(self.reader(name, number))

    def readable_end(self, name: str, number: int) -> None:
        """No replica is read here."""

    def watch_topics(self, told: Callable[[str, TopicInfo | None], None]) -> Callable[[], None]:
        self._topic_watchers.append(told)
        return lambda: self._topic_watchers.remove(told)

    def watch_serving(self, told: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def tap(self, name: str, tap: Callable[[list[object]], None]) -> Callable[[], None]:
        self._taps.append((name, tap))
        return lambda: self._taps.remove((name, tap))

    def authorize(self, *given: object) -> None:
        pass

    def nodes(self) -> list[NodeInfo]:
        return []

    async def allocate_producer_id(self, principal: object = None) -> int:
        await asyncio.sleep(0)
        self.world.producer_ids += 1
        return self.world.producer_ids
