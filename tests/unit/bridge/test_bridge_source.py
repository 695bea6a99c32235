"""Goal: what goes out is read from partitions that any node leads, and nothing is given up because
a leader is away or does not know yet what it has; what came in is found wherever it lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from lakemq.broker_core.api.errors import OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Columns, FetchResult, Offset, TopicInfo
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.incoming.inbox import Inbox
from lakemq.plugins.mqtt.bridge.incoming.receiver import Receiver
from lakemq.plugins.mqtt.bridge.outgoing import fetching, source
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Forward, Outbox
from lakemq.plugins.mqtt.bridge.outgoing.source import Source
from lakemq.plugins.mqtt.bridge.records import incoming_headers
from lakemq.plugins.mqtt.bridge.rules import Rules
from tests.support.mqtt.memory_broker import MemoryBroker, until

RULES = [{"direction": "both", "filter": "#", "qos": 2}]


class Partition:
    """Of the topic `mqtt`, led by another node: implements `PartitionReader`."""

    def __init__(self) -> None:
        self.data: list[tuple[int, int, bytes]] = []
        """(first offset, offset behind, batch)."""
        self.start = self.end = 0
        self.away = False
        self.changed = asyncio.Event()

    def add(self, *values: bytes, headers: bytes = b"") -> None:
        columns = Columns(list(values), [b"room"] * len(values), [headers] * len(values))
        base, self.end = self.end, self.end + len(values)
        self.data.append((base, self.end, encode(columns, now_ms=1, base_offset=base)))
        self.changed.set()

    def cut(self, end: int) -> None:
        """Another replica leads, which has less."""
        self.data = [each for each in self.data if each[1] <= end]
        self.end = end

    async def bounds(self) -> tuple[Offset, Offset]:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no node leads it")
        return Offset(self.start), Offset(self.end)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        await self.bounds()
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(f"offset {offset} is not within {self.start}..{self.end}")
        if wait_ms and offset == self.end:
            self.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), wait_ms / 1000)
        for first, behind, batch in self.data:
            if first <= offset < behind <= self.end:
                return FetchResult(batch, Offset(behind), Offset(self.end), Offset(self.start))
        return FetchResult(b"", offset, Offset(self.end), Offset(self.start))

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        raise NotImplementedError


class Elsewhere(MemoryBroker):
    """A node that has no replica of the topic that goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = [Partition(), Partition()]
        self.topic_id = "0a" * 16

    def topic(self, name: str) -> TopicInfo:
        return TopicInfo(name, self.topic_id, len(self.partitions))

    def topics(self) -> list[TopicInfo]:
        return [self.topic("mqtt"), replace(self.topic("other"), topic_id="0b" * 16)]

    def reader(self, topic: str, partition: int, wanted: object = None) -> Partition:  # type: ignore[override]
        return self.partitions[partition]

    def readable_end(self, topic: str, partition: int) -> int | None:
        return None

    def serves(self, topic: str, partition: int) -> bool:
        return False


def settings(**values: object) -> LinkSettings:
    return LinkSettings.model_validate(
        {"name": "far", "url": "mqtt://far", "rules": RULES, "start": "earliest", **values}
    )


class Reading:
    """A source, and the values of what it gave."""

    def __init__(self, broker: Elsewhere, **values: object) -> None:
        self.outbox = Outbox(100, 10_000)
        link = settings(**values)
        self.source = Source(broker, link, Rules([each.rule() for each in link.rules]), self.outbox)
        self.got: list[bytes] = []

    def take(self) -> list[bytes]:
        for one in self.source.take(0):
            assert one.forward is not None
            self.got.append(one.forward.payload)
        return sorted(self.got)


@asynccontextmanager
async def reading(broker: Elsewhere, **values: object) -> AsyncIterator[Reading]:
    found = Reading(broker, **values)
    await found.source.open_cursors(first=True)
    found.source.start()
    try:
        yield found
    finally:
        await found.source.stop()


@pytest.fixture
async def broker() -> Elsewhere:
    return Elsewhere()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_RETRY_MIN_MS", 1)
    monkeypatch.setattr(fetching, "_RETRY_MAX_MS", 2)
    monkeypatch.setattr(source, "WAIT_MS", 10)


def took(found: Reading, *values: bytes) -> Callable[[], bool]:
    return lambda: found.take() == list(values)


async def test_records_of_all_partitions_go_out_wherever_they_are_led(broker: Elsewhere) -> None:
    broker.partitions[0].add(b"a", b"b")
    async with reading(broker) as found:
        told: list[None] = []
        found.source.fetched = lambda: told.append(None)
        await until(took(found, b"a", b"b"))
        assert found.source.lag == 2  # nothing of it is acknowledged
        broker.partitions[1].add(b"c")
        await until(took(found, b"a", b"b", b"c"))
        assert told
        broker.partitions.append(Partition())
        broker.partitions[2].add(b"d")
        await found.source.open_cursors(first=False)
        await until(took(found, b"a", b"b", b"c", b"d"))


async def test_a_new_link_begins_at_the_end_of_every_partition_or_not_at_all(
    broker: Elsewhere,
) -> None:
    """Were one opened later, its history would go out."""
    for each in broker.partitions:
        each.add(b"old")
    broker.partitions[1].away = True
    found = Reading(broker, start="latest")
    with pytest.raises(Unavailable):
        await found.source.open_cursors(first=True)
    broker.partitions[1].away = False
    async with reading(broker, start="latest") as found:
        for each in broker.partitions:
            each.add(b"new")
        await until(took(found, b"new", b"new"))
        assert found.source.lost == 0


async def test_a_leader_that_is_away_holds_no_other_up_and_loses_nothing(
    broker: Elsewhere,
) -> None:
    async with reading(broker) as found:
        broker.partitions[0].away = True
        broker.partitions[0].changed.set()
        broker.partitions[1].add(b"b")
        await until(took(found, b"b"))
        broker.partitions[0].add(b"a")
        await asyncio.sleep(0.02)
        assert found.take() == [b"b"]
        broker.partitions[0].away = False
        await until(took(found, b"a", b"b"))
        assert found.source.lost == 0


async def test_what_retention_deleted_is_counted(broker: Elsewhere) -> None:
    async with reading(broker) as found:
        await asyncio.sleep(0.01)
        one = broker.partitions[0]
        one.start = one.end = 5
        one.add(b"f")
        await until(took(found, b"f"))
        assert found.source.lost == 5
        assert found.outbox.cursors["mqtt", 0].next_offset == 6


async def test_a_leader_that_knows_less_for_a_moment_is_waited_for(broker: Elsewhere) -> None:
    one = broker.partitions[0]
    one.add(b"a")
    one.add(b"b")
    async with reading(broker) as found:
        await until(took(found, b"a", b"b"))
        held = one.data
        one.cut(1)
        one.changed.set()
        await asyncio.sleep(0.02)
        assert found.outbox.cursors["mqtt", 0].next_offset == 2
        one.data, one.end = held, 2
        one.add(b"c")
        await until(took(found, b"a", b"b", b"c"))
        assert found.source.lost == 0


async def test_records_that_are_lost_for_good_end_the_waiting(
    broker: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election: what comes next has offsets that records which went out had."""
    monkeypatch.setattr(fetching, "LOST_S", 0.0)
    one = broker.partitions[0]
    one.add(b"a")
    one.add(b"b")
    async with reading(broker) as found:
        await until(took(found, b"a", b"b"))
        one.cut(1)
        one.changed.set()
        await until(lambda: found.outbox.cursors["mqtt", 0].next_offset == 1)
        assert sorted(found.outbox.cursors["mqtt", 0].unfinished) == [0]
        assert found.source.lost == 1
        one.add(b"x")
        await until(took(found, b"a", b"b", b"x"))
        assert sorted(found.outbox.cursors["mqtt", 0].unfinished) == [0, 1]


async def test_a_topic_that_was_made_again_is_read_from_its_beginning(broker: Elsewhere) -> None:
    broker.partitions[0].add(b"a", b"b")
    async with reading(broker) as found:
        await until(took(found, b"a", b"b"))
        broker.topic_id = "0c" * 16
        broker.partitions = [Partition()]
        broker.partitions[0].add(b"c")
        await found.source.open_cursors(first=False)
        await until(took(found, b"a", b"b", b"c"))
        assert found.source.lost == 2, "what was not acknowledged of the old one"


async def restored(broker: Elsewhere) -> Reading:
    """A link that goes on with record 1 of partition 0 unfinished."""
    found = Reading(broker)
    state = {
        "topic": "mqtt", "topic_id": broker.topic_id, "partition": 0, "next": 2,
        "unfinished": [[1, 9, 0]],
    }  # fmt: skip
    found.outbox.load([state])
    assert found.outbox.restart(session_present=True)
    return found


async def test_what_was_under_way_is_read_again_when_its_leader_is_back(broker: Elsewhere) -> None:
    one = broker.partitions[0]
    one.add(b"a")
    one.add(b"b")
    one.away = True
    found = await restored(broker)
    with pytest.raises(Unavailable):
        await found.source.restore()
    assert (len(found.outbox), found.source.lost) == (1, 0)
    one.away, one.end = False, 1
    with pytest.raises(Unavailable, match="can't be read up to offset 1 yet"):
        await found.source.restore()
    assert (len(found.outbox), found.source.lost) == (1, 0)
    one.end = 2
    await found.source.restore()
    (sent,) = found.outbox.all_unfinished()
    assert sent.forward == Forward("room", b"b", 2, False)
    assert (sent.packet_id, found.source.lost) == (9, 0)


@pytest.mark.parametrize("gone", ["deleted", "cut"])
async def test_what_was_under_way_and_is_gone_is_given_up(
    broker: Elsewhere, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(source, "LOST_S", 0.0)
    one = broker.partitions[0]
    one.add(b"a")
    one.start, one.end = (5, 6) if gone == "deleted" else (0, 0)
    found = await restored(broker)
    await found.source.restore()
    assert (len(found.outbox), found.source.lost) == (0, 1)


# -- what came in


def receiver(broker: Elsewhere, inbox: Inbox) -> Receiver:
    return Receiver(broker, Rules([settings().rules[0].rule()]), inbox, "far", "client")


async def test_qos_2_publishes_are_found_in_partitions_of_other_nodes(broker: Elsewhere) -> None:
    for number, one in enumerate(broker.partitions):
        one.add(b"other")
        for link, packet_id in (("far", 10 + number), ("near", 20 + number)):
            one.add(b"x", headers=incoming_headers(link, "c", 2, packet_id, retain=False))
    broker.partitions[1].start = 1
    inbox = Inbox(1000)
    inbox.positions["mqtt", 0] = 2  # what lies before is known
    await receiver(broker, inbox).recover()
    assert inbox.unreleased == {11}
    assert inbox.positions == {("mqtt", 0): 3, ("mqtt", 1): 3}
    data = broker.partitions[1].data[0][2]
    assert next(readable_batches(data, "mqtt", 1)).values() == [b"other"]
    broker.partitions[0].away = True
    with pytest.raises(Unavailable):
        await receiver(broker, inbox).recover()


async def test_positions_do_not_pass_what_is_being_stored(broker: Elsewhere) -> None:
    inbox = Inbox(1000)
    one = receiver(broker, inbox)
    broker.partitions[0].add(b"of others")
    broker.held = asyncio.Event()
    await one.publish_came("x", b"1", 2, 5, again=False, retain=False)
    await one.advance()
    assert inbox.positions == {}
    broker.held.set()
    await one.settled()
    await one.advance()
    assert inbox.positions == {("mqtt", 0): 1, ("mqtt", 1): 0}
    assert inbox.unreleased == {5}
