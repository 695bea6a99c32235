"""Goal: a subscription to `$replay/...` gets every record once and in order, whatever is published
while it reads, however slow the client is, and whenever its connection or the broker ends.

Method: one subscriber with a session of its own over two topics; a fetch from storage takes two
steps, so that commits, lost connections and crashes come in between. Drawn from one seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Acknowledgement,
    Filter,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
)
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench
from tests.support.seeds import seeds

KEPT = Properties(session_expiry_s=10_000)


class World:
    def __init__(self, seed: int, qos: int, *, faults: bool) -> None:
        self.random = random.Random(seed)
        self.qos = qos
        self.faults = faults
        window = self.random.choice((1, 3, 20, 1000))
        self.bench = CrashBench(
            delivery=DeliveryLimits(inflight_max=window, queue_count_max=100_000),
            bindings=(Binding("a/#", "a", stores_qos_0=True), Binding("b/#", "b")),
        )
        self.topics = self.random.choice(("ab", "abbbbbbbbb", "aaaaaaaaab"))
        self.numbers = {"a": 0, "b": 0}
        self.device: Device | None = None
        self.fetches: deque[Callable[[], None]] = deque()
        self.owed: list[Acknowledgement] = []
        self.unreleased: set[int] = set()
        self.taken: dict[str, list[int]] = {"a": [], "b": []}
        self.subscribed = False
        self.connections = 0
        self.publisher = self.bench.connect("p", version=V5)

    # -- moves

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            topic = self.random.choice(self.topics)
            number = self.numbers[topic]
            self.numbers[topic] += 1
            name = f"{topic}/{number % 3}"
            packet_id = 1 + sum(self.numbers.values())
            self.publisher.send(Publish(name, b"%d" % number, 2, packet_id=packet_id))
            self.publisher.send(Publish("other", b"is not stored"))
        self.bench.write_records()

    def connect(self) -> None:
        if self.device is not None:
            return
        self.owed.clear()
        self.device = self.bench.connect("d", version=V5, clean=False, properties=KEPT)
        self.connections += 1
        wanted = (Filter("$replay/earliest/#", self.qos),)  # again after each connect
        self.device.send(Subscribe(1, wanted))

    def lose(self) -> None:
        if self.faults and self.device is not None and self.subscribed:
            self.device.lose()
            self.device = None

    def crash(self) -> None:
        if self.faults and self.subscribed:
            self.bench.crash()
            self.fetches.clear()
            self.device = None
            self.publisher = self.bench.connect("p", version=V5)

    def begin_read(self) -> None:
        finish = self.bench.begin_read()
        if finish is not None:
            self.fetches.append(finish)

    def finish_read(self) -> None:
        if self.fetches:
            self.fetches.popleft()()

    def read(self) -> None:
        if self.device is None:
            return
        self.bench.settle_sessions()
        self.bench.load_messages()
        for packet in self.device.decoded():
            match packet:
                case Publish(qos=0) | Publish(qos=1):
                    self._take(packet)
                    if packet.qos:
                        self.owed.append(Acknowledgement(PacketType.PUBACK, packet.packet_id))
                case Publish():
                    if packet.packet_id not in self.unreleased:
                        self._take(packet)
                    self.unreleased.add(packet.packet_id)
                    self.owed.append(Acknowledgement(PacketType.PUBREC, packet.packet_id))
                case Acknowledgement(type=PacketType.PUBREL):
                    self.unreleased.discard(packet.packet_id)
                    self.owed.append(Acknowledgement(PacketType.PUBCOMP, packet.packet_id))
                case Suback():
                    self.subscribed = True

    def _take(self, packet: Publish) -> None:
        if packet.topic != "other":
            self.taken[packet.topic[0]].append(int(packet.payload))

    def answer(self) -> None:
        if self.device is not None and self.owed:
            self.device.send(self.owed.pop(0))

    def block(self) -> None:
        if self.device is not None and self.qos == 0:
            connection = self.device.connection
            if connection.blocked:
                connection.unblocked(self.bench.now_ms)
            elif not self.live:  # a live subscription loses QoS 0 then, as it should
                connection.blocked = True

    @property
    def live(self) -> bool:
        """Whether some of what comes is delivered as it comes."""
        session = self.bench.hub.sessions["d"]
        histories = (session.histories or {}).values()
        return not histories or any(
            cursor.live for one in histories for cursor in one.cursors.values()
        )

    def run(self, steps: int) -> None:
        for _ in range(self.random.randrange(40)):
            self.publish()
        self.connect()
        moves: list[tuple[int, Callable[[], object]]] = [
            (3, self.publish), (6, self.begin_read), (6, self.finish_read), (8, self.read),
            (14, self.answer), (1, self.bench.checkpoint), (1, self.lose), (2, self.connect),
            (1, self.crash), (0 if self.faults else 1, self.block),
        ]  # fmt: skip
        weights = [weight for weight, _ in moves]
        for _ in range(steps):
            self.random.choices(moves, weights)[0][1]()
        self.finish()

    def finish(self) -> None:
        for _ in range(30_000):
            self.connect()
            if self.device is not None and self.device.connection.blocked:
                self.device.connection.unblocked(self.bench.now_ms)
            self.begin_read()
            self.finish_read()
            self.read()
            self.answer()
            session = self.bench.hub.sessions["d"]
            if not (session.histories or session.outbound.load or self.owed or self.fetches):
                return
        raise AssertionError("does not come to rest")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("seed", seeds(40, divisor=4))
def test_without_faults_everything_comes_once(seed: int, qos: int) -> None:
    world = World(seed, qos, faults=False)
    world.run(400)
    for topic in "ab":
        expected = list(range(world.numbers[topic]))
        assert world.taken[topic] == expected, f"seed {seed}, QoS {qos}, topic {topic}"
    assert world.bench.hub.index.match("a/x").targets


@pytest.mark.parametrize("seed", seeds(40))
def test_with_faults_qos_2_is_exactly_once(seed: int) -> None:
    world = World(seed, 2, faults=True)
    world.run(600)
    for topic in "ab":
        expected = list(range(world.numbers[topic]))
        assert world.taken[topic] == expected, f"seed {seed}, topic {topic}"


@pytest.mark.parametrize("seed", seeds(40, divisor=2))
def test_with_faults_qos_1_is_at_least_once(seed: int) -> None:
    world = World(seed, 1, faults=True)
    world.run(600)
    for topic in "ab":
        expected = list(range(world.numbers[topic]))
        firsts = list(dict.fromkeys(world.taken[topic]))
        assert firsts == expected, f"seed {seed}, topic {topic}"


def test_runs_are_worth_something() -> None:
    """Clients come back often, the broker crashes, histories are long."""
    worlds = [World(seed, 2, faults=True) for seed in range(5)]
    for world in worlds:
        world.run(600)
    assert sum(world.bench.crashes for world in worlds) >= 5
    assert sum(world.connections for world in worlds) >= 25
    assert all(sum(world.numbers.values()) > 100 for world in worlds)
