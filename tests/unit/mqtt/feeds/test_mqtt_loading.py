"""Goal: what waited in the journal is found again, each record for each session, whatever became of
the journal meanwhile; and what several sessions wait for is read once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakemq.broker_core.api.errors import OffsetOutOfRange, Unavailable, UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import ANONYMOUS, Columns, FetchResult, Offset
from lakemq.plugins.mqtt.feeds import loading
from lakemq.plugins.mqtt.feeds.loading import MessageLoader
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.state.delivery import Delivery
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.wire.messages import Place
from tests.support.mqtt.bench import Bench


class Log:
    """Batches of one partition, a few in each fetch, and how they are found."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = self.end = self.fetches = 0
        self.fails: Exception | None = None

    def append(self, *payloads: bytes, name: str = "t") -> None:
        keys = [name.encode()] * len(payloads)
        data = encode(Columns(list(payloads), keys), now_ms=1, base_offset=self.end)
        self.batches.append((self.end, self.end + len(payloads), data))
        self.end += len(payloads)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        self.fetches += 1
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        if not self.start <= offset < self.end:
            raise OffsetOutOfRange(f"{offset}")
        found = [each for each in self.batches if each[1] > offset][:2]
        data = b"".join(data for _, _, data in found)
        return FetchResult(data, Offset(found[-1][1]), Offset(self.end), Offset(self.start))

    async def bounds(self) -> tuple[Offset, Offset]:
        return Offset(self.start), Offset(self.end)


class Reads:
    """A loader of one partition `mqtt`-0, and the batches that it looked into."""

    def __init__(self) -> None:
        self.log, self.bench, self.opened = Log(), Bench(), list[tuple[int, list[int]]]()
        self.sessions, self.closed = list[Session](), list[object]()
        broker = SimpleNamespace(reader=self._reader_of)
        hub = self.bench.hub
        salvage, messages = Salvage(hub.counters), self._messages
        self._salvaged = salvage.messages
        salvage.messages = messages  # type: ignore[method-assign]
        self.loader = MessageLoader(
            hub, cast(Broker, broker), RecordReader(hub.names), lambda: 0, salvage
        )

    def _reader_of(self, topic: str, partition: int) -> Log:
        if topic == "deleted":
            raise UnknownTopic(topic)
        return self.log

    def _messages(self, reader: Any, batch: Any, heard: Any = None, at: Any = None) -> Any:
        self.opened.append((batch.base_offset, sorted(at)))
        return self._salvaged(reader, batch, heard, at)

    def session(self, *offsets: int, topic: str = "mqtt") -> list[Delivery]:
        """What waits for a session whose client is back, and takes nothing yet."""
        session = Session("d", ANONYMOUS, self.bench.hub.delivery)
        waiting = [Delivery(None, 1, False, (), place=Place(topic, 0, one)) for one in offsets]
        session.outbound.restore([], waiting)
        peer = SimpleNamespace(blocked=True, window=1000, close=lambda *_: self.closed.append(peer))
        session.connection = cast(Peer, peer)
        self.sessions.append(session)
        return waiting

    def load(self) -> None:
        async def all_at_once() -> None:
            await asyncio.gather(*map(self.loader.load, self.sessions))

        asyncio.run(all_at_once())
        self.sessions = []


@pytest.fixture
def reads() -> Reads:
    found = Reads()
    for first in range(0, 30, 3):
        found.log.append(*(b"%d" % number for number in range(first, first + 3)))
    return found


def payloads(waiting: list[Delivery]) -> list[bytes | None]:
    return [each.message.payload if each.message is not None else None for each in waiting]


def test_each_session_gets_its_own_records_in_its_own_order(reads: Reads) -> None:
    some, others = reads.session(28, 1, 7, 8, 1), reads.session(0, 1, 2, 3)
    reads.load()
    assert payloads(some) == [b"28", b"1", b"7", b"8", b"1"]
    assert payloads(others) == [b"0", b"1", b"2", b"3"]
    assert [each.message.place for each in others if each.message] == [
        Place("mqtt", 0, number) for number in range(4)
    ]


def test_what_several_sessions_wait_for_is_read_once(reads: Reads) -> None:
    first = [reads.session(*range(30)) for _ in range(3)]
    reads.load()
    late = reads.session(4, 5, 6)
    reads.load()
    assert all(payloads(each) == [b"%d" % n for n in range(30)] for each in first)
    assert payloads(late) == [b"4", b"5", b"6"]
    assert reads.opened == [(at, [at, at + 1, at + 2]) for at in range(0, 30, 3)]
    assert late[0].message is first[0][4].message


def test_records_that_nobody_waits_for_are_not_made_into_messages(reads: Reads) -> None:
    reads.session(4, 13)
    reads.load()
    waiting = reads.session(3, 4, 5)
    reads.load()
    assert payloads(waiting) == [b"3", b"4", b"5"]
    assert reads.opened == [(3, [4]), (12, [13]), (3, [3, 5])]


def test_another_batch_at_the_same_place_is_not_taken_for_the_first(reads: Reads) -> None:
    """Of a topic that was deleted and made again."""
    before = reads.session(0)
    reads.load()
    reads.log.batches.clear()
    reads.log.end = 0
    reads.log.append(b"x", b"y", b"z")
    after = reads.session(0)
    reads.load()
    assert (payloads(before), payloads(after)) == ([b"0"], [b"x"])


def test_what_is_shared_is_bounded_and_let_go(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SHARED_MAX_BYTES", 5 * (loading.ENTRY_BYTES + 3))
    shared = reads.loader.shared
    for _ in range(2):
        waiting = reads.session(*range(30))
        reads.load()
        assert payloads(waiting) == [b"%d" % number for number in range(30)]
        assert 0 < shared.size_bytes <= loading.SHARED_MAX_BYTES
        assert len(shared._batches) == 1
    assert len(reads.opened) == 20
    shared.clear()
    assert not shared._batches and not shared.size_bytes


def test_a_batch_larger_than_all_that_is_shared_is_read_too(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SHARED_MAX_BYTES", 10)
    waiting = reads.session(*range(30))
    reads.load()
    assert payloads(waiting) == [b"%d" % number for number in range(30)]
    assert not reads.loader.shared._batches and not reads.loader.shared.size_bytes


def test_what_the_journal_has_no_longer_is_gone(reads: Reads) -> None:
    waiting, deleted = reads.session(2, 8, 9, 35), reads.session(1, topic="deleted")
    reads.log.start = 9
    reads.log.batches = reads.log.batches[3:]
    reads.load()
    assert payloads(waiting) == [None, None, b"9", None]
    assert [each.gone for each in [*waiting, *deleted]] == [True, True, False, True, True]
    assert reads.log.fetches == 3  # it says where it begins


def test_a_batch_that_is_corrupt_inside_is_passed_over(reads: Reads) -> None:
    base, end, data = reads.log.batches[1]
    reads.log.batches[1] = base, end, data[:-1] + bytes([data[-1] ^ 1])
    for _ in range(2):  # what could not be read is not remembered either
        waiting = reads.session(2, 3, 4, 6)
        reads.load()
        assert payloads(waiting) == [b"2", None, None, b"6"]
    assert reads.bench.hub.counters.batches_corrupt == 2
    assert len(reads.loader.shared._batches) == 2


def test_a_journal_that_fails_is_asked_again_by_the_next_connection(reads: Reads) -> None:
    waiting = reads.session(1)
    outbound = reads.sessions[0].outbound
    outbound.loading, reads.log.fails = True, Unavailable("away")
    reads.load()
    assert not outbound.loading and len(reads.closed) == 1
    assert payloads(waiting) == [None] and not waiting[0].gone
