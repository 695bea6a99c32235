"""Goal: every subscriber gets what a small reference broker says, how it says, once: overlapping
filters, no local, retain as published, retain handling, subscription identifiers, message expiry,
shared groups whose members come and go, retained messages that are set and cleared, with packet
identifiers that wrap every few publishes, over the express path of QoS 0 and the durable hand-over
of QoS 2.

Method: one seed draws what clients do, when they acknowledge, lose their connection or their
session, and when a session becomes durable. A client checks each packet as it comes; at the end
everybody comes back and nothing may be owed. Storage is that of `CrashBench`, without crashes
(`test_mqtt_crashes.py` has those).
"""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from lakemq.plugins.mqtt.state import delivery
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    NO_PROPERTIES,
    RETAIN_AS_PUBLISHED,
    V5,
    V311,
    Acknowledgement,
    Disconnect,
    Filter,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.topics import parse_filter
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench
from tests.support.mqtt.reference import SHARE, Due, Peer, Reference, Sent, SharedDue, Wanted
from tests.support.seeds import chunks, seeds

CHUNK: Final = 25
STEPS: Final = 90
WINDOW: Final = 4
IDENTIFIERS: Final = 9
"""Packet identifiers that there are, so that they wrap."""
TOPICS: Final = ("a", "a/b", "a/b/c", "a/c", "d")
FILTERS: Final = ("a", "a/b", "a/+", "a/#", "a/b/#", "+/b", "d", "+")
SHARED_TOPICS: Final = ("s/1", "s/2")
SHARED: Final = ("$share/g/s/1", "$share/h/+/2")
PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP


class Client:
    """One that keeps its side of the protocol, and looks at all that comes."""

    def __init__(self, world: World, name: str, version: int, keeps: bool) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.keeps = keeps
        self.kept = keeps
        """The session outlives this connection."""
        self.window = world.dice.choice([1, 2, WINDOW]) if version == V5 else WINDOW
        self.device: Device | None = None
        self.unfinished: dict[int, tuple[PacketType, bytes]] = {}
        """Packet identifier -> what the client has to say, and the payload."""
        self.releasing: set[int] = set()
        """QoS 2 identifiers whose PUBREC was sent."""
        self.reconnected = False
        """What came before may come again."""
        self.numbers: dict[tuple[str, int], int] = {}
        """(topic name, QoS) -> number of the last publish."""

    @property
    def peer(self) -> Peer:
        return self.world.reference.peers[self.name]

    def connect(self, clean: bool) -> None:
        world, there = self.world, self.name in self.world.reference.peers
        if there and clean:
            self.forget()
        properties = NO_PROPERTIES
        if self.version == V5:
            expiry_s = 1000 if self.keeps else None
            properties = Properties(session_expiry_s=expiry_s, receive_maximum=self.window)
        clean = clean or not (self.keeps or self.version == V5)
        self.device = world.bench.connect(
            self.name, version=self.version, clean=clean, properties=properties
        )
        present = self.device.connack.session_present  # type: ignore[attr-defined]
        assert present is (there and not clean), f"{self.name}: session present {present}"
        self.kept = self.keeps and not (clean and self.version == V311)
        peer = world.reference.peers.setdefault(self.name, Peer())
        peer.connected = peer.hears = True
        self.reconnected = True
        self.hear()

    def forget(self) -> None:
        """The session ends, with all that was owed."""
        unacknowledged = {payload for _, payload in self.unfinished.values()}
        self.world.reference.end(self.name, unacknowledged)
        self.unfinished.clear()
        self.releasing.clear()
        self.numbers.clear()

    def leave(self, *, politely: bool) -> None:
        assert self.device is not None
        if politely:
            self.device.send(Disconnect())
        else:
            self.device.lose()
        self.device = None
        peer = self.peer
        peer.connected = peer.hears = False
        peer.due = [one for one in peer.due if one.qos]
        if not self.kept:
            self.forget()

    def end(self) -> None:
        """Have the session end by what DISCONNECT says."""
        assert self.device is not None
        self.device.send(Disconnect(properties=Properties(session_expiry_s=0)))
        self.device = None
        self.forget()

    # -- what comes

    def hear(self) -> None:
        if self.device is None:
            return
        for packet in self.device.received():
            if isinstance(packet, Publish):
                self.got(packet)
            elif isinstance(packet, Acknowledgement) and packet.type is PUBREL:
                self.releasing.discard(packet.packet_id)
                payload = self.unfinished.get(packet.packet_id, (PUBCOMP, b""))[1]
                self.unfinished[packet.packet_id] = (PUBCOMP, payload)

    def got(self, packet: Publish) -> None:
        if not packet.qos:
            self.check(packet)
            return
        known = self.unfinished.get(packet.packet_id)
        if known is not None:
            assert packet.dup, f"{self.name}: identifier {packet.packet_id} is in use"
            assert self.reconnected, f"{self.name}: sent again on one connection"
            assert known[1] == packet.payload, f"{self.name}: an identifier stands for two"
            return
        answer = PUBACK if packet.qos == 1 else PUBREC
        self.unfinished[packet.packet_id] = (answer, packet.payload)
        assert len(self.unfinished) <= self.window, f"{self.name}: above the receive maximum"
        self.check(packet)

    def check(self, packet: Publish) -> None:
        if packet.topic in SHARED_TOPICS:
            self.check_shared(packet)
            return
        peer, now_ms = self.peer, self.world.bench.now_ms
        said = packet.properties
        for one in peer.due:
            if (one.sent.topic, one.sent.payload) == (packet.topic, packet.payload) and (
                (packet.qos, packet.retain) == (one.qos, one.retain)
                and self.named(packet) == self.told(one.identifiers)
            ):
                break
        else:
            raise AssertionError(f"{self.name}: {packet} is not owed; owed: {peer.due}")
        peer.due.remove(one)
        if not packet.dup:
            assert not one.sent.expired(now_ms), f"{self.name}: {packet} has expired"
        if self.version == V5:
            remaining_s = one.sent.remaining_s(now_ms)
            assert said.message_expiry_s == remaining_s, f"{self.name}: {packet}, {remaining_s} s"
        self.in_order(one)

    def in_order(self, one: Due) -> None:
        if not one.late and one.sent.payload:
            key = (one.sent.topic, one.qos)
            assert self.numbers.get(key, -1) < one.sent.number, f"{self.name}: out of order"
            self.numbers[key] = one.sent.number

    def named(self, packet: Publish) -> tuple[int, ...]:
        return tuple(sorted(packet.properties.subscription_identifiers))

    def told(self, identifiers: tuple[int, ...]) -> tuple[int, ...]:
        return identifiers if self.version == V5 else ()

    def check_shared(self, packet: Publish) -> None:
        for one in self.world.reference.shared:
            wanted = self.peer.subscriptions.get(one.group)
            if one.sent.payload == packet.payload and wanted is not None and self.fits(one, packet):
                break
        else:
            raise AssertionError(f"{self.name}: {packet} is not its share")
        one.taken_by, one.taken_qos = self.name, packet.qos
        one.may_come_again = False
        # what a member leaves while it is away is handed on without being read again, so it may
        # have less than the next member asked for, and never more
        most = min(one.sent.qos, wanted.qos)
        assert 1 <= packet.qos <= most, f"{self.name}: {packet} of QoS {most}"
        as_published = bool(wanted.options & RETAIN_AS_PUBLISHED) and one.sent.retain
        assert as_published or not packet.retain, f"{self.name}: {packet} is retained"
        assert self.named(packet) == self.told((wanted.identifier,) if wanted.identifier else ())

    def fits(self, one: SharedDue, packet: Publish) -> bool:
        if one.taken_by is not None and not one.may_come_again:
            return packet.dup and one.taken_by == self.name
        return True

    # -- what it says

    def acknowledge(self) -> None:
        """Answer the oldest that waits for an answer of some kind [MQTT-4.6.0-2]; PUBCOMP takes
        longest."""
        oldest: dict[PacketType, int] = {}
        for packet_id, (answer, _) in self.unfinished.items():
            if packet_id not in self.releasing:
                oldest.setdefault(answer, packet_id)
        if self.device is None or not oldest:
            return
        kinds = [one for one in oldest if one is not PUBCOMP or self.world.dice.random() < 0.3]
        answer = self.world.dice.choice(kinds or list(oldest))
        packet_id = oldest[answer]
        if answer is PUBREC:
            self.releasing.add(packet_id)
        else:
            del self.unfinished[packet_id]
        self.device.send(Acknowledgement(answer, packet_id))


class World:
    """A broker, its clients, and the reference."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = CrashBench(delivery=DeliveryLimits(inflight_max=WINDOW))
        self.reference = Reference()
        self.number = 0
        # Each seed has a world of its own: few names or many, own publishes or others'.
        self.topics = self.dice.sample(TOPICS, self.dice.randrange(2, len(TOPICS) + 1))
        self.filters = self.dice.sample(FILTERS, self.dice.randrange(2, len(FILTERS) + 1))
        self.others = self.dice.choice((0.1, 0.5, 0.9))
        """How many publishes are those of nobody who subscribes."""
        self.no_local = self.dice.choice((0.1, 0.8))
        self.shares = self.dice.choice((0.1, 0.4, 0.8))
        self.sender = self.bench.connect("sender", version=V5)
        self.clients = [
            Client(self, "c0", V5, True),
            Client(self, "c1", V5, True),
            Client(self, "c2", V5, False),
            Client(self, "c3", V311, True),
        ]
        for each in self.clients:
            each.connect(clean=False)

    def run(self) -> None:
        actions: list[tuple[Any, int]] = [
            (self.publish_stored, 30), (self.publish_plain, 15), (self.acknowledge, 40),
            (self.subscribe, 12), (self.unsubscribe, 3), (self.keep, 18), (self.come_or_go, 7),
            (self.end_session, 4), (self.pass_time, 5), (self.block, 4), (self.clear, 5),
            (self.end_hastily, 4),
        ]  # fmt: skip
        doers = [doer for doer, _ in actions]
        weights = [weight * self.dice.choice((0.3, 1, 3)) for _, weight in actions]
        for _ in range(STEPS):
            self.dice.choices(doers, weights)[0]()
            self.hear()
        self.finish()

    def hear(self) -> None:
        for each in self.clients:
            each.hear()

    # -- storage

    def commit(self) -> None:
        """Publishes are stored at once, and what sessions wrote is confirmed."""
        while self.bench.hub.outbox.appends:
            self.bench.write_records()
        while self.bench.can_confirm:
            self.bench.confirm()

    def keep(self) -> None:
        """What sessions wait for becomes durable."""
        self.bench.write_sessions()
        self.commit()

    # -- steps

    def connected(self) -> list[Client]:
        return [one for one in self.clients if one.device is not None]

    def acknowledge(self) -> None:
        self.dice.choice(self.clients).acknowledge()
        self.commit()

    def publish_stored(self) -> None:
        """QoS 1 and 2, some retained, some that expire, now and then by a subscriber itself."""
        dice, (device, name) = self.dice, self._who()
        qos = dice.choice((1, 2, 2)) if name == "sender" else 1
        topic = dice.choice(SHARED_TOPICS if dice.random() < self.shares else self.topics)
        expiry_s = dice.choice((None, None, 3, 60)) if topic not in SHARED_TOPICS else None
        self._publish(device, name, topic, self._payload(), qos, dice.random() < 0.25, expiry_s)

    def clear(self) -> None:
        device, name = self._who()
        self._publish(device, name, self.dice.choice(self.topics), b"", 1, True, None)

    def _who(self) -> tuple[Device, str]:
        if self.dice.random() < self.others or not self.connected():
            return self.sender, "sender"
        client = self.dice.choice(self.connected())
        assert client.device is not None
        return client.device, client.name

    def _payload(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def _publish(
        self,
        device: Device,
        name: str,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        expiry_s: int | None,
    ) -> None:
        if device.version != V5:
            expiry_s = None
        properties = NO_PROPERTIES
        if expiry_s is not None:
            properties = Properties(message_expiry_s=expiry_s)
        packet = Publish(topic, payload, qos, retain, packet_id=7000, properties=properties)
        expires_ms = None if expiry_s is None else self.bench.now_ms + 1000 * expiry_s
        self.number += not payload
        self.reference.publish(Sent(name, topic, payload, qos, retain, expires_ms, self.number))
        device.send(packet)
        self.commit()
        if qos == 2:
            device.send(Acknowledgement(PUBREL, 7000))
        self.commit()

    def publish_plain(self) -> None:
        """QoS 0 in a row, which takes the express path from the second on."""
        device, name = self._who()
        topic, packets = self.dice.choice(self.topics), []
        for _ in range(self.dice.randrange(1, 4)):
            payload = self._payload()
            self.reference.publish(Sent(name, topic, payload, 0, False, None, self.number))
            packets.append(Publish(topic, payload))
        device.send(*packets)

    def subscribe(self) -> None:
        if not self.connected():
            return
        self.settle()
        dice, client = self.dice, self.dice.choice(self.connected())
        number = self.clients.index(client)
        shared = dice.random() < self.shares
        text = dice.choice(SHARED if shared else self.filters)
        options, identifier, handling = dice.randrange(3), 0, 0
        if shared:  # what a member is given may be older than its last word: let that be one
            options = 1 if number == 2 else 2
        if client.version == V5:
            identifier = number + 1 if shared else dice.randrange(4)
            handling = dice.randrange(3)
            options |= RETAIN_AS_PUBLISHED if (number > 0 if shared else dice.random() < 0.5) else 0
            options |= NO_LOCAL if not shared and dice.random() < self.no_local else 0
        wanted = Wanted(parse_filter(text).topic_filter, options, identifier)
        assert client.device is not None
        if not client.peer.hears:  # else it gets what is retained then, and not now
            client.peer.hears = True
            client.device.connection.unblocked(self.bench.now_ms)
        self.reference.subscribe(client.name, text, wanted, handling, self.bench.now_ms)
        named = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
        assert client.device is not None
        client.device.send(Subscribe(8000, (Filter(text, options | handling << 4),), named))
        self.settle()

    def unsubscribe(self) -> None:
        found = [one for one in self.connected() if one.peer.subscriptions]
        plain = [
            (one, text)
            for one in found
            for text in one.peer.subscriptions
            if not text.startswith(SHARE)
        ]
        if plain:
            client, text = self.dice.choice(plain)
            assert client.device is not None
            self.reference.unsubscribe(client.name, text)
            client.device.send(Unsubscribe(8001, (text,)))
            self.settle()

    def settle(self) -> None:
        self.bench.settle()
        self.hear()

    def come_or_go(self) -> None:
        client = self.dice.choice(self.clients)
        if client.device is None:
            client.connect(clean=False)
        else:
            client.leave(politely=self.dice.random() < 0.3)

    def end_session(self) -> None:
        client = self.dice.choice(self.clients)
        if client.device is not None and client.version == V5 and client.keeps:
            client.end()
        client.connect(clean=True)

    def end_hastily(self) -> None:
        """A session ends right after a QoS 2 publish to its group, before that is kept."""
        found = [one for one in self.connected() if one.version == V5 and one.keeps]
        topic, payload = self.dice.choice(SHARED_TOPICS), self._payload()
        self._publish(self.sender, "sender", topic, payload, 2, False, None)
        if found:
            client = self.dice.choice(found)
            client.hear()
            client.end()
            client.connect(clean=True)

    def pass_time(self) -> None:
        self.bench.pass_time(self.dice.choice((0.5, 1, 2.5)))

    def block(self) -> None:
        """A socket takes no more, or does again."""
        client = self.dice.choice(self.clients)
        if client.device is None:
            return
        if client.peer.hears:
            client.device.connection.blocked, client.peer.hears = True, False
        else:
            client.peer.hears = True
            client.device.connection.unblocked(self.bench.now_ms)

    def finish(self) -> None:
        """Everybody comes back, and takes all that is owed."""
        for each in self.clients:
            if each.device is not None and not each.peer.hears:
                each.peer.hears = True
                each.device.connection.unblocked(self.bench.now_ms)
            if each.device is None:
                each.connect(clean=False)
        for _ in range(1000):
            self.settle()
            if not any(each.unfinished for each in self.clients):
                break
            for each in self.clients:
                each.acknowledge()
        now_ms = self.bench.now_ms
        for each in self.clients:
            missing = [one for one in each.peer.due if not one.sent.expired(now_ms)]
            assert not missing, f"{each.name}: never came: {missing}"
        lost = [
            one for one in self.reference.shared if one.taken_by is None and not one.may_be_lost
        ]
        assert not lost, f"no member got {lost}"


@pytest.mark.parametrize(
    "several", chunks(seeds(300), CHUNK), ids=lambda several: str(several.start)
)
def test_subscribers_get_what_the_reference_says(
    several: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PACKET_ID_MAX", IDENTIFIERS)
    for seed in several:
        try:
            World(seed).run()
        except BaseException:
            print(f"LAKEMQ_SEED={seed} repeats this")
            raise
