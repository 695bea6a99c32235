"""Goal: over many seeded runs with crashes, lost connections and delays at any point: QoS 2 is
exactly once, QoS 1 at least once, in order; subscriptions, sessions and retained messages stay.

Method: one publisher and one subscriber that keep their sides of the protocol, over a network that
loses what is under way when a connection ends, and a broker that loses what is not durable. Every
step (a packet on its way, an append becoming durable, its confirmation, a crash) is drawn from one
seed.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from lakemq.plugins.mqtt.state import delivery
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Acknowledgement,
    Filter,
    Packet,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
)
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench
from tests.support.seeds import seeds

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
KEPT = Properties(session_expiry_s=10_000)


class Client:
    """A client with a session of its own, on a network that can end at any time."""

    def __init__(self, bench: CrashBench, name: str, version: int) -> None:
        self.bench = bench
        self.name = name
        self.version = version
        self.device: Device | None = None
        self.sending: list[Packet] = []
        """Packets that are on their way to the broker."""
        self.connections = 0

    def connect(self) -> None:
        properties = KEPT if self.version == V5 else Properties()
        self.device = self.bench.connect(
            self.name, version=self.version, clean=False, properties=properties
        )
        present = self.device.connack.session_present  # type: ignore[attr-defined]
        assert present is (self.connections > 0), "the broker forgot a session"
        self.connections += 1
        self.resume()

    def disconnect(self, *, crashed: bool) -> None:
        if self.device is not None and not crashed:
            self.device.lose()
        self.device = None
        self.sending.clear()

    def send_one(self) -> None:
        if self.device is not None and self.sending:
            self.device.send(self.sending.pop(0))

    def read(self) -> None:
        if self.device is None:
            return
        if self.device.closed:
            self.disconnect(crashed=True)
            return
        for packet in self.device.received():
            self.take(packet)

    def resume(self) -> None:
        raise NotImplementedError

    def take(self, packet: Any) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes numbers at QoS 1 and 2, and what is retained."""

    def __init__(self, bench: CrashBench, version: int) -> None:
        super().__init__(bench, "publisher", version)
        self.unfinished: dict[int, tuple[Publish, PacketType]] = {}
        """Packet identifier -> publish, and what is sent for it."""
        self.published: Counter[int] = Counter()
        self.acknowledged: dict[str, int] = {}
        """Retained topic name -> newest number that was acknowledged."""

    def publish(self, random_: random.Random) -> None:
        if self.device is None or len(self.unfinished) >= 8:
            return
        qos = random_.choice((1, 2))
        packet_id = next(n for n in range(1, 20) if n not in self.unfinished)
        number = self.published[qos]
        self.published[qos] += 1
        topic = f"number/{qos}"
        packet = Publish(topic, b"%d" % number, qos, random_.random() < 0.2, packet_id=packet_id)
        self.unfinished[packet_id] = (packet, PacketType.PUBLISH)
        self.sending.append(packet)

    def resume(self) -> None:
        for packet, stage in self.unfinished.values():
            if stage is PUBREL:
                self.sending.append(Acknowledgement(PUBREL, packet.packet_id))
            else:
                again = Publish(
                    packet.topic, packet.payload, packet.qos, packet.retain, True, packet.packet_id
                )
                self.sending.append(again)

    def take(self, packet: Any) -> None:
        assert isinstance(packet, Acknowledgement)
        publish, stage = self.unfinished.get(packet.packet_id, (None, None))
        if packet.type is PUBREC:
            if publish is not None:
                self._acknowledged(publish)
                self.unfinished[packet.packet_id] = (publish, PUBREL)
            self.sending.append(Acknowledgement(PUBREL, packet.packet_id))
        elif publish is not None and packet.type is (PUBACK if publish.qos == 1 else PUBCOMP):
            assert publish.qos == 1 or stage is PUBREL
            self._acknowledged(publish)
            del self.unfinished[packet.packet_id]

    def _acknowledged(self, publish: Publish) -> None:
        if publish.retain:
            number = int(publish.payload)
            newest = max(number, self.acknowledged.get(publish.topic, -1))
            self.acknowledged[publish.topic] = newest


class Subscriber(Client):
    """Takes numbers; knows which QoS 2 identifiers are not released."""

    def __init__(self, bench: CrashBench, version: int) -> None:
        super().__init__(bench, "subscriber", version)
        self.taken: dict[int, list[int]] = {1: [], 2: []}
        self.unreleased: set[int] = set()
        self.subscribed = False

    def resume(self) -> None:
        if not self.subscribed:
            self.sending.append(Subscribe(1, (Filter("number/+", 2),)))

    def take(self, packet: Any) -> None:
        if isinstance(packet, Suback):
            self.subscribed = True
        elif isinstance(packet, Publish):
            if packet.qos == 2:
                if packet.packet_id not in self.unreleased and not packet.retain:
                    self.taken[2].append(int(packet.payload))
                self.unreleased.add(packet.packet_id)
                self.sending.append(Acknowledgement(PUBREC, packet.packet_id))
            else:
                if not packet.retain:
                    self.taken[1].append(int(packet.payload))
                self.sending.append(Acknowledgement(PUBACK, packet.packet_id))
        elif packet.type is PUBREL:
            self.unreleased.discard(packet.packet_id)
            self.sending.append(Acknowledgement(PUBCOMP, packet.packet_id))


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        window = self.random.choice((2, 5, 1000))
        self.bench = CrashBench(delivery=DeliveryLimits(inflight_max=window))
        self.publisher = Publisher(self.bench, self.random.choice((V311, V5)))
        self.subscriber = Subscriber(self.bench, self.random.choice((V311, V5)))
        self.clients: list[Client] = [self.publisher, self.subscriber]

    def run(self, steps: int) -> None:
        self.subscriber.connect()
        while not self.subscriber.subscribed:
            self.subscriber.send_one()
            self.bench.settle()
            self.subscriber.read()
        self.publisher.connect()
        bench, publisher, subscriber = self.bench, self.publisher, self.subscriber
        moves = [
            (6, lambda: publisher.publish(self.random)),
            (8, publisher.send_one),
            (8, subscriber.send_one),
            (8, publisher.read),
            (8, subscriber.read),
            (6, bench.write_records),
            (6, bench.write_sessions),
            (8, lambda: bench.can_confirm and bench.confirm()),
            (4, bench.load),
            (1, bench.checkpoint),
            (1, self.crash),
            (1, lambda: self.lose(self.random.choice(self.clients))),
            (3, self.reconnect),
        ]
        weights = [weight for weight, _ in moves]
        for _ in range(steps):
            self.random.choices(moves, weights)[0][1]()
        self.finish()

    def crash(self) -> None:
        self.bench.crash()
        for client in self.clients:
            client.disconnect(crashed=True)

    def lose(self, client: Client) -> None:
        client.disconnect(crashed=False)

    def reconnect(self) -> None:
        for client in self.clients:
            if client.device is None:
                client.connect()
                return

    def finish(self) -> None:
        """Everything that is under way comes to its end."""
        for _ in range(2000):
            for client in self.clients:
                if client.device is None:
                    client.connect()
                client.send_one()
                client.read()
            self.bench.settle()
            if not any(client.sending for client in self.clients) and not self.publisher.unfinished:
                outbound = self.bench.hub.sessions["subscriber"].outbound
                if not outbound.load:
                    return
        raise AssertionError("does not come to rest")


@pytest.mark.parametrize("seed", seeds(25))
def test_promises_hold_over_crashes(seed: int) -> None:
    world = World(seed)
    world.run(2000)
    published, taken = world.publisher.published, world.subscriber.taken
    assert taken[2] == list(range(published[2])), f"seed {seed}: QoS 2 exactly once, in order"
    firsts = list(dict.fromkeys(taken[1]))
    assert sorted(firsts) == list(range(published[1])), f"seed {seed}: QoS 1 at least once"
    retained = {
        message.topic: int(message.payload)
        for message in world.bench.hub.retained.match("number/+", world.bench.now_ms)
    }
    for topic, number in world.publisher.acknowledged.items():
        assert retained[topic] >= number, f"seed {seed}: a retained message is lost"


@pytest.mark.parametrize("seed", seeds(25, divisor=2))
def test_promises_hold_for_queues_longer_than_what_is_kept_of_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "QUEUE_KEPT_MAX", 2 + seed % 4)
    test_promises_hold_over_crashes(seed)


def test_runs_are_worth_something() -> None:
    """Seeds crash often, and publish much."""
    worlds = [World(seed) for seed in range(5)]
    for world in worlds:
        world.run(2000)
    assert all(world.bench.crashes >= 5 for world in worlds)
    assert all(sum(world.publisher.published.values()) >= 40 for world in worlds)
    assert any(world.subscriber.connections > 5 for world in worlds)
