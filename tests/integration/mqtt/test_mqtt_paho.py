"""Goal: paho-mqtt, an independent client, gets what is promised, over real sockets."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from lakemq.broker_core.api.types import Operation
from tests.support.mqtt.memory_broker import MemoryBroker, running_server

VERSIONS = [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5]
versions = pytest.mark.parametrize("version", VERSIONS)
WAIT_S = 30


class Peer:
    """A paho client whose callbacks fill queues."""

    def __init__(self, port: int, client_id: str, version: int, **options: Any) -> None:
        clean = {} if version == paho.MQTTv5 else {"clean_session": options.pop("clean", True)}
        self.version = version
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **clean
        )
        self.connacks: queue.Queue[Any] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.subacks: queue.Queue[Any] = queue.Queue()
        self.goodbyes: queue.Queue[Any] = queue.Queue()
        self.client.on_connect = lambda c, u, flags, code, p: self.connacks.put((code, flags, p))
        self.client.on_message = lambda c, u, message: self.messages.put(message)
        self.client.on_subscribe = lambda c, u, mid, codes, p: self.subacks.put(codes)
        self.client.on_disconnect = lambda c, u, flags, code, p: self.goodbyes.put(code)
        if (user := options.pop("user", None)) is not None:
            self.client.username_pw_set(*user)
        if (will := options.pop("will", None)) is not None:
            self.client.will_set(*will)
        self.client.max_inflight_messages_set(options.pop("inflight", 20))
        self.client.reconnect_delay_set(60, 60)
        self.client.connect("127.0.0.1", port, keepalive=options.pop("keepalive", 60), **options)
        self.client.loop_start()
        self.code, self.flags, self.properties = self.connacks.get(timeout=WAIT_S)

    def subscribe(self, topic_filter: str, qos: int = 0, **options: Any) -> Any:
        self.client.subscribe(topic_filter, qos, **options)
        return self.subacks.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 1, **options: Any) -> None:
        self.client.publish(topic, payload, qos, **options).wait_for_publish(WAIT_S)

    def get(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_S)

    def payloads(self, count: int) -> list[bytes]:
        return [self.get().payload for _ in range(count)]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def peers(port: int, version: int) -> Iterator[Callable[..., Peer]]:
    opened: list[Peer] = []

    def connect(client_id: str, **options: Any) -> Peer:
        peer = Peer(port, client_id, options.pop("version", version), **options)
        opened.append(peer)
        return peer

    try:
        yield connect
    finally:
        for peer in opened:
            peer.close()


async def over_sockets(
    script: Callable[[int, MemoryBroker], None], broker: MemoryBroker | None = None, **settings: Any
) -> None:
    """Run a blocking script of clients in a thread, the server in this loop."""
    async with running_server(broker, **settings) as (_, used, port):
        await asyncio.to_thread(script, port, used)


@versions
async def test_all_qos_arrive_in_order_and_are_stored(version: int) -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, version) as connect:
            reader = connect("reader")
            reader.subscribe("a/#", 2)
            sender = connect("sender")
            for qos in range(3):
                for number in range(50):
                    sender.publish(f"a/{qos}", b"%d" % number, qos)
            got = [reader.get() for _ in range(150)]
            for qos in range(3):
                of_one = [each for each in got if each.topic == f"a/{qos}"]
                assert [each.payload for each in of_one] == [b"%d" % n for n in range(50)]
                assert {each.qos for each in of_one} == {qos}
            assert len(broker.values("mqtt")) == 100

    await over_sockets(script)


@pytest.mark.parametrize("subscriber", VERSIONS)
@versions
async def test_versions_understand_each_other(version: int, subscriber: int) -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, version) as connect:
            reader = connect("reader", version=subscriber)
            reader.subscribe("t", 1)
            sender = connect("sender")
            for number in range(30):  # the later ones at QoS 0 go as they came
                sender.publish("t", b"%d" % number, number % 2)
            assert sorted(reader.payloads(30)) == sorted(b"%d" % n for n in range(30))

    await over_sockets(script)


@versions
async def test_large_payloads(version: int) -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, version) as connect:
            reader = connect("reader")
            reader.subscribe("big", 1)
            sender = connect("sender")
            for qos, size in ((0, 127), (0, 128), (0, 16_383), (1, 16_384), (1, 900_000)):
                sender.publish("big", b"x" * size, qos)
                assert len(reader.get().payload) == size

    await over_sockets(script)


@versions
async def test_retained_will_and_keep_alive(version: int) -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, version) as connect:
            sender = connect("sender")
            sender.publish("state", b"on", 1, retain=True)
            reader = connect("reader")
            reader.subscribe("state")
            message = reader.get()
            assert (message.payload, message.retain) == (b"on", True)
            reader.subscribe("gone")
            dying = connect("dying", will=("gone", b"bye", 1, False))
            dying.client._sock.close()  # type: ignore[union-attr]
            assert reader.get().payload == b"bye"

    await over_sockets(script)


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
async def test_a_session_outlives_its_connection(version: int) -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        options: dict[str, Any] = {"clean": False}
        if version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 60
            options = {"clean_start": False, "properties": properties}
        with peers(port, version) as connect:
            first = connect("reader", **options)
            first.subscribe("t", 2)
            first.close()
            connect("sender").publish("t", b"while away", 2)
            again = connect("reader", **options)
            assert again.flags.session_present
            assert again.get().payload == b"while away"

    await over_sockets(script)


async def test_takeover_ends_the_older_connection() -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, paho.MQTTv5) as connect:
            old = connect("d")
            connect("d")
            assert old.goodbyes.get(timeout=WAIT_S).value == 0x8E

    await over_sockets(script)


async def test_properties_reach_version_5_subscribers() -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, paho.MQTTv5) as connect:
            reader = connect("reader")
            identified = Properties(PacketTypes.SUBSCRIBE)
            identified.SubscriptionIdentifier = 77
            reader.subscribe("t", 1, properties=identified)
            sender = connect("sender")
            for qos in (0, 1):
                properties = Properties(PacketTypes.PUBLISH)
                properties.ContentType = "text/plain"
                properties.ResponseTopic = "r"
                properties.CorrelationData = b"\x01"
                properties.PayloadFormatIndicator = 1
                properties.UserProperty = [("k", "v"), ("k", "w")]
                sender.publish("t", b"x", qos, properties=properties)
                got = reader.get().properties
                assert got is not None
                assert (got.ContentType, got.ResponseTopic, got.CorrelationData) == (
                    "text/plain",
                    "r",
                    b"\x01",
                )
                assert (got.PayloadFormatIndicator, got.UserProperty) == (
                    1,
                    [("k", "v"), ("k", "w")],
                )
                assert got.SubscriptionIdentifier == [77]

    await over_sockets(script)


async def test_no_local_and_shared_subscriptions() -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        with peers(port, paho.MQTTv5) as connect:
            one = connect("one")
            one.subscribe("t", options=SubscribeOptions(qos=1, noLocal=True))
            one.publish("t", b"own")
            members = [connect(f"m{n}") for n in range(2)]
            for member in members:
                member.subscribe("$share/g/t", 1)
            other = connect("other")
            for number in range(10):
                other.publish("t", b"%d" % number)
            assert one.payloads(10) == [b"%d" % n for n in range(10)]
            assert [len(member.payloads(5)) for member in members] == [5, 5]

    await over_sockets(script)


async def test_wrong_passwords_and_forbidden_topics() -> None:
    broker = MemoryBroker()
    broker.users = {"alice": b"secret"}
    broker.forbidden = {(Operation.WRITE, "locked"), (Operation.READ, "locked/#")}

    def script(port: int, _: MemoryBroker) -> None:
        with peers(port, paho.MQTTv311) as connect:
            assert connect("a", user=("alice", "wrong")).code.is_failure
            assert connect("b").code.is_failure
            alice = connect("c", user=("alice", "secret"))
            assert not alice.code.is_failure
            assert alice.subscribe("locked/#")[0].is_failure
            alice.client.publish("locked", b"x", 1)
            alice.goodbyes.get(timeout=WAIT_S)
        with peers(port, paho.MQTTv5) as connect:
            wrong = connect("a", user=("alice", "wrong"))
            assert wrong.code.value == 0x86
            alice = connect("c", user=("alice", "secret"))
            reasons: queue.Queue[Any] = queue.Queue()
            alice.client.on_publish = lambda c, u, mid, code, p: reasons.put(code.value)
            alice.client.publish("locked", b"x", 1)
            assert reasons.get(timeout=WAIT_S) == 0x87

    await over_sockets(script, broker)


async def test_shutdown_says_goodbye() -> None:
    held: list[Peer] = []

    def script(port: int, broker: MemoryBroker) -> None:
        held.append(Peer(port, "d", paho.MQTTv5))

    await over_sockets(script)
    try:
        code = await asyncio.to_thread(held[0].goodbyes.get, timeout=WAIT_S)
        assert code.value == 0x8B
    finally:
        await asyncio.to_thread(held[0].close)


async def test_a_flood_from_many_clients_is_stored_completely() -> None:
    def script(port: int, broker: MemoryBroker) -> None:
        def flood(number: int) -> None:
            with peers(port, paho.MQTTv311) as connect:
                device = connect(f"d{number}", inflight=1000)
                infos = [device.client.publish(f"air/{number}", b"x" * 60, 1) for _ in range(500)]
                for info in infos:
                    info.wait_for_publish(30)

        threads = [threading.Thread(target=flood, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(broker.values("mqtt")) == 2000

    await over_sockets(script)
