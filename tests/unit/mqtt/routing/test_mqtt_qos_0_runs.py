"""Goal: publishes at QoS 0 that come together do what each does alone."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from lakemq.broker_core.api.errors import Undecided
from lakemq.broker_core.api.types import AccessContext, Operation, Principal, Resource
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.session import publishing, runs
from lakemq.plugins.mqtt.state.decisions import Decisions
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import NO_LOCAL, V5, V311, Packet, Properties, Publish
from tests.support.mqtt.bench import Bench, Device
from tests.support.seeds import seeds

NAMES = (
    *("a/1", "a/2", "b/1", "b/2", "nobody", "kept/1", "secret/1", "asked/1", "asked/2"),
    *("away/1", "far/1", "$delayed/5/a/1", "deep/1/2/3/4/5", "$SYS/x"),
)


class Others:
    """Nodes that want `far/#`, and what they got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []

    def wanted(self, name: str) -> bool:
        return name.startswith("far/")

    def send(self, message: Message, now_ms: int) -> int:
        self.got.append((message.topic, message.payload))
        return len(self.got)

    def serves(self, group: Group, count: int) -> bool:
        return bool(count % 2)


class Scene:
    """A publisher, and subscribers of every kind."""

    def __init__(self, seed: int, version: int, *, in_runs: bool) -> None:
        chance = random.Random(seed)
        self.bench = Bench(
            limits=Limits(topic_levels_max=5, refused_publish_disconnects=chance.random() < 0.1),
            delivery=DeliveryLimits(decisions=Decisions(1000)),
            bindings=(Binding("kept/#", "kept", stores_qos_0=True), Binding("#", "mqtt")),
        )
        self.bench.forbidden.add((Operation.WRITE, "secret/1"))
        self.bench.undecided |= {(Operation.WRITE, f"asked/{each}") for each in (1, 2)}
        self.others = Others()
        if chance.random() < 0.5:
            self.bench.hub.express = self.others
        self.devices = [self.publisher(version, in_runs)]
        self.subscriber("wide", V311, "#", wanted=chance.random() < 0.5)
        self.subscriber("one-level", V5, "a/+", "b/1", wanted=chance.random() < 0.5)
        self.subscriber("numbered", version, "a/#", identifier=7 * (version == V5))
        self.subscriber("small", version, "a/1", "b/#", wanted=chance.random() < 0.5)
        self.devices[-1].connection.packet_max_bytes = 60
        self.subscriber("same", version, "a/1", "away/#")
        blocked = self.subscriber("blocked", version, "a/2", "b/#", wanted=chance.random() < 0.5)
        blocked.connection.blocked = True
        for each in ("first", "second"):
            self.subscriber(each, version, "$share/group/a/2", wanted=chance.random() < 0.5)
        away = self.bench.connect("away", clean=False)
        away.subscribe("away/#", "b/2")
        away.lose()
        if chance.random() < 0.5:
            self.devices[0].subscribe("b/#", options=NO_LOCAL if version == V5 else 0)

    def publisher(self, version: int, in_runs: bool) -> Device:
        device = self.bench.connect("publisher", version=version)
        device.connection.decoder.runs = in_runs
        return device

    def subscriber(
        self, client_id: str, version: int, *filters: str, identifier: int = 0, wanted: bool = True
    ) -> Device:
        device = self.bench.connect(client_id, version=version)
        if wanted:
            device.subscribe(*filters, identifier=identifier)
        self.devices.append(device)
        return device

    def settle(self) -> None:
        while self.bench.answer_questions() or self.bench.store():
            pass

    def seen(self) -> list[Any]:
        """What everybody got, and what was counted and noted."""
        connection, hub = self.devices[0].connection, self.bench.hub
        self.bench.load()
        for device in self.devices:  # the server counts a packet for each piece that it writes
            device.connection.traffic.packets_sent += len(device.connection.out)
        noted: Counter[tuple[object, ...]] = Counter()
        for one in hub.delivery.decisions.of("refused", "no_subscriber", "no_local", "qos_0"):
            noted[one.kind, one.client_id, one.topic, one.origin] += one.publishes
        counters, traffic = hub.counters, connection.traffic
        return [
            [[str(each) for each in device.received()] for device in self.devices],
            (connection.state, connection.closing, traffic.received),
            connection.state is not State.CONNECTED or traffic.packets_received,
            (counters.publishes_received, counters.publishes_refused, hub.delivery.sent),
            (hub.delivery.dropped_qos_0, hub.delivery.dropped_too_large, noted, self.others.got),
            [each.connection.traffic.dropped for each in self.devices],
            [(each.traffic.sent, each.traffic.packets_sent) for each in self.connections()],
            [(place, one.topic, one.payload) for place, one in self.bench.messages.items()],
        ]

    def connections(self) -> list[Any]:
        return [device.connection for device in self.devices]


def sent_by(chance: random.Random, version: int) -> list[bytes]:
    """Mostly plain publishes to few names; some with more to them, some that are wrong."""
    names = chance.choices(NAMES, k=chance.choice([1, 2, 4]))
    found: list[bytes] = []
    for _ in range(chance.choice([1, 5, 20])):
        packet: Packet = Publish(chance.choice(names), bytes(chance.choice([0, 5, 70, 200])))
        kind = chance.random()
        if kind < 0.05:
            packet = Publish(packet.topic, b"r", retain=True)
        elif kind < 0.1:
            packet = Publish(packet.topic, b"q", 1, packet_id=chance.randrange(1, 9))
        elif kind < 0.15 and version == V5:
            packet = Publish(packet.topic, b"p", properties=Properties(content_type="x"))
        found.append(encode(packet, version))
    if chance.random() < 0.05:  # a wildcard, a bad delay, no name
        wrong = chance.choice(["a/+", "$delayed/x/a", ""])
        found.insert(chance.randrange(len(found)), encode(Publish(wrong, b""), version))
    return found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("seed", seeds(200))
def test_together_as_one_by_one(seed: int, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed + 7)
    if chance.random() < 0.2:  # forgotten in the middle of a run
        monkeypatch.setattr(publishing, "ROUTES_MAX", 2)
        monkeypatch.setattr(runs, "ROUTES_MAX", 2)
    together = Scene(seed, version, in_runs=True)
    alone = Scene(seed, version, in_runs=False)
    for _ in range(3):
        sent = sent_by(chance, version)
        together.devices[0].send_bytes(b"".join(sent))
        for each in sent:
            if alone.devices[0].connection.decoder.error is None:
                alone.devices[0].send_bytes(each)
        together.settle()
        alone.settle()
        for mine, theirs in zip(together.seen(), alone.seen(), strict=True):
            assert mine == theirs


def test_a_run_goes_on_where_somebody_was_asked_about_a_name_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is known of names may be forgotten while a run is handled."""
    monkeypatch.setattr(publishing, "ROUTES_MAX", 1)
    bench = Bench(bindings=(Binding("kept/#", "kept", stores_qos_0=True),))
    device = bench.connect("publisher")
    subscriber = bench.connect("subscriber")
    subscriber.subscribe("#")
    asked: list[str] = []

    def authorize(
        principal: Principal, operation: Operation, resource: Resource, context: AccessContext
    ) -> None:
        asked.append(resource.name)
        if asked == ["a", "kept/1", "b", "kept/1"]:
            raise Undecided(resource.name)

    monkeypatch.setattr(bench.hub, "_authorize", authorize)
    sent = [Publish(name, b"%d" % place) for place, name in enumerate(["a", "kept/1", "a", "b"])]
    device.send(*sent)
    assert bench.answer_questions() == ["kept/1"]
    bench.store()
    stored_last = [sent[0], *sent[2:], sent[1]]
    assert subscriber.publishes() == [(each.topic, each.payload) for each in stored_last]
    assert device.connection.traffic.packets_received == 1 + len(sent)
