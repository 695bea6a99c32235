"""Goal: a node that follows a state topic holds what the topic says, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.ports import PartitionReader
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.state import followed
from lakemq.broker_core.api.state.followed import FollowedRecord, FollowedTopic
from lakemq.broker_core.api.state.state_topic import StateTopic
from tests.support.mqtt.memory_broker import MemoryBroker, until

TOPIC = "__mqtt_bans"


class Host(MemoryBroker):
    """A broker whose topic may be out of reach."""

    cut = False

    def reader(self, topic: str, partition: int) -> PartitionReader:
        if self.cut:
            raise Unavailable("no node leads it")
        return super().reader(topic, partition)


class Map:
    """Implements `Follower`: the newest values."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.headers: list[bytes] = []
        self.restored = 0
        self.fails = 0

    def restore(self, newest: Sequence[FollowedRecord]) -> None:
        assert [each.offset for each in newest] == sorted(each.offset for each in newest)
        assert all(each.value is not None for each in newest)
        self.restored += 1
        self.held.clear()
        self.take(newest)

    def take(self, records: Sequence[FollowedRecord]) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("a fault")
        for each in records:
            self.headers.append(each.headers)
            if each.value is None:
                self.held.pop(each.key, None)
            else:
                self.held[each.key] = each.value


@pytest.fixture
async def host() -> Host:
    made = Host()
    await StateTopic(made, TOPIC).ensure()
    return made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "RETRY_MIN_MS", 1)
    monkeypatch.setattr(followed, "RETRY_MAX_MS", 2)


@contextlib.asynccontextmanager
async def following(host: Host, wait_s: float = 20) -> AsyncIterator[tuple[FollowedTopic, Map]]:
    found = Map()
    topic = FollowedTopic(host, TOPIC, found)
    await topic.start(wait_s)
    try:
        yield topic, found
    finally:
        await topic.stop()


async def test_what_there_is_is_held_when_start_returns_and_what_comes_after_it(host: Host) -> None:
    state = StateTopic(host, TOPIC, routed=True)
    await state.write({b"a": b"1", b"b": b"1"})
    await state.write({b"a": b"2", b"b": None, b"c": b"3"})
    async with following(host) as (topic, found):
        assert found.held == {b"a": b"2", b"c": b"3"}
        assert topic.offset == 5
        await state.delete(b"a")
        await state.put(b"b", b"4")
        await until(lambda: found.held == {b"b": b"4", b"c": b"3"})
        assert found.restored == 1


async def test_headers_are_written_and_followed(host: Host) -> None:
    state, header = StateTopic(host, TOPIC, routed=True), encode_headers((("s", b"x"),))
    async with following(host) as (_, found):
        await state.write({b"a": None, b"b": b"1"}, headers={b"a": header})
        await until(lambda: len(found.headers) == 2)
        assert found.headers == [header, b""]
        done: list[object] = []
        state.write_all({b"c": None}, done.append, headers={b"c": header})
        await until(lambda: len(found.headers) == 3)
        assert (found.headers[-1], done) == (header, [None])


async def test_a_topic_out_of_reach_does_not_keep_a_start_for_ever(host: Host) -> None:
    await StateTopic(host, TOPIC).put(b"a", b"1")
    host.cut = True
    async with following(host, wait_s=0.01) as (topic, found):
        assert (found.restored, topic.offset) == (0, 0)
        host.cut = False
        await until(lambda: found.held == {b"a": b"1"})


async def test_lost_records_are_forgotten(host: Host) -> None:
    state = StateTopic(host, TOPIC)
    await state.put(b"a", b"1")
    await state.put(b"b", b"2")
    async with following(host) as (_, found):
        del host.batches[TOPIC][1:]  # an unclean election
        host._offsets[TOPIC] = 1
        for event in host._waiting.get(TOPIC, ()):
            event.set()
        await until(lambda: found.held == {b"a": b"1"})
        await state.put(b"c", b"3")
        await until(lambda: found.held == {b"a": b"1", b"c": b"3"})


async def test_another_topic_of_the_name_begins_anew(host: Host) -> None:
    await StateTopic(host, TOPIC).put(b"a", b"1")
    async with following(host) as (_, found):
        await host.delete_topic(TOPIC)
        for event in host._waiting.get(TOPIC, ()):
            event.set()
        state = StateTopic(host, TOPIC)
        await state.ensure()
        await until(lambda: found.restored == 2)
        assert found.held == {}
        await state.put(b"b", b"2")
        await until(lambda: found.held == {b"b": b"2"})


async def test_records_that_met_a_fault_are_taken_again(host: Host) -> None:
    async with following(host) as (_, found):
        found.fails = 2
        await StateTopic(host, TOPIC).put(b"a", b"1")
        await until(lambda: found.held == {b"a": b"1"})
        assert found.fails == 0


async def test_stop_ends_the_following(host: Host) -> None:
    async with following(host) as (_, found):
        pass
    await StateTopic(host, TOPIC).put(b"a", b"1")
    await asyncio.sleep(0)
    assert found.held == {}
