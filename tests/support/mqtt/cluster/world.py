"""A cluster whose nodes are whole MQTT engines: a catalog, partitions with replicas, links between
nodes, processes that die and stand still. A seed drives all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.errors import NotLeader
from lakemq.broker_core.api.limits.connection_limits import ConnectionLimiter, ConnectionLimits
from lakemq.broker_core.api.state.internal_topics import is_internal, is_node_own
from lakemq.broker_core.api.types import (
    CommittedBatch,
    Leadership,
    NodeInfo,
    Offset,
    TopicConfig,
    TopicInfo,
)
from lakemq.plugins.mqtt.config import ListenerSettings, MqttSettings
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.server.links import SocketLink
from tests.support.cluster import simulated_brokers
from tests.support.mqtt.cluster.brokers import Broker, TimedPart, taken
from tests.support.mqtt.cluster.lives import Life
from tests.support.mqtt.cluster.network import SimChannels, Socket

NAMES = ("a", "b", "c")
TOPIC = "mqtt"
PARTITIONS = 3
SESSION_S = 2.0
"""After so long without a heartbeat a node is fenced."""
LEASE_S = 1.5
HEARTBEAT_S = 0.1
LEARN_MAX_S = 0.3
START_MS = 1_800_000_000_000


def now_ms() -> int:
    return START_MS + int(asyncio.get_running_loop().time() * 1000)


class Clock:
    """In place of the module `time`."""

    @staticmethod
    def monotonic_ns() -> int:
        return now_ms() * 1_000_000

    time_ns = monotonic_ns


class Listener:
    """As `LinkListener`."""

    name = "mqtt"
    settings = ListenerSettings(name="mqtt")
    throttle = None

    def __init__(self, engine: MqttEngine) -> None:
        self.engine = engine
        self.trusted: list[Any] = []
        self.limiter = ConnectionLimiter(ConnectionLimits())
        self.waiting: set[SocketLink] = set()


@dataclass
class Node:
    """A node in its newest life."""

    name: str
    life: Life
    broker: Broker
    engine: MqttEngine
    listener: Listener
    life_number: int
    """Its broker epoch."""
    state: str = "active"
    isolated: bool = False
    """It reaches neither other nodes nor the MetaService; clients it does."""
    heard_s: float = 0.0
    open: bool = False
    sockets: list[Socket] = field(default_factory=list)

    async def start(self) -> None:
        await self.engine.open()
        self.open = True


class World(simulated_brokers.World):
    """Made inside the loop."""

    brokers: dict[str, Broker]  # type: ignore[assignment]
    parts: dict[tuple[str, int], TimedPart]  # type: ignore[assignment]

    def __init__(self, rng: random.Random, settings: MqttSettings) -> None:
        super().__init__(rng, NAMES)
        self.rng = rng
        self.settings = settings
        self.delay_max_s = rng.choice((0.005, 0.02, 0.1))
        """Of a message between nodes, or a node and a client."""
        self.lag_max_s = rng.choice((0.01, 0.1, 0.3))
        """How late a follower knows what is committed."""
        self.context = copy_context()
        self.nodes: dict[str, Node] = {}
        self.lives = 0
        self.channels = SimChannels(self)
        self.own: dict[tuple[str, str], TimedPart] = {}
        self.producers: dict[int, Broker] = {}
        """Producer id -> whose it is."""
        self.ends: dict[tuple[str, str, int], int] = {}
        """(node, topic, partition) -> where the replica is."""
        self._advancing: set[tuple[str, str, int]] = set()
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self.killed_s: list[float] = []
        self.now_ms = now_ms
        for name in NAMES:
            self.start(name)
        self._meta = asyncio.create_task(self._heartbeats())

    # -- what happens when

    def later(self, after_s: float, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + after_s, work, context=self.context)

    def call(self, node: str, call: Callable[..., Any], *args: Any) -> None:
        """As the node's own."""
        self.nodes[node].life.call(call, *args)

    def peer(self, name: str) -> Peer:
        return Peer(name, self.nodes[name].life_number)

    def runs(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.life.alive and not node.life.paused

    def commits(self, name: str, topic: str) -> bool:
        """Whether a node that leads a partition commits: it does not stand still, and its followers
        hear of it."""
        return self.runs(name) and (is_node_own(topic) or not self.nodes[name].isolated)

    def linked(self, one: str, other: str) -> bool:
        nodes = [self.nodes.get(one), self.nodes.get(other)]
        return all(each is not None and each.life.alive and not each.isolated for each in nodes)

    def reaches_clients(self, name: str) -> bool:
        return self.nodes[name].life.alive

    def leased(self, name: str) -> bool:
        node = self.nodes.get(name)
        now_s = asyncio.get_running_loop().time()
        return (
            node is not None
            and node.life.alive
            and node.state == "active"
            and now_s - node.heard_s < LEASE_S
        )

    # -- lives of nodes

    def start(self, name: str) -> None:
        """The process starts, and registers."""
        self.lives += 1
        life = Life()

        def make() -> Node:
            broker = Broker(self, name)
            engine = MqttEngine(self.settings, broker)  # type: ignore[arg-type]
            engine.arrivals.slices._clock = asyncio.get_running_loop().time
            return Node(name, life, broker, engine, Listener(engine), self.lives)

        node = self.nodes[name] = life.context.run(make)
        node.heard_s = asyncio.get_running_loop().time()
        for topic, info in list(self.topics.items()):
            for number, held in enumerate(info.leaders):
                if held.leader == name:
                    self.move(topic, number, name)
        node.broker._known = dict(self.topics)
        node.broker.known_nodes = self._view()
        life.begin(node.start())
        self._tell_nodes()
        for key in [each for each in self.ends if each[0] == name]:
            self._advance_soon(*key)

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        self.killed_s.append(asyncio.get_running_loop().time())
        node.broker.alive = False
        node.life.kill()
        for (owner, _), part in self.own.items():
            if owner == name:
                kept, part.pending = part.pending, []
                for each in kept[: self.rng.randint(0, len(kept))]:
                    part.commit(each)
                part.known_end = part.end
        for socket in node.sockets:
            self.later(self.rng.uniform(0, 0.1), lambda told=socket._client: told(None))
        for key in [each for each in self.channels.ends if each[1] == name]:
            del self.channels.ends[key]
        self.channels.changed(name)

    def isolate(self, name: str, isolated: bool) -> None:
        node = self.nodes[name]
        if node.isolated == isolated:
            return
        node.isolated = isolated
        self.channels.changed(name)
        if not isolated and node.life.alive:
            self._tell(name)

    def connect(self, name: str, client: Callable[[bytes | None], None]) -> Socket:
        """A client's connection."""
        node = self.nodes[name]
        socket = Socket(self, name, client)

        def accept() -> None:
            link = SocketLink(node.listener, node.listener.limiter.admit("127.0.0.1"))  # type: ignore[arg-type]
            socket.link = link
            link.connection_made(socket)

        node.sockets.append(socket)
        node.life.call(accept)
        return socket

    # -- the MetaService

    def _view(self) -> tuple[NodeInfo, ...]:
        return tuple(
            NodeInfo(each.name, {"peer": "x"}, "", "1", each.state, each.life_number)
            for each in self.nodes.values()
        )

    def _tell_nodes(self) -> None:
        for name in self.nodes:
            self.later(self.rng.uniform(0, LEARN_MAX_S), lambda told=name: self._tell(told))

    def _tell(self, name: str) -> None:
        node = self.nodes[name]
        if not node.life.alive or node.isolated:
            return
        node.life.call(node.broker.learn_nodes, self._view())
        for info in list(self.topics.values()):
            known = node.broker._known.get(info.name)
            if known is None or known.revision < info.revision:
                node.life.call(node.broker.learn, info)

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now_s = asyncio.get_running_loop().time()
            for node in list(self.nodes.values()):
                if self.runs(node.name) and not node.isolated:
                    self._hear(node, now_s)
                elif node.state == "active" and now_s - node.heard_s > SESSION_S:
                    self._fence(node)

    def _hear(self, node: Node, now_s: float) -> None:
        lost, node.heard_s = now_s - node.heard_s >= LEASE_S, now_s
        if node.state != "active":
            self.lives += 1
            node.state, node.life_number = "active", self.lives
            self.channels.registered_again(node.name)
            self._tell_nodes()
        if lost:
            node.life.call(node.broker.lease_changed)

    def _fence(self, node: Node) -> None:
        node.state = "fenced"
        for topic, info in list(self.topics.items()):
            for number, held in enumerate(info.leaders):
                others = [each for each in held.replicas if self.nodes[each].state == "active"]
                if held.leader == node.name and others:
                    self.move(topic, number, self.rng.choice(others))
        self._tell_nodes()
        if node.life.alive:
            node.life.call(node.broker.lease_changed)

    # -- partitions

    def create(self, name: str, partitions: int) -> TopicInfo:
        if is_node_own(name):
            info = TopicInfo(name, f"{len(self.topics) + 1:032x}", 1, TopicConfig(), 1)
        else:
            leaders = tuple(self._placed(name) for _ in range(partitions))
            info = TopicInfo(
                name, f"{len(self.topics) + 1:032x}", partitions, TopicConfig(), 1, leaders
            )
        self.topics[name] = info
        for number, held in enumerate(info.leaders):
            self.parts[name, number] = TimedPart()
            for node in held.replicas:
                self.ends[node, name, number] = 0
        self._tell_nodes()
        return info

    def _placed(self, name: str) -> Leadership:
        # Of records each node follows some partitions by feeds.
        count = len(NAMES) if is_internal(name) else 2
        replicas = tuple(self.rng.sample(NAMES, count))
        return Leadership(replicas[0], 1, replicas, replicas)

    def part_of(self, node: str, name: str, number: int) -> TimedPart:
        if is_node_own(name):
            return self.own.setdefault((node, name), TimedPart())
        return self.parts[name, number]

    def _change(self, name: str, number: int, held: Leadership) -> None:
        info = self.topics[name]
        leaders = (*info.leaders[:number], held, *info.leaders[number + 1 :])
        self.topics[name] = replace(info, leaders=leaders, revision=info.revision + 1)
        for node in NAMES:
            if node in self.nodes:
                self.later(self.rng.uniform(0, LEARN_MAX_S), lambda told=node: self._tell(told))

    def move(self, name: str, number: int, leader: str) -> None:
        """As `World.move` there; nodes learn of it one by one."""
        info, part = self.topics[name], self.parts[name, number]
        held = info.leaders[number]
        if leader not in held.replicas:
            return
        pending, part.pending = part.pending, []
        for each in pending[: self.rng.randint(0, len(pending))]:
            part.commit(each)
        for each in pending:
            if not each.done.done():
                each.done.set_exception(NotLeader("it has moved"))
                each.done.exception()
        late = self.rng.random() < 0.5 and leader != held.leader
        part.known_end = self.ends[leader, name, number] if late else part.end

        def caught_up() -> None:
            part.known_end = part.end
            self.committed(leader, name, number)

        self.later(self.rng.uniform(0, LEARN_MAX_S), caught_up)
        self._change(name, number, held._replace(leader=leader, epoch=held.epoch + 1))

    def reassign(self, name: str, number: int) -> None:
        """Another node has a replica, in place of one that does not lead."""
        held = self.topics[name].leaders[number]
        free = [each for each in NAMES if each not in held.replicas]
        if held.leader is None or not free:
            return
        new = self.rng.choice(free)
        for node in held.replicas:
            if node != held.leader:
                self.ends.pop((node, name, number), None)
        self.ends[new, name, number] = 0
        replicas = (held.leader, new)
        self._change(name, number, held._replace(replicas=replicas, in_sync=replicas))
        self._advance_soon(new, name, number)

    def replica_end(self, node: str, name: str, number: int) -> Offset | None:
        if is_node_own(name):
            return Offset(self.part_of(node, name, number).end)
        end = self.ends.get((node, name, number))
        return None if end is None else Offset(end)

    def committed(self, leader: str, name: str, number: int) -> None:
        """Something became readable at the leader."""
        if is_node_own(name):
            return
        part = self.parts[name, number]
        for waiting in self._waiting.pop(id(part), ()):
            if not waiting.done():
                waiting.set_result(None)
        if (leader, name, number) in self.ends:
            self._advance(leader, name, number, part.known_end)
        for node in self.topics[name].leaders[number].replicas:
            if node != leader:
                self._advance_soon(node, name, number)

    def _advance_soon(self, node: str, name: str, number: int, least_s: float = 0.0) -> None:
        key = (node, name, number)
        if key not in self._advancing:
            self._advancing.add(key)
            after_s = least_s + self.rng.uniform(0, self.lag_max_s)
            self.later(after_s, lambda: self._follow(*key))

    def _follow(self, node: str, name: str, number: int) -> None:
        self._advancing.discard((node, name, number))
        leader = self.topics[name].leaders[number].leader or ""
        if not self.nodes[node].life.alive or (node, name, number) not in self.ends:
            return
        if not self.runs(node) or (node != leader and not self.linked(node, leader)):
            self._advance_soon(node, name, number, 0.2)
            return
        self._advance(node, name, number, self.parts[name, number].end)

    def _advance(self, node: str, name: str, number: int, end: int) -> None:
        key = (node, name, number)
        start = self.ends[key]
        if end <= start or not self.nodes[node].life.alive:
            return
        self.ends[key] = end
        batches = taken(self.parts[name, number], start, end, (name, number))
        self.call(node, self.nodes[node].broker.deliver, name, batches)

    async def grown(self, part: TimedPart, wait_s: float) -> None:
        """Until something is committed, for so long at most."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id(part), []).append(waiting)
        await asyncio.wait([waiting], timeout=wait_s)

    def batches(self, name: str, number: int) -> list[CommittedBatch]:
        """All that is committed."""
        part = self.parts[name, number]
        return taken(part, 0, part.end, (name, number))
