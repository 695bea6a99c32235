"""Goal: long sequences of mostly valid packets, from several clients at once, with storage that
fails, sockets that block and time that passes, never crash the broker or grow its memory.

Hypothesis finds short surprises (`tests/unit/mqtt/wire/test_mqtt_fuzz.py`); this reaches deep
states.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from lakemq.broker_core.api.errors import StorageFull, Unavailable
from lakemq.broker_core.api.types import ANONYMOUS
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing import retained
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Acknowledgement,
    Connect,
    Disconnect,
    Filter,
    PacketType,
    Ping,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.reasons import ProtocolError
from tests.support.mqtt.bench import Bench, Device
from tests.support.seeds import seeds

STEPS = 400
LIMITS = Limits(
    packet_max_bytes=2000, sessions_max=8, subscriptions_max=6, receive_max=6, topic_alias_max=3
)
QUEUE_MAX_BYTES = 3000
NAMES = ["a", "b", "a/b", "a/c", "b/c/d", "$x/y", ""]
FILTERS = ["a", "a/+", "#", "+/b", "$share/g/a", "$share/g/#", "$x/#", "b/#", "bad#"]
ACKS = [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delivery = DeliveryLimits(
            inflight_max=4,
            queue_count_max=8,
            queue_max_bytes=QUEUE_MAX_BYTES,
            queue_full=self.random.choice(("drop_oldest", "drop_newest", "disconnect")),
        )
        self.bench = Bench(
            limits=LIMITS,
            delivery=delivery,
            retained=Retained(4, 2000),
            strategy=self.random.choice(("round_robin", "random", "hash_topic", "least_inflight")),
        )
        self.devices: list[Device] = []
        self.packets = 0

    def run(self) -> None:
        moves = [
            (12, self.packet),
            (3, self.store),
            (1, self.time),
            (1, self.block),
            (1, self.lose),
            (2, self.connect),
            (1, self.damage),
        ]
        weights = [weight for weight, _ in moves]
        for _ in range(STEPS):
            self.random.choices(moves, weights)[0][1]()
            self.check()

    # -- moves

    def connect(self) -> None:
        choose = self.random.choice
        version = choose((V31, V311, V5, V5))
        asked = NO_PROPERTIES
        will = Will(choose(NAMES[:5]), b"will", choose((0, 1, 2)), choose((True, False)))
        if version == V5:
            asked = Properties(
                session_expiry_s=choose((None, 0, 10)),
                receive_maximum=choose((None, 1, 3)),
                topic_alias_maximum=choose((None, 2)),
                packet_max_bytes=choose((None, None, 80)),
            )
        device = self.bench.dial(version)
        name = choose(("one", "two", "three", "four", ""))
        clean = name == "" or choose((True, False, False))
        device.send(
            Connect(
                name, version, clean, choose((0, 5)), will=choose((None, will)), properties=asked
            )
        )
        if device.connection.credentials is not None:
            device.connection.authenticated(ANONYMOUS, self.bench.now_ms)
        self.devices.append(device)

    def device(self) -> Device | None:
        self.devices = [one for one in self.devices if not one.connection.ended]
        return self.random.choice(self.devices) if self.devices else None

    def packet(self) -> None:
        device = self.device()
        if device is not None:
            self.packets += 1
            device.send_bytes(encode(self.any_packet(device), device.version))

    def any_packet(self, device: Device) -> Any:
        version = device.version
        choose, packet_id = self.random.choice, self.random.randint(1, 6)
        kind = self.random.random()
        if kind < 0.5:
            return self.publish(version, packet_id)
        if kind < 0.7:
            return self.acknowledgement(device, packet_id)
        if kind < 0.85:
            options = choose((0, 1, 2))
            if version == V5:
                options |= choose((0, 0, 4, 8, 0x10, 0x20))
            named = Properties(subscription_identifiers=(choose((1, 300)),))
            return Subscribe(
                packet_id,
                (Filter(choose(FILTERS), options),),
                named if version == V5 and choose((True, False)) else NO_PROPERTIES,
            )
        if kind < 0.93:
            return Unsubscribe(packet_id, (choose(FILTERS), choose(FILTERS)))
        if kind < 0.98:
            return Ping(PacketType.PINGREQ)
        return Disconnect()

    def acknowledgement(self, device: Device, packet_id: int) -> Acknowledgement:
        """Of the kind that is awaited, more often than not: others end the connection."""
        session = device.connection.session
        inflight = session.outbound.inflight if session is not None else {}
        if not inflight or self.random.random() < 0.2:
            return Acknowledgement(self.random.choice(ACKS), packet_id)
        packet_id = self.random.choice(list(inflight))
        delivery = inflight[packet_id]
        if delivery.qos == 1:
            return Acknowledgement(PacketType.PUBACK, packet_id)
        return Acknowledgement(
            PacketType.PUBCOMP if delivery.released else PacketType.PUBREC, packet_id
        )

    def publish(self, version: int, packet_id: int) -> Publish:
        choose = self.random.choice
        qos = choose((0, 0, 1, 2))
        properties = NO_PROPERTIES
        name = choose(NAMES[:-1])
        if version == V5 and choose((True, False)):
            properties = Properties(
                topic_alias=choose((None, 1, 2, 3, 4)),
                message_expiry_s=choose((None, 1, 60)),
                user_properties=choose(((), (("k", "v"),))),
            )
            name = choose(NAMES)
        payload = b"x" * choose((0, 1, 30, 200))
        return Publish(
            name, payload, qos, choose((False, False, True)), False, qos and packet_id, properties
        )

    def store(self) -> None:
        self.bench.store(self.random.choice((None,) * 6 + (Unavailable("x"), StorageFull("x"))))

    def time(self) -> None:
        self.bench.pass_time(self.random.choice((0.5, 3, 12)))

    def block(self) -> None:
        device = self.device()
        if device is not None:
            device.connection.blocked = not device.connection.blocked
            if not device.connection.blocked:
                device.connection.unblocked(self.bench.now_ms)

    def lose(self) -> None:
        device = self.device()
        if device is not None:
            device.lose()

    def damage(self) -> None:
        device = self.device()
        if device is not None:
            stream = bytearray(encode(self.any_packet(device), device.version))
            stream[self.random.randrange(len(stream))] = self.random.randrange(256)
            device.send_bytes(bytes(stream))

    # -- what must hold

    def check(self) -> None:
        hub = self.bench.hub
        for device in self.devices:
            device.received()  # decodes: the broker never writes what is malformed
        assert len(hub.sessions) <= LIMITS.sessions_max
        assert hub.retained.count <= 4
        expected = 0
        for session in hub.sessions.values():
            expected += len(session.subscriptions)
            assert len(session.subscriptions) <= LIMITS.subscriptions_max
            assert len(session.outbound.inflight) <= 4
            assert session.outbound.queue_bytes <= QUEUE_MAX_BYTES
            assert session.outbound.queue_bytes == sum(
                one.size_bytes for one in session.outbound.queue or ()
            )
            assert session.connection is None or session.connection in hub.connections
        assert hub.index.count == expected
        for connection in hub.connections:
            assert connection.inflow.appends >= 0
            assert connection.inflow.qos_1 >= 0
            assert connection.session is None or (
                connection.inflow.qos_2 <= connection.session.incoming.keys()
            )


@pytest.mark.parametrize("seed", seeds(25))
def test_long_sequences(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is stored later than this is kept though the bound be passed: it was acknowledged.
    monkeypatch.setattr(retained, "AWAITED_MS", 1 << 40)
    fuzzer = Fuzzer(seed)
    try:
        fuzzer.run()
    except ProtocolError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_sequences_reach_deep_states() -> None:
    fuzzers = [Fuzzer(seed) for seed in range(12)]
    for fuzzer in fuzzers:
        fuzzer.run()
    counters = [fuzzer.bench.hub.counters for fuzzer in fuzzers]
    assert sum(one.publishes_received for one in counters) > 500
    assert sum(one.connections_accepted for one in counters) > 200
    assert sum(fuzzer.bench.hub.delivery.sent for fuzzer in fuzzers) > 300
