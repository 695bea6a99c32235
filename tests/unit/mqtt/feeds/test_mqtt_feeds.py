"""Goal: where a node has no replica of a partition, its subscribers hear each record once and in
order all the same, whoever leads, and whether a replica comes or goes meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from lakemq.broker_core.api.errors import (
    LakeMQError,
    OffsetOutOfRange,
    Unavailable,
    UnknownPartition,
)
from lakemq.broker_core.api.partition_ports import Wanted
from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    Columns,
    CommittedBatch,
    FetchResult,
    Leadership,
    Offset,
    TopicInfo,
)
from lakemq.plugins.mqtt.feeds import cluster_feeds, partition_feed
from lakemq.plugins.mqtt.feeds.arrivals import Arrivals
from lakemq.plugins.mqtt.homes.moving import Arriving, take_over
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.state.snapshots import SessionState
from lakemq.plugins.mqtt.wire.packets import Filter, Suback, Subscribe
from tests.support.mqtt.memory_broker import MemoryBroker
from tests.support.seeds import seeds
from tests.unit.mqtt.state.test_mqtt_stored_records import Client, started, turns

TOPIC = TopicInfo("mqtt", "0a" * 16, 1, leaders=(Leadership("other", 1, ("other",), ("other",)),))


class RemoteBroker(MemoryBroker):
    """A node of a cluster whose topic is another node's. Implements `PartitionReader`, too."""

    def __init__(self) -> None:
        super().__init__()
        self._topics["mqtt"] = TOPIC
        self.records: list[CommittedBatch] = []
        self.start = self.end = 0
        self.replica: int | None = None
        """High watermark of the replica that this node has."""
        self.failing: LakeMQError | None = None
        self.asked = asyncio.Event()
        self.news = asyncio.Event()
        self.wanted: Wanted | None = None
        self.leaves_out: Callable[[], bool] | None = None
        """What the leader does when it is asked for what is wanted alone."""
        self.waits = False
        """It does not answer then, since there is nothing else."""
        self.waiting = 0

    def put(self, value: bytes, count: int = 1) -> None:
        data = encode(Columns([value] * count, [b"t"] * count), now_ms=1, base_offset=self.end)
        self.records.append(CommittedBatch("mqtt", 0, Offset(self.end), data))
        self.end += count
        self.news.set()
        self.news = asyncio.Event()

    def catch_up(self, end: int) -> None:
        """The replica's high watermark moves: taps hear of it."""
        assert self.replica is not None
        fresh = [each for each in self.records if self.replica <= each.base_offset < end]
        self.replica = end
        for tap in self._taps.get("mqtt", ()):
            tap(fresh)

    def moved(self, *replicas: str) -> None:
        held = Leadership("other", 1, ("other", *replicas), ("other",))
        self._topics["mqtt"] = TopicInfo("mqtt", TOPIC.topic_id, 1, leaders=(held,))
        self._tell("mqtt", self._topics["mqtt"])

    def readable_end(self, topic: str, partition: int) -> Offset | None:
        return Offset(self.replica) if topic == "mqtt" and self.replica is not None else None

    def serves(self, topic: str, partition: int) -> bool:
        return topic != "mqtt"

    def reader(  # type: ignore[override]
        self, topic: str, partition: int, wanted: Wanted | None = None
    ) -> RemoteBroker:
        self.wanted = wanted
        return self

    async def bounds(self) -> tuple[Offset, Offset]:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        return Offset(self.start), Offset(self.end)

    async def log_end(self) -> Offset:
        return Offset(self.end)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        if self.wanted is not None and self.waits:
            self.waiting += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
        await asyncio.sleep(0)
        if self.failing is None and offset == self.end and wait_ms:
            await self.news.wait()
        if self.failing is not None:
            raise self.failing
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(f"{offset}")
        if self.wanted is not None and self.leaves_out is not None and self.leaves_out():
            return FetchResult(b"", Offset(self.end), Offset(self.end), Offset(self.start))
        found = [each for each in self.records if read_header(each.data).last_offset >= offset]
        data = b"".join(each.data for each in found[:2])
        behind = read_header(found[:2][-1].data).last_offset + 1 if found else offset
        return FetchResult(data, Offset(behind), Offset(self.end), Offset(self.start))


async def subscribed(engine: MqttEngine) -> Client:
    client = await Client(engine).connect("d")
    client.send(Subscribe(1, (Filter("#", 0),)))
    await turns()
    return client


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_feed, "_RETRY_FIRST_MS", 1)
    monkeypatch.setattr(partition_feed, "_RETRY_MAX_MS", 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


def is_granted(client: Client) -> bool:
    return any(isinstance(each, Suback) and each.codes == (0,) for each in client.got)


async def test_what_comes_behind_suback_is_heard() -> None:
    broker = RemoteBroker()
    broker.put(b"before", 3)
    async with started(broker, durable=False) as engine:
        client = await subscribed(engine)
        assert is_granted(client)
        broker.put(b"after")
        await turns()
        assert client.payloads == [b"after"]
        assert engine.hub.positions["mqtt", 0] == 4


async def test_suback_waits_for_where_a_feed_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_feeds, "HEARD_MAX_S", 10.0)
    broker = RemoteBroker()
    broker.failing = Unavailable("no leader")
    async with started(broker, durable=False) as engine, asyncio.timeout(5):
        client = await subscribed(engine)
        assert not is_granted(client)
        broker.put(b"before")
        broker.failing = None
        await until(lambda: is_granted(client))
        broker.put(b"after")
        await until(lambda: bool(client.payloads))
        assert client.payloads == [b"after"]


async def test_suback_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_feeds, "HEARD_MAX_S", 0.02)
    broker = RemoteBroker()
    broker.failing = Unavailable("no leader")
    async with started(broker, durable=False) as engine, asyncio.timeout(5):
        client = await subscribed(engine)
        assert not is_granted(client)
        await until(lambda: is_granted(client))


async def test_a_leader_that_does_not_know_the_partition_yet_is_asked_again() -> None:
    broker = RemoteBroker()
    async with started(broker, durable=False) as engine, asyncio.timeout(5):
        client = await subscribed(engine)
        broker.failing = UnknownPartition("not yet")
        broker.put(b"x")
        await asyncio.sleep(0.02)
        broker.failing = None
        await until(lambda: client.payloads == [b"x"])


async def test_a_feed_goes_on_where_retention_left_something() -> None:
    broker = RemoteBroker()
    async with started(broker, durable=False) as engine, asyncio.timeout(5):
        client = await subscribed(engine)
        broker.failing = Unavailable("away")
        for value in (b"a", b"b", b"c"):
            broker.put(value)
        broker.start = 2
        broker.failing = None
        await until(lambda: client.payloads == [b"c"])


async def test_lost_records_end_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_feed, "LOST_S", 0.02)
    broker = RemoteBroker()
    broker.put(b"lost", 5)
    async with started(broker, durable=False) as engine, asyncio.timeout(5):
        client = await subscribed(engine)
        broker.records, broker.end = [], 0
        broker.put(b"x")  # wakes the feed
        await until(lambda: engine.hub.positions["mqtt", 0] == 1)
        broker.put(b"y")
        await until(lambda: client.payloads == [b"y"])


async def test_a_deleted_topic_ends_its_feeds() -> None:
    broker = RemoteBroker()
    async with started(broker, durable=False) as engine:
        await subscribed(engine)
        assert engine.arrivals.fed == {("mqtt", 0)}
        broker._tell("mqtt", None)
        assert engine.arrivals.fed == set()
        assert ("mqtt", 0) not in engine.hub.positions


async def test_what_was_left_out_before_a_subscription_is_read_again() -> None:
    """The leader did not know of the subscription when it looked at the record."""
    broker = RemoteBroker()
    async with started(broker, durable=False) as engine:
        grown = 0
        engine._feeds.wanted = lambda: Wanted("f", 1)
        engine._feeds.still = lambda one: grown <= one.number
        broker.leaves_out = lambda: True
        broker.put(b"nobody wants it")
        client = await subscribed(engine)
        await turns()
        assert engine.hub.positions["mqtt", 0] == 1
        grown = 2  # it is told, but the leader has not heard
        broker.put(b"x")
        await until(lambda: client.payloads == [b"x"])


async def test_a_session_does_not_wait_for_what_its_node_left_out() -> None:
    broker = RemoteBroker()
    async with started(broker, durable=False) as engine:
        hub = engine.hub
        await turns()
        engine._feeds.wanted = lambda: None if hub.histories else Wanted("f", 1)
        engine._feeds.still = lambda one: not hub.histories
        broker.waits = True
        broker.put(b"x")
        await until(lambda: broker.waiting == 1)
        broker.put(b"nobody wants it here", 3)
        await turns()
        assert hub.positions["mqtt", 0] == 1
        done: list[int] = []
        state = SessionState(
            "s", ANONYMOUS, "", 100, None, [], {}, {}, [], [], positions={("mqtt", 0): 3}
        )
        take_over(hub, [Arriving(state, 1, False, False)], done.append, {}, engine.now_ms())
        engine.after()
        await until(lambda: bool(done))
        assert hub.positions["mqtt", 0] == 4
        assert not broker.waiting
        broker.put(b"read by what waits without a filter")
        await until(lambda: broker.waiting == 1)
        broker.put(b"left out again")
        await turns()
        assert hub.positions["mqtt", 0] == 5


@pytest.mark.parametrize("seed", seeds(40))
async def test_each_record_is_heard_once_whatever_happens(seed: int) -> None:
    await live(seed)


async def test_taps_beside_a_feed_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation fails where taps are listened to beside feeds."""

    def all_heard(self: Arrivals, topic: str, batches: list[CommittedBatch]) -> None:
        for batch in batches:
            self._take(topic, batch)
        if self.slices.waiting:
            self.slices.begin()

    monkeypatch.setattr(Arrivals, "committed", all_heard)
    with pytest.raises((AssertionError, TimeoutError)):
        for seed in range(40):
            await live(seed, limit_s=1.0)


async def live(seed: int, limit_s: float = 20.0) -> None:
    """A replica comes, catches up and goes, leaders fail, records come."""
    dice = random.Random(seed)
    broker = RemoteBroker()
    sent: list[bytes] = []
    async with started(broker, durable=False) as engine, asyncio.timeout(limit_s):
        client = await subscribed(engine)
        for number in range(60):
            match dice.randrange(6):
                case 0 | 1:
                    value = b"%d" % number
                    broker.put(value)
                    sent.append(value)
                case 2:
                    broker.failing = None if broker.failing else Unavailable("no leader")
                case 3 if broker.replica is None:
                    broker.replica = dice.randint(0, broker.end)
                    broker.moved(broker.node_id)
                case 3:
                    broker.catch_up(broker.end)  # what it has was delivered, or the feed has it
                    broker.replica = None
                    broker.moved()
                case 4 if broker.replica is not None and broker.replica < broker.end:
                    broker.catch_up(dice.randint(broker.replica + 1, broker.end))
                case _:
                    await asyncio.sleep(0.002 * dice.random())
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
        broker.failing = None
        if broker.replica is not None:
            broker.catch_up(broker.end)
        while len(client.payloads) < len(sent):
            await asyncio.sleep(0.001)
            broker.news.set()
            broker.news = asyncio.Event()
        await turns()
        assert client.payloads == sent
