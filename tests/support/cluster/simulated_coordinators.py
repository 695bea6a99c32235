"""Nodes with the real transaction coordinator and the real participant of offsets, over logs, a
catalog and a network that a seed drives: leaderships move, nodes end, answers are lost, calls come
twice and late. Time is that of the loop (`virtual_time`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lakemq.broker_core.api.errors import (
    LakeMQError,
    MemberFenced,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit
from lakemq.broker_core.api.leadership import leads
from lakemq.broker_core.api.records.batch import BatchHeader, RecordBatch, stamp
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    FetchResult,
    Leadership,
    NodeInfo,
    Offset,
    Principal,
    TopicConfig,
    TopicInfo,
    TopicPartition,
)
from lakemq.broker_core.configuration.settings import TransactionSettings
from lakemq.broker_core.groups.offset_effect import OFFSETS, OffsetsParticipant
from lakemq.broker_core.groups.offset_log import OffsetLog, StoredOffsets
from lakemq.broker_core.groups.offset_table import OFFSETS_TOPIC
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.broker_core.transactions.formats import STAGED_TOPIC
from lakemq.broker_core.transactions.owners import OwnerRuntime
from lakemq.broker_core.transactions.targets import METHOD as APPENDED
from lakemq.broker_core.transactions.targets import AppendedService
from lakemq.plugins.journal.segment.producers import ProducerTable

NAMES = ("n1", "n2", "n3")
INPUT, OUTPUT = TopicPartition("in", 0), "out"
OUTPUTS = 2
SETTINGS = TransactionSettings(transaction_timeout_ms=20_000, commit_wait_ms=2_000)
Place = tuple[str, int]


@dataclass
class SharedLog:
    """One partition, as the cluster has it."""

    leader: str
    epoch: int = 1
    start: int = 0
    committed: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    pending: list[tuple[BatchHeader, bytes, asyncio.Future[AppendResult]]] = field(
        default_factory=list
    )
    producers: ProducerTable = field(default_factory=ProducerTable)

    @property
    def mark(self) -> int:
        return self.committed[-1][0].last_offset + 1 if self.committed else self.start

    @property
    def end(self) -> int:
        return self.pending[-1][0].last_offset + 1 if self.pending else self.mark


class World:
    """The cluster."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topics: dict[str, TopicInfo] = {}
        self.logs: dict[Place, SharedLog] = {}
        self.nodes: dict[str, Node] = {}
        self.calm = False
        self.strikes = False
        """Whether what a commit under way depends on moves on purpose."""
        self.producer_ids = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.counts = dict.fromkeys(("elected", "ended", "commits", "voided", "lost"), 0)
        self.make(OUTPUT, OUTPUTS)
        self.make("in", 1)

    def chance(self, rate: float) -> bool:
        return not self.calm and self.rng.random() < rate

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def make(self, name: str, partitions: int) -> TopicInfo:
        leaders = []
        for number in range(partitions):
            leader = self.rng.choice(NAMES)
            self.logs[name, number] = SharedLog(leader)
            leaders.append(Leadership(leader, 1, NAMES, NAMES))
        info = TopicInfo(name, f"{len(self.topics):032x}", partitions, leaders=tuple(leaders))
        self.topics[name] = info
        for node in self.nodes.values():
            node.broker.learn(info)
        return info

    def elect(self, place: Place, leader: str) -> None:
        """The former leader's lease is over; of what it has not committed a prefix was copied."""
        log = self.logs[place]
        kept = self.rng.randint(0, len(log.pending))
        log.committed += [(header, data) for header, data, _ in log.pending[:kept]]
        dropped, log.pending = log.pending, []
        log.leader, log.epoch = leader, log.epoch + 1
        log.producers = ProducerTable()
        for header, _ in log.committed:
            if header.producer_id >= 0:
                log.producers.note(header, 0)
        for _, _, future in dropped:
            if not future.done():
                kind = self.rng.choice([NotLeader, OutcomeUnknown])
                future.set_exception(kind("the leadership has ended"))
                future.exception()
        name, number = place
        info = self.topics[name]
        now = Leadership(leader, log.epoch, NAMES, NAMES)
        listed = (*info.leaders[:number], now, *info.leaders[number + 1 :])
        self.topics[name] = replace(info, leaders=listed)
        self.counts["elected"] += 1
        for node in self.nodes.values():
            self.spawn(self._tell(node, name))

    async def _tell(self, node: Node, name: str) -> None:
        await asyncio.sleep(self.rng.choice([0, 0.01, 0.1, 0.5]))
        node.broker.learn(self.topics[name])

    def commit_one(self, place: Place) -> None:
        log = self.logs[place]
        if log.pending:
            header, data, future = log.pending.pop(0)
            log.committed.append((header, data))
            if not future.done():
                if self.chance(0.03):
                    self.counts["lost"] += 1
                    future.set_exception(OutcomeUnknown("not acknowledged in time"))
                    future.exception()
                else:
                    base, last = Offset(header.base_offset), Offset(header.last_offset)
                    future.set_result(AppendResult(base, last, Acks.REPLICATED))

    def append(
        self, place: Place, batch: bytes, header: BatchHeader
    ) -> asyncio.Future[AppendResult]:
        """At the leader."""
        log = self.logs[place]
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        try:
            known = log.producers.check(header) if header.producer_id >= 0 else None
        except LakeMQError as error:
            future.set_exception(error)
            return future
        if known is not None:
            offsets = Offset(known.base_offset), Offset(known.last_offset)
            future.set_result(AppendResult(*offsets, Acks.REPLICATED, True))
            return future
        stamped, data = stamp(batch, header, log.end, log.epoch)
        if header.producer_id >= 0:
            log.producers.note(stamped, 0)
        log.pending.append((stamped, data, future))
        wait_s = self.rng.choice([0.0, 0.001, 0.01, 0.05])
        asyncio.get_running_loop().call_later(wait_s, self.commit_one, place)
        return future

    def values(self, topic: str) -> list[bytes]:
        return [
            value or b""
            for (name, _), log in sorted(self.logs.items())
            if name == topic
            for _, data in log.committed
            for value in RecordBatch(data).values()
        ]

    async def call(self, caller: str, node: str, method: str, request: bytes) -> bytes:
        await asyncio.sleep(self.rng.choice([0, 0.001, 0.02]))
        if self.chance(0.03):
            raise OutcomeUnknown(f"{node} has not answered {caller}")
        if self.chance(0.03):  # and once more, late
            self.spawn(self._late(node, method, request))
        answer = await self.nodes[node].answer(method, request)
        if self.chance(0.03):
            raise OutcomeUnknown(f"{node} has not answered {caller}")
        return answer

    async def _late(self, node: str, method: str, request: bytes) -> None:
        await asyncio.sleep(self.rng.choice([0.01, 0.3, 2.0]))
        with suppress(LakeMQError):
            await self.nodes[node].answer(method, request)


class View:
    """A partition as its leader serves it. Implements the `PartitionLog` port, as far as needed."""

    def __init__(self, broker: SimBroker, place: Place) -> None:
        self._broker, self._place = broker, place
        self._log = broker.world.logs[place]

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self._log.start)

    @property
    def high_watermark(self) -> Offset:
        return Offset(self._log.mark)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self._log.end)

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        self._broker.partition(*self._place)
        return self._broker.world.append(self._place, batch, header)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        self._broker.partition(*self._place)
        if offset >= self._log.mark:
            await asyncio.sleep(max(wait_ms, 1) / 1000)
        self._broker.partition(*self._place)
        data, following = b"", offset
        for header, batch in self._log.committed:
            if header.last_offset >= offset and (not data or len(data) < bytes_max):
                data, following = data + batch, Offset(header.last_offset + 1)
        return FetchResult(data, following, self.high_watermark, self.log_start_offset)

    async def delete_records(self, before: Offset) -> Offset:
        log = self._log
        log.start = max(log.start, min(before, log.mark))
        # Other replicas may keep for ever what this one deletes; who leads next reads all of it.
        if not self._broker.world.chance(0.5):
            log.committed = [each for each in log.committed if each[0].last_offset >= log.start]
        return Offset(log.start)


class SimBroker:
    """Implements the `Broker` port, as far as needed, for one life of one node."""

    cluster_id = "simulated"

    def __init__(self, world: World, node_id: str) -> None:
        self.world, self.node_id = world, node_id
        self.transactions: Any = None
        self._known = dict(world.topics)
        self._watchers: list[Callable[[str, TopicInfo | None], None]] = []

    def learn(self, info: TopicInfo) -> None:
        known = self._known.get(info.name)
        if known is None or sum(each.epoch for each in known.leaders) < sum(
            each.epoch for each in info.leaders
        ):
            self._known[info.name] = info
            for watcher in list(self._watchers):
                watcher(info.name, info)

    def topic(self, name: str) -> TopicInfo:
        if name not in self._known:
            raise UnknownTopic(name)
        return self._known[name]

    def find_id(self, topic_id: str) -> TopicInfo | None:
        return next((each for each in self._known.values() if each.topic_id == topic_id), None)

    def topic_defaults(self) -> TopicConfig:
        return TopicConfig()

    async def create_topic(
        self, name: str, partitions: int | None = None, config: TopicConfig | None = None
    ) -> TopicInfo:
        if name not in self.world.topics:
            self.world.make(name, partitions or 1)
        self.learn(self.world.topics[name])
        return self.topic(name)

    def watch_topics(
        self, on_change: Callable[[str, TopicInfo | None], None]
    ) -> Callable[[], None]:
        self._watchers.append(on_change)
        return lambda: self._watchers.remove(on_change)

    def watch_serving(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def nodes(self) -> list[NodeInfo]:
        return [NodeInfo(name, {}, "", "", "active") for name in NAMES]

    def serves(self, topic: str, partition: int) -> bool:
        """As the catalog is known here, and with the lease."""
        info, log = self.topic(topic), self.world.logs[topic, partition]
        held = info.leaders[partition]
        return (
            leads(self.node_id, info, partition)
            and log.leader == self.node_id
            and held.epoch == log.epoch
        )

    def partition(self, topic: str, partition: int, leader_epoch: int = 0) -> View:
        if not self.serves(topic, partition):
            held = self.topic(topic).leaders[partition]
            leader = "" if held.leader == self.node_id else held.leader or ""
            raise NotLeader(f"{topic}/{partition}", leader=leader, epoch=held.epoch)
        return View(self, (topic, partition))

    log = partition

    def readable_end(self, topic: str, partition: int) -> Offset | None:
        log = self.world.logs[topic, partition]
        return self.world.rng.choice([None, Offset(log.start), Offset(log.mark)])

    def route(self, topic: str, partition: int) -> SimBroker:
        self._routed = (topic, partition)
        return _Route(self.world, (topic, partition))  # type: ignore[return-value]

    def authorize(self, *_: object) -> None:
        pass

    async def allocate_producer_id(self, principal: Principal | None = None) -> int:
        self.world.producer_ids += 1
        return self.world.producer_ids


class _Route:
    def __init__(self, world: World, place: Place) -> None:
        self._world, self._place = world, place

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        if self._world.chance(0.02):
            failed: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
            failed.set_exception(NotLeader("no node has led it for long"))
            return failed
        return self._world.append(self._place, batch, header)


class Group:
    """The group that reads the input: its only partition belongs to who joined last. As
    `GroupCommits`, as far as the participant needs it."""

    name = "g"

    def __init__(self, broker: SimBroker) -> None:
        self.offsets = OffsetLog(broker)  # type: ignore[arg-type]
        self._broker = broker
        self.residents = Residents(broker, self.offsets.topic, self)  # type: ignore[arg-type]
        self._epoch = self._owner_epoch = 0

    async def load(self, partition: int, end: int) -> StoredOffsets:
        return await self.offsets.load(partition, end)

    def serve(self, partition: int, epoch: int, state: StoredOffsets) -> None:
        self.offsets.take(state, now_ms())
        if partition == self.offsets.partition_of(self.name):
            self._epoch, self._owner_epoch = epoch << 32, -1

    def drop(self, partition: int) -> None:
        self.offsets.drop(partition)

    async def arrive(self, name: str) -> None:
        await self.offsets.ensure()
        partition = self.offsets.partition_of(name)
        assert partition is not None
        await self.residents.arrive(partition)

    def is_here(self, name: str) -> bool:
        partition = self.offsets.partition_of(name)
        return partition is None or self.residents.serves(partition)

    def authorize_commit(self, commit: GroupCommit, principal: Principal) -> None:
        pass

    async def join(self) -> tuple[int, int]:
        """(member epoch, offset to read from)."""
        await self.arrive(self.name)
        self._epoch = self._owner_epoch = self._epoch + 1
        committed = self.offsets.table.of(self.name).get(INPUT)
        return self._epoch, committed.offset if committed else 0

    def checked(self, commit: GroupCommit) -> tuple[int, dict[TopicPartition, OffsetToCommit]]:
        partition = self.offsets.partition_of(self.name)
        assert partition is not None
        self.residents.check(partition)
        self.offsets.held.check_free(self.name, [INPUT])
        if commit.member_epoch != self._owner_epoch:
            raise MemberFenced(f"epoch {commit.member_epoch}; it is {self._owner_epoch}")
        return commit.member_epoch, dict(commit.offsets)

    def withdraw(self, name: str, places: Iterable[TopicPartition], member_id: str) -> None:
        self._broker.world.counts["voided"] += 1
        self._owner_epoch = -1


class Node:
    """One life of a node."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.broker = SimBroker(world, name)
        self.coordinator = TransactionCoordinator(
            self.broker,  # type: ignore[arg-type]
            SETTINGS,
            now_ms=now_ms,
            steady_ms=now_ms,
            call=lambda node, method, request, _: world.call(name, node, method, request),
        )
        self.broker.transactions = self.coordinator
        self.group = Group(self.broker)
        self.participant = OffsetsParticipant(self.broker, self.group)  # type: ignore[arg-type]
        self.alive = False

    async def start(self) -> None:
        await self.coordinator.start()
        await self.group.residents.start()
        self.coordinator.register_participant(OFFSETS, self.participant)
        self.participant.start()
        self.alive = True

    async def end(self) -> None:
        """At once, with nothing that it would do at its end."""
        self.alive = False
        for place, log in self.world.logs.items():
            if log.leader == self.name:
                others = [each for each in NAMES if each != self.name]
                self.world.elect(place, self.world.rng.choice(others))
        await self.participant.stop()
        await self.coordinator.stop()
        await self.group.residents.stop()
        self.world.counts["ended"] += 1

    def runtimes(self) -> list[OwnerRuntime]:
        return list(self.coordinator._owners.values())

    def committing(self) -> list[Owner]:
        """Owners whose commit is on its way to be decided, or applied."""
        return [owner for owner, each in self.coordinator._owners.items() if each.busy]

    def owner_place(self, owner: Owner) -> Place:
        return STAGED_TOPIC, self.coordinator._log.partition_of(owner) or 0

    def group_place(self) -> Place:
        return OFFSETS_TOPIC, self.group.offsets.partition_of(Group.name) or 0

    async def answer(self, method: str, request: bytes) -> bytes:
        if not self.alive:
            raise Unavailable(f"{self.name} is away")
        peer: Any = None
        if method == APPENDED:
            return await AppendedService(self.broker).answer(peer, request)  # type: ignore[arg-type]
        return await self.coordinator.participants.answer(peer, request)


def now_ms() -> int:
    """Of the loop."""
    return int(asyncio.get_running_loop().time() * 1000)


def places(world: World) -> list[Place]:
    """All that has a leader."""
    return [each for each in world.logs if each[0] in (OUTPUT, STAGED_TOPIC, OFFSETS_TOPIC)]
