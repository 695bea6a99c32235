"""MQTT clients of a simulated cluster: they connect to any node, lose connections, take themselves
over, and note what they are told."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from tests.support.mqtt.cluster.network import Socket

if TYPE_CHECKING:
    from tests.support.mqtt.cluster.brokers import Broker
    from tests.support.mqtt.cluster.world import World

LASTING = Properties(session_expiry_s=100_000)
CONNACK_S = 12.0


class Sent(NamedTuple):
    """A publish, by one connection."""

    broker: Broker
    """Of the node, in its life of then."""
    connects_s: float
    let_in_s: float


UNFINISHED_MAX = 8
PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP


class Client:
    """With a session that outlives its connections."""

    def __init__(self, world: World, client_id: str) -> None:
        self.world, self.client_id = world, client_id
        self.version = world.rng.choice((V311, V5))
        self.socket: Socket | None = None
        self.up = False
        """CONNACK came, and the connection is there as far as it knows."""
        self.connections = 0
        self.open: set[Socket] = set()
        """Connections that no node has ended."""
        self.will: Will | None = None
        self.way: Sent
        """How what is published now is sent."""
        self._decoder: Decoder

    # -- connections

    def connect(self) -> None:
        """To any node; a connection that there is goes on until it is taken over."""
        world = self.world
        there = [each for each in world.nodes.values() if each.life.alive and each.open]
        if not there:
            return
        self._decoder = Decoder(1 << 28, version=self.version)
        socket = world.connect(world.rng.choice(there).name, lambda data: self._told(socket, data))
        self.socket, self.up = socket, False
        self.way = Sent(world.nodes[socket.node].broker, asyncio.get_running_loop().time(), 0.0)
        self.open.add(socket)
        self.will = self.next_will()
        properties = LASTING if self.version == V5 else NO_PROPERTIES
        self._write(
            Connect(self.client_id, self.version, False, will=self.will, properties=properties)
        )
        world.later(CONNACK_S, lambda: None if self.up else self._give_up(socket))

    def next_will(self) -> Will | None:
        return None

    def _give_up(self, socket: Socket) -> None:
        if socket is self.socket:
            self.lose(0.0)

    def lose(self, after_s: float) -> None:
        """The connection breaks; the node hears of it after so long."""
        if self.socket is not None:
            self.socket.lose(after_s)
            self.open.discard(self.socket)
            self._lost()

    def leave(self) -> None:
        """DISCONNECT."""
        if self.up and self.socket is not None:
            self._write(Disconnect())
            self.lose(0.0)

    def _lost(self) -> None:
        self.socket, self.up = None, False

    def _write(self, *packets: Packet) -> None:
        assert self.socket is not None
        self.socket.send(b"".join(encode(each, self.version) for each in packets))

    def _told(self, socket: Socket, data: bytes | None) -> None:
        if data is None:
            self.open.discard(socket)
        if socket is not self.socket:
            return
        if data is None:
            self._lost()
            return
        for packet in self._decoder.feed(data):
            if socket is not self.socket:
                return
            if isinstance(packet, Connack):
                self._let_in(packet)
            elif not isinstance(packet, Disconnect):
                self.take(packet)
        assert self._decoder.error is None, self._decoder.error

    def _let_in(self, packet: Connack) -> None:
        if packet.code:
            return
        if self.connections:
            assert packet.session_present, f"{self.client_id}: the session is forgotten"
        self.connections += 1
        self.up = True
        self.way = self.way._replace(let_in_s=asyncio.get_running_loop().time())
        self.resume()

    # -- as there are kinds of clients

    def resume(self) -> None:
        raise NotImplementedError

    def take(self, packet: Any) -> None:
        raise NotImplementedError

    @property
    def rests(self) -> bool:
        return self.up


class Publisher(Client):
    """Publishes numbers at QoS 1 and 2 under some topic names, each once more until it is
    acknowledged."""

    def __init__(self, world: World, client_id: str) -> None:
        super().__init__(world, client_id)
        self.unfinished: dict[int, tuple[Publish, PacketType]] = {}
        """Packet identifier -> publish, and what is sent for it; the oldest first."""
        self.published: Counter[str] = Counter()
        self.sent: dict[tuple[str, int], list[Sent]] = {}
        """(name, number) -> each time that a publish was sent."""

    def publish(self) -> None:
        if not self.up or len(self.unfinished) >= UNFINISHED_MAX:
            return
        rng = self.world.rng
        qos = rng.choice((1, 2))
        packet_id = next(each for each in range(1, 20) if each not in self.unfinished)
        name = f"number/{qos}/{self.client_id}/{rng.randrange(2)}"
        number, self.published[name] = self.published[name], self.published[name] + 1
        packet = Publish(name, b"%d" % number, qos, rng.random() < 0.2, packet_id=packet_id)
        self.unfinished[packet_id] = (packet, PacketType.PUBLISH)
        self.sent[name, number] = [self.way]
        self._write(packet)

    def resume(self) -> None:
        for packet, stage in list(self.unfinished.values()):
            if stage is PUBREL:
                self._write(Acknowledgement(PUBREL, packet.packet_id))
                continue
            self.sent[packet.topic, int(packet.payload)].append(self.way)
            self._write(
                Publish(
                    packet.topic, packet.payload, packet.qos, packet.retain, True, packet.packet_id
                )
            )

    def take(self, packet: Any) -> None:
        assert isinstance(packet, Acknowledgement), packet
        publish, stage = self.unfinished.get(packet.packet_id, (None, None))
        if publish is None:
            return
        if packet.reason >= 0x80 and packet.type in (PUBACK, PUBREC):
            # QoS 1: it may be stored or not; it is sent again.
            assert publish.qos == 1, "a QoS 2 publish was refused"
            self.lose(0.0)
        elif packet.type is PUBREC:
            if stage is not PUBREL:
                self.unfinished[packet.packet_id] = (publish, PUBREL)
                self._write(Acknowledgement(PUBREL, packet.packet_id))
        elif packet.type is (PUBACK if publish.qos == 1 else PUBCOMP):
            assert publish.qos == 1 or stage is PUBREL
            del self.unfinished[packet.packet_id]

    @property
    def rests(self) -> bool:
        return self.up and not self.unfinished


class Subscriber(Client):
    """Takes what comes by some filters."""

    def __init__(self, world: World, client_id: str, *filters: str) -> None:
        super().__init__(world, client_id)
        self._filters = filters
        self.taken: list[tuple[int, str, int]] = []
        """(QoS of the publish, topic name, number), QoS 2 once."""
        self._unreleased: set[int] = set()
        self.subscribed = False

    def resume(self) -> None:
        if not self.subscribed:
            self._write(Subscribe(1, tuple(Filter(each, 2) for each in self._filters)))

    def take(self, packet: Any) -> None:
        if isinstance(packet, Suback):
            assert all(code <= 2 for code in packet.codes), packet
            self.subscribed = True
        elif isinstance(packet, Publish):
            again = packet.qos == 2 and packet.packet_id in self._unreleased
            if not again and not packet.retain:
                self.taken.append((packet.qos, packet.topic, int(packet.payload)))
            if packet.qos == 2:
                self._unreleased.add(packet.packet_id)
            self._write(Acknowledgement(PUBREC if packet.qos == 2 else PUBACK, packet.packet_id))
        elif packet.type is PUBREL:
            self._unreleased.discard(packet.packet_id)
            self._write(Acknowledgement(PUBCOMP, packet.packet_id))

    @property
    def rests(self) -> bool:
        return self.up and self.subscribed


class Mortal(Subscriber):
    """Has a will, another one for each connection."""

    def __init__(self, world: World, client_id: str) -> None:
        super().__init__(world, client_id, "nothing")
        self.wills = 0
        self.due: set[int] = set()
        """Wills of connections that were let in and broke."""
        self.ended_s: dict[int, float] = {}
        """When their connections broke, or the next one began."""

    def next_will(self) -> Will | None:
        self._ended()
        self.wills += 1
        return Will(f"will/{self.client_id}", b"%d" % (self.wills - 1), 1, False)

    def resume(self) -> None:
        super().resume()
        self.due.add(self.wills - 1)

    def _ended(self) -> None:
        self.ended_s.setdefault(self.wills - 1, asyncio.get_running_loop().time())

    def _lost(self) -> None:
        self._ended()
        super()._lost()

    def leave(self) -> None:
        if self.up:
            self.due.discard(self.wills - 1)
        super().leave()
