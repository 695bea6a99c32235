"""Goal: publishes at QoS 2, and acknowledgements, that come together do what each does alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from lakemq.plugins.mqtt.session import publishing
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    Acknowledgement,
    Filter,
    Packet,
    PacketType,
    Properties,
    Publish,
    Subscribe,
)
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench
from tests.support.seeds import seeds

PUBREC, PUBREL, PUBCOMP = PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP


class Both:
    """A device that publishes at QoS 2 and gets publishes; some of each are under way."""

    def __init__(self, seed: int, version: int) -> None:
        self.bench, chance = CrashBench(), random.Random(seed)
        lasting = Properties(session_expiry_s=60) if version == V5 else NO_PROPERTIES
        clean = chance.random() < 0.3
        self.device = self.bench.connect(
            "both", version=version, clean=clean, properties=NO_PROPERTIES if clean else lasting
        )
        self.device.send(Subscribe(1, (Filter("down/#", 2),)))
        sender = self.bench.connect("sender", version=V5)
        for packet_id in range(1, 13):
            qos = 1 if chance.random() < 0.1 else 2
            sender.send(Publish("down/a", b"x", qos, packet_id=packet_id))
        self.bench.settle()
        for packet_id in range(1, 13):
            if chance.random() < 0.9:
                self.device.send(Publish(f"up/{packet_id % 2}", b"y", 2, packet_id=packet_id))
        self.bench.settle()
        if chance.random() < 0.3:  # not stored yet: PUBREL may not come
            self.device.send(Publish("up/c", b"z", 2, packet_id=chance.choice([3, 13])))
        released = [Acknowledgement(PUBREC, each) for each in range(1, 13) if chance.random() < 0.2]
        for each in released:
            self.device.send(each)
        self.bench.settle()
        self.device.received()

    def said(self) -> tuple[list[Packet], object]:
        """What it got, in the order of each kind, and what is left."""
        self.bench.settle()
        got = sorted(self.device.received(), key=kind_of)
        connection, session = self.device.connection, self.bench.hub.sessions.get("both")
        left: Any = (connection.state, connection.closing)
        if connection.state is State.CONNECTED:
            left += (connection.traffic.packets_received,)
        if session is not None:
            outbound = session.outbound
            deliveries = [(i, one.qos, one.released) for i, one in outbound.inflight.items()]
            incoming = [
                (i, one if isinstance(one, Place) else None) for i, one in session.incoming.items()
            ]
            left += (deliveries, outbound.unacked, incoming, session.released)
            inflow, counters = connection.inflow, self.bench.hub.counters
            left += (inflow.qos_2,)
            assert (inflow.appends, inflow.appends_bytes, list(inflow.order)) == (0, 0, [])
            left += (self.bench.kept_sessions, counters.publishes_refused)
        return got, left


def kind_of(packet: Packet) -> str:
    """Answers of one kind come in order; those that wait for the disk may be overtaken."""
    return packet.type.name if isinstance(packet, Acknowledgement) else type(packet).__name__


def publishes(chance: random.Random) -> list[Publish]:
    """Mostly in a row, to few names; some under identifiers that are in use, some again."""
    first, name = chance.randrange(1, 60), chance.choice(["up/0", "up/1", "new"])
    ids: Sequence[int] = range(first, first + chance.choice([1, 2, 9]))
    if chance.random() < 0.2:
        ids = chance.choices(range(1, 15), k=5)
    again = chance.random() < 0.1
    payload = bytes(chance.choice([0, 5, 150]))
    return [Publish(name, payload, 2, dup=again, packet_id=each) for each in ids]


def acknowledgements(chance: random.Random) -> list[Packet]:
    found: list[Packet] = []
    for kind in chance.choices((PUBREC, PUBREL, PUBCOMP), k=chance.choice([1, 3, 5])):
        first = chance.randrange(1, 10)
        ids: Sequence[int] = range(first, min(13, first + chance.choice([2, 5, 12])))
        if chance.random() < 0.3:
            ids = chance.choices(range(1, 15), k=8)
        found += [Acknowledgement(kind, each) for each in ids]
    return found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("seed", seeds(150))
def test_together_as_one_by_one(seed: int, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed + 7)
    together, alone = Both(seed, version), Both(seed, version)
    if chance.random() < 0.2:
        monkeypatch.setattr(publishing, "SHARED_INCOMING_MAX", 20)
        together.bench.hub.ended, alone.bench.hub.ended = {}, {}  # other nodes take sessions over
    for _ in range(4):
        sent: list[Packet] = []
        for _ in range(3):
            some = publishes if chance.random() < 0.7 else acknowledgements
            sent += some(chance)
        together.device.send(*sent)
        for each in sent:
            alone.device.send(each)
        assert together.said() == alone.said()


def test_pubrels_that_come_together_are_one_write_of_the_session() -> None:
    bench = CrashBench()
    device = bench.connect("d", version=V311, clean=False)
    device.send(*(Publish("a", b"x", 2, packet_id=each) for each in range(1, 101)))
    bench.settle()
    assert kinds(device) == [PUBREC] * 100
    device.send(*(Acknowledgement(PUBREL, each) for each in range(1, 101)))
    assert kinds(device) == []  # kept first
    bench.settle()
    assert kinds(device) == [PUBCOMP] * 100
    assert device.connection.traffic.packets_sent == 99  # and one for the piece of bytes
    assert device.connection.inflow.qos_2 == set()
    bench.crash()
    session = bench.hub.sessions["d"]
    assert (session.incoming, session.released) == ({}, {("mqtt", 0): 100})


def kinds(device: Device) -> list[PacketType]:
    return [each.type for each in device.decoded() if isinstance(each, Acknowledgement)]
