"""Goal: whatever lies in the topics that MQTT reads, a start reads on behind it, and so does
everybody else. A record that is wrong is left out, counted, and named by its place."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import google_crc32c
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import StorageFull, Unavailable
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    RecordBatch,
    encode,
    pack_header,
    read_header,
)
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.state.internal_topics import DELAYED, RETAINED
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    Columns,
    CommittedBatch,
    FetchResult,
    Offset,
    Principal,
)
from lakemq.plugins.mqtt.config import MqttSettings
from lakemq.plugins.mqtt.routing.delayed import Delayed, delayed_bytes
from lakemq.plugins.mqtt.server.ban_log import TOPIC as BANS
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.server.state_store import SESSIONS
from lakemq.plugins.mqtt.session.protocol import ServerProtocol
from lakemq.plugins.mqtt.state.delivery import Delivery, DeliveryLimits
from lakemq.plugins.mqtt.state.sessions import Session, Subscription
from lakemq.plugins.mqtt.state.snapshots import positions_bytes, retained_bytes, session_bytes
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode as encode_packet
from lakemq.plugins.mqtt.wire.messages import Message, Place
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Filter,
    Packet,
    Properties,
    Publish,
    Subscribe,
    Will,
)
from lakemq.plugins.mqtt.wire.topics import parse_filter
from tests.support.mqtt.memory_broker import MemoryBroker, MemoryLog, until
from tests.support.seeds import examples

ALICE = Principal("alice", "user", {"a": "b"}, ("device",))
POISON = b"\x81\x80\x00"
"""A map that has a map as a key."""


FAILURES: list[Any] = []
"""What went wrong in callbacks and tasks."""


@pytest.fixture(autouse=True)
def nothing_fails_unheard() -> Iterator[None]:
    yield
    assert not FAILURES


@pytest.fixture(autouse=True, scope="module")
def nor_later() -> Iterator[None]:
    """Tasks say what they failed of when they are collected."""
    yield
    gc.collect()
    assert not FAILURES


def put(
    broker: MemoryBroker, topic: str, key: bytes, value: bytes | None, headers: bytes = b""
) -> None:
    """A record of the topic, whoever wrote it."""
    base = broker._offsets.get(topic, 0)
    broker._offsets[topic] = base + 1
    columns = Columns([value], [key], [headers])
    data = encode(columns, now_ms=1_700_000_000_000, base_offset=base)
    broker.batches.setdefault(topic, []).append(CommittedBatch(topic, 0, Offset(base), data))


def corrupt(topic: str, base: int) -> CommittedBatch:
    """Whole outside: its sums are right. Inside, its columns end somewhere else."""
    data = encode(Columns([b"v" * 40], [b"t"]), now_ms=1_700_000_000_000, base_offset=base)
    header, body = read_header(data), data[HEADER_BYTES:]
    body = body[:4] + b"\xff\xff\xff\x7f" + body[8:]
    header = header._replace(body_crc32c=google_crc32c.value(body))
    return CommittedBatch(topic, 0, Offset(base), pack_header(header) + body)


def put_corrupt(broker: MemoryBroker, topic: str) -> CommittedBatch:
    base = broker._offsets.get(topic, 0)
    broker._offsets[topic] = base + 1
    batch = corrupt(topic, base)
    broker.batches.setdefault(topic, []).append(batch)
    return batch


@asynccontextmanager
async def started(broker: MemoryBroker, **more: Any) -> AsyncIterator[MqttEngine]:
    """An engine without listeners over what the broker holds."""
    engine = MqttEngine(MqttSettings.model_validate(more), broker)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


class Client:
    """A client of an engine, without a socket."""

    def __init__(self, engine: MqttEngine, version: int = V5) -> None:
        self.engine, self.version = engine, version
        self.connection = ServerProtocol(engine.hub, "127.0.0.1", engine.now_ms())
        self.got: list[Packet] = []
        self._decoder = Decoder(1 << 28, version=version)
        engine.links[self.connection] = self  # type: ignore[assignment]
        self.overloaded = False

    def flush(self) -> None:
        self.got += self._decoder.feed(b"".join(self.connection.out))
        self.connection.out.clear()

    def resume_reading(self) -> None: ...

    def pause(self) -> None: ...

    def abort(self) -> None: ...

    def send(self, packet: Packet) -> None:
        self.connection.receive(encode_packet(packet, self.version), self.engine.now_ms())
        self.engine.after()

    async def connect(self, client_id: str, principal: Principal = ANONYMOUS) -> Client:
        self.send(Connect(client_id, self.version, False, properties=Properties()))
        self.connection.authenticated(principal, self.engine.now_ms())
        self.engine.after()
        await turns()
        return self

    @property
    def payloads(self) -> list[bytes]:
        return [each.payload for each in self.got if isinstance(each, Publish)]


async def turns() -> None:
    """Until nothing moves any more."""
    for _ in range(60):
        await asyncio.sleep(0)


# -- values


def a_session() -> bytes:
    session = Session("d", ALICE, DeliveryLimits())
    session.incarnation, session.expiry_s = "1-a", 3600
    session.will = Will("w", b"bye", 1, True, Properties(user_properties=(("k", "v"),)))
    for text in ("t/+", "$share/g/t/#", "$exclusive/x"):
        session.subscriptions[text] = Subscription(session, parse_filter(text), 1, 7)
    session.incoming, session.released = {1: Place("mqtt", 0, 0)}, {("mqtt", 0): 1}
    copy = Message("t/1", b"copy", 1, False, 5, b"", 60, "o")
    released = Delivery(None, 2, False, (1,), place=Place("mqtt", 0, 0))
    released.released = True
    session.outbound.restore(
        [(3, released), (4, Delivery(copy, 1, True, ()))],
        [Delivery(None, 1, False, (), place=Place("mqtt", 0, 1))],
    )
    state = msgpack.unpackb(session_bytes(session, {("mqtt", 0): 1}))
    state["rep"] = [["$replay/earliest/t/#", 0, None, [["mqtt", 0, 0]]]]
    state["sub"].append(["$replay/earliest/t/#", 1, 0])
    return bytes(msgpack.packb(state))


def a_delayed_publish() -> bytes:
    named = Properties(message_expiry_s=9, content_type="x", correlation_data=b"c")
    return delayed_bytes(Delayed("k", 1, Publish("t/1", b"x", 1, properties=named), "d", ALICE))


VALUES = {
    SESSIONS: (b"d", a_session()),
    RETAINED: (b"t/1", retained_bytes(Message("t/1", b"kept", 1, True, 5, b"", 60, "o"))),
    DELAYED: (b"k", a_delayed_publish()),
    BANS: (b"client_id/x", bytes(msgpack.packb({"until": None, "why": "w"}))),
}
POSITIONS = positions_bytes({("mqtt", 0): 1})
MISFITS: list[Any] = [
    None, True, -1, 0, 3, 2**31, 2**63, 1.5, float("nan"), "", "a\0b", "#/a", "x" * 70_000, b"",
    b"\xff", "node", "mqtt", "nowhere", [], [[]], [1, 2, 3], ["mqtt", 0, 10**9], ["mqtt", 9, 0],
    ["__mqtt_sessions", 0, 0], {}, {"k": 1}, msgpack.ExtType(3, b"x"), msgpack.Timestamp(1, 1),
    [["t", 1, 0]] * 3,
]  # fmt: skip


def mutated(value: Any, dice: random.Random) -> Any:
    """The value with something else somewhere in it."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        if dice.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: mutated(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.8:
        place = dice.randrange(len(value))
        if dice.random() < 0.1:
            return value[:place] + value[place + 1 :]
        return [*value[:place], mutated(value[place], dice), *value[place + 1 :]]
    return dice.choice(MISFITS)


async def lives_with(*records: tuple[str, bytes, bytes | None, bytes]) -> MqttEngine:
    """Start over these records, let a client do everything, and stop."""
    broker = MemoryBroker()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: FAILURES.append(context))
    for number in range(2):
        put(broker, "mqtt", b"t/1", b"%d" % number, encode_headers((("mqtt.qos", b"2"),)))
    for topic, key, value, headers in records:
        put(broker, topic, key, value, headers)
    async with started(broker, delayed_max_s=10) as engine:
        client = await Client(engine).connect("d", ALICE)
        client.send(Subscribe(1, (Filter("#", 1), Filter("t/1", 1))))
        client.send(Subscribe(2, (Filter("$replay/earliest/#", 1),)))
        await turns()
        client.send(Publish("t/1", b"new", 1, packet_id=1))
        await turns()
        engine.hub.tick(engine.now_ms() + 10_000_000)
        engine._release_due()
        await turns()
        assert any(isinstance(each, Connack) for each in client.got)
    return engine


@pytest.mark.parametrize("topic", VALUES)
def test_a_start_reads_on_behind_a_record_that_is_no_snapshot(topic: str) -> None:
    values = [POISON, b"", b"\xc1", b"\xd9", b"\x93" * 2000, b"\x81\xa1v\x01"]
    for key, value in itertools.product((b"", b"\xff\xfe", VALUES[topic][0]), values):
        engine = asyncio.run(lives_with((topic, key, value, b"")))
        assert engine.hub.counters.records_unreadable == 1


@pytest.mark.parametrize("topic", VALUES)
@pytest.mark.parametrize("first", range(0, 120, 40))
def test_a_start_reads_on_behind_mutated_records(topic: str, first: int) -> None:
    """Either the record is left out or everything that it says can be lived with."""
    key, good = VALUES[topic]
    for seed in range(first, first + 40):
        dice = random.Random(seed)
        value = msgpack.packb(mutated(msgpack.unpackb(good), dice))
        try:
            asyncio.run(lives_with((topic, key, bytes(value), b"")))
        except BaseException:
            print(f"seed {seed}: {msgpack.unpackb(value, strict_map_key=False)}")
            raise


NESTED = st.recursive(
    st.sampled_from(MISFITS[:-1]) | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(list(VALUES)),
    st.sampled_from([b"", b"d", b"host/x", b"client_id/y"]),
    st.one_of(st.binary(max_size=60), NESTED.map(lambda one: bytes(msgpack.packb(one)))),
)
def test_no_record_stops_a_start(topic: str, key: bytes, value: bytes) -> None:
    asyncio.run(lives_with((topic, key, value, b"")))


@pytest.mark.parametrize(
    ("topic", "key"), [(RETAINED, b""), (DELAYED, b"")], ids=["retained", "delayed"]
)
def test_positions_that_are_wrong_are_left_out(topic: str, key: bytes) -> None:
    for seed in range(40):
        value = mutated(msgpack.unpackb(POSITIONS), random.Random(seed))
        asyncio.run(lives_with((topic, key, bytes(msgpack.packb(value)), b"")))


def test_what_is_left_out_is_named_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        asyncio.run(lives_with(*((topic, b"k", POISON, b"") for topic in VALUES)))
    said = "\n".join(caplog.messages)
    for topic in VALUES:
        assert f"{topic}-0 offset 0" in said


@pytest.mark.parametrize("kind", ["node", "admin", "", None, 1])
def test_no_record_makes_a_session_the_brokers_own(kind: object) -> None:
    """A session, its will or a delayed publish of kind `node` would pass every rule."""
    for topic, field in ((SESSIONS, "who"), (DELAYED, "who")):
        key, good = VALUES[topic]
        value = msgpack.unpackb(good)
        value[field][1] = kind
        engine = asyncio.run(lives_with((topic, key, bytes(msgpack.packb(value)), b"")))
        assert engine.hub.counters.records_unreadable == 1
        assert engine.hub.delays.published == 0


def test_a_subscription_that_is_none_any_more_takes_no_session_with_it() -> None:
    broker = MemoryBroker()

    async def run() -> None:
        put(broker, SESSIONS, b"d", a_session())
        async with started(broker, rewrites=[{"filter": "x", "target": "deep/" * 9}]) as engine:
            assert "$exclusive/x" in engine.hub.sessions["d"].subscriptions
        async with started(
            broker, topic_levels_max=8, rewrites=[{"filter": "x", "target": "deep/" * 9}]
        ) as engine:
            assert list(engine.hub.sessions["d"].subscriptions) == [
                "t/+",
                "$share/g/t/#",
                "$replay/earliest/t/#",
            ]

    asyncio.run(run())


# -- records of bound topics

HEADER_NAMES = [
    "mqtt.qos", "mqtt.retain", "mqtt.topic", "mqtt.client", "mqtt.qos2_id", "mqtt.delayed_id",
    "mqtt.payload_format", "mqtt.message_expiry_s", "mqtt.content_type", "mqtt.response_topic",
    "mqtt.correlation_data", "mqtt.user.x", "x", "\0", "",
]  # fmt: skip
HEADER_VALUES = [
    None, b"", b"1", b"2", b"9" * 10, b"\xff", b"a\0b", b"t/1", b"#", b"1-a/7", b"1-a/\xc2\xb2",
    b"/", b"1-a/99999999", b"x" * 65_535, b"x" * 70_000, b"a/" * 200,
]  # fmt: skip


def a_record(dice: random.Random) -> tuple[str, bytes, bytes | None, bytes]:
    """As a native producer may write it into a bound topic."""
    said = [
        (dice.choice(HEADER_NAMES), dice.choice(HEADER_VALUES)) for _ in range(dice.randrange(6))
    ]
    headers = encode_headers(tuple(said))
    if dice.random() < 0.2:
        headers = headers[: dice.randrange(len(headers) + 1)] + dice.randbytes(3)
    key = dice.choice([b"", b"t/1", b"\xff", b"#", b"a\0", b"x" * 70_000, b"/" * 300, b"$SYS/a"])
    return "mqtt", key, dice.choice([None, b"", b"v", b"\xff" * 100]), headers


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_no_record_of_a_bound_topic_stops_anybody(first: int) -> None:
    for seed in range(first, first + 20):
        records = [a_record(random.Random(100 * seed + number)) for number in range(3)]
        try:
            asyncio.run(lives_with((SESSIONS, b"d", a_session(), b""), *records))
        except BaseException:
            print(f"seed {seed}: {records}")
            raise


def test_a_record_of_the_far_future_that_expires_is_delivered() -> None:
    """The remaining time of a message has 32 bits."""

    async def run() -> list[bytes]:
        broker = MemoryBroker()
        async with started(broker) as engine:
            client = await Client(engine).connect("d")
            client.send(Subscribe(1, (Filter("#", 0),)))
            await turns()
            headers = encode_headers((("mqtt.message_expiry_s", b"5"), ("mqtt.qos", b"0")))
            data = encode(Columns([b"late"], [b"t"], [headers]), now_ms=2**60, base_offset=0)
            engine.arrivals.committed("mqtt", [CommittedBatch("mqtt", 0, Offset(0), data)])
            await turns()
            return client.payloads

    assert asyncio.run(run()) == [b"late"]


def test_clients_may_not_write_what_mqtt_believes_into_bound_topics() -> None:
    async def run() -> MemoryBroker:
        broker = MemoryBroker()
        async with started(broker):
            pass
        return broker

    assert asyncio.run(run()).reserved == {
        "mqtt": {"mqtt.client", "mqtt.qos2_id", "mqtt.delayed_id", "mqtt.owner"}
    }


@pytest.mark.parametrize("fails", [False, True])
def test_positions_of_delayed_publishes_are_kept_with_the_removals_below_them(fails: bool) -> None:
    """Else a crash right behind them would have them published again."""

    async def run() -> list[CommittedBatch]:
        broker = MemoryBroker()
        put(broker, DELAYED, b"", positions_bytes({("mqtt", 0): 0}))
        put(broker, DELAYED, *VALUES[DELAYED])
        put(broker, "mqtt", b"t/1", b"x", encode_headers((("mqtt.delayed_id", b"k"),)))
        broker.failure = StorageFull("the disk is full") if fails else None
        async with started(broker) as engine:
            await turns()
            broker.failure = None
            engine.journal.checkpoint()
            await turns()
            assert (engine.hub.delays.ready, len(engine.hub.delays)) == (True, 0)
        return broker.batches[DELAYED]

    _, _, first, *_ = asyncio.run(run())
    written = RecordBatch(first.data)
    assert (written.keys(), written.values()[0]) == ([b"k", b""], None)


# -- batches that are whole outside and corrupt inside


@pytest.mark.parametrize("topic", ["mqtt", *VALUES])
def test_a_start_steps_over_a_corrupt_batch(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> tuple[list[bytes], int]:
        broker = MemoryBroker()
        async with started(broker) as engine:
            client = await Client(engine, V311).connect("away")
            client.send(Subscribe(1, (Filter("t", 1),)))
            await turns()
            client.connection.lost(engine.now_ms())
        put(broker, "mqtt", b"t", b"before")
        put_corrupt(broker, topic)
        put(broker, "mqtt", b"t", b"after")
        async with started(broker) as engine:
            client = await Client(engine, V311).connect("away")
            await turns()
            return client.payloads, engine.hub.counters.batches_corrupt

    with caplog.at_level(logging.ERROR):
        payloads, counted = asyncio.run(run())
    assert payloads == [b"before", b"after"]
    assert counted >= 1
    assert any(f"{topic}-0 offset" in each for each in caplog.messages)


def test_a_live_corrupt_batch_is_stepped_over() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with started(broker) as engine:
            client = await Client(engine).connect("d")
            client.send(Subscribe(1, (Filter("#", 0),)))
            await turns()
            engine.arrivals.committed("mqtt", [put_corrupt(broker, "mqtt")])
            assert engine.hub.positions["mqtt", 0] == 1
            assert engine.hub.counters.batches_corrupt == 1
            client.send(Publish("t", b"on", 1, packet_id=1))
            await turns()
            assert client.payloads == [b"on"]

    asyncio.run(run())


def test_a_replay_steps_over_a_corrupt_batch() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        put(broker, "mqtt", b"t", b"before")
        put_corrupt(broker, "mqtt")
        put(broker, "mqtt", b"t", b"after")
        async with started(broker) as engine:
            client = await Client(engine).connect("d")
            client.send(Subscribe(1, (Filter("$replay/earliest/#", 0),)))
            await turns()
            assert client.payloads == [b"before", b"after"]
            assert engine.hub.histories == {}

    asyncio.run(run())


def test_a_replay_goes_on_behind_reads_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakemq.plugins.mqtt.feeds.history_reader._RETRY_FIRST_MS", 1)
    failures = [Unavailable("busy")] * 3
    fetch = MemoryLog.fetch

    async def failing(self: MemoryLog, offset: Offset, **more: Any) -> FetchResult:
        if failures:
            raise failures.pop()
        return await fetch(self, offset, **more)

    async def run() -> None:
        broker = MemoryBroker()
        put(broker, "mqtt", b"t", b"stored")
        async with started(broker) as engine:
            monkeypatch.setattr(MemoryLog, "fetch", failing)
            client = await Client(engine).connect("d")
            client.send(Subscribe(1, (Filter("$replay/earliest/#", 0),)))
            await until(lambda: client.payloads == [b"stored"])
            assert not failures

    asyncio.run(run())


def test_what_waits_in_a_corrupt_batch_is_gone_and_what_is_behind_it_comes() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with started(broker) as engine:
            client = await Client(engine, V311).connect("away")
            client.send(Subscribe(1, (Filter("t", 1),)))
            await turns()
            client.connection.lost(engine.now_ms())
            await turns()
            sender = await Client(engine).connect("s")
            for number in range(3):
                sender.send(Publish("t", b"%d" % number, 1, packet_id=number + 1))
                await turns()
            stored = broker.batches["mqtt"]
            stored[1] = corrupt("mqtt", stored[1].base_offset)
            client = await Client(engine, V311).connect("away")
            await turns()
            assert client.payloads == [b"0", b"2"]
            assert engine.hub.delivery.dropped_gone == 1

    asyncio.run(run())


def test_what_waits_in_a_topic_that_was_deleted_is_gone() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        put(broker, SESSIONS, b"d", a_session().replace(b"mqtt", b"left"))
        async with started(broker) as engine:
            client = await Client(engine).connect("d", ALICE)
            await turns()
            assert client.payloads == [b"copy"]
            assert not client.connection.ended
            assert engine.hub.delivery.dropped_gone == 1

    asyncio.run(run())


def test_a_topic_that_was_deleted_and_created_again_is_delivered_from_its_start() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with started(broker) as engine:
            client = await Client(engine).connect("d")
            client.send(Subscribe(1, (Filter("#", 0),)))
            for number in range(3):
                client.send(Publish("t", b"%d" % number, 1, packet_id=number + 1))
                await turns()
            assert engine.hub.positions["mqtt", 0] == 3
            await broker.delete_topic("mqtt")
            assert not engine.hub.positions
            await broker.create_topic("mqtt")
            client.send(Publish("t", b"new", 1, packet_id=4))
            await turns()
            assert client.payloads == [b"0", b"1", b"2", b"new"]
            assert engine.hub.positions["mqtt", 0] == 1

    asyncio.run(run())
