"""Goal: the state that a `StateTopic` gives back is the newest of what was on disk, whatever went
wrong between; who writes hears once, and only of what is true.

Method: a log in memory with planted faults: appends that fail, are cancelled or wait; batches that
are corrupt inside; a log start that moves while it is read; a partition that another node leads;
and simulated disks that end at any step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    CorruptLog,
    InvalidRequest,
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    StorageFull,
    TopicExists,
    UnknownTopic,
)
from lakemq.broker_core.api.records.batch import BODY_MAX_BYTES, BatchHeader, read_header, stamp
from lakemq.broker_core.api.records.stored import SKIPPED
from lakemq.broker_core.api.state import state_topic
from lakemq.broker_core.api.state.internal_topics import OLDER_NAMES, RETAINED
from lakemq.broker_core.api.state.state_topic import Done, StateRecord, StateTopic
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    FetchResult,
    Offset,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.groups.offset_table import OFFSETS_TOPIC
from lakemq.broker_core.queues.snapshot import QUEUES_TOPIC
from lakemq.broker_core.transactions import formats
from lakemq.plugins.mqtt.bridge.state_log import STATES
from lakemq.plugins.mqtt.server import ban_log, delay_log
from lakemq.plugins.mqtt.server.state_store import SESSIONS
from tests.support.node.crashing_broker import Crashed, CrashingBroker, Disk
from tests.support.poison import garbage_lengths

NAME = "__state"
OLD = ("offsets", "queues", "transactions", "staged", "delayed")


class Log:
    """One partition in memory."""

    def __init__(self) -> None:
        self.stored: list[tuple[BatchHeader, bytes]] = []
        self.start = 0
        self.fetches = 0
        self.acks: list[Acks] = []
        self.faults: list[LakeMQError | str] = []
        """What the next appends do: fail, be `cancelled`, or be `held`."""
        self.held: list[asyncio.Future[AppendResult]] = []
        self.on_fetch: Callable[[], None] = lambda: None

    @property
    def log_start_offset(self) -> int:
        return self.start

    @property
    def high_watermark(self) -> int:
        return self.stored[-1][0].last_offset + 1 if self.stored else self.start

    log_end_offset = high_watermark

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        fault = self.faults.pop(0) if self.faults else None
        self.acks.append(acks)
        if isinstance(fault, LakeMQError):
            future.set_exception(fault)
            return future
        if fault == "cancelled":
            future.cancel()
            return future
        stamped, data = stamp(batch, header, self.high_watermark, 0)
        self.stored.append((stamped, data))
        result = AppendResult(Offset(stamped.base_offset), Offset(stamped.last_offset), acks)
        if fault == "held":
            self.held.append(future)
        else:
            future.set_result(result)
        return future

    async def fetch(self, offset: int, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        await asyncio.sleep(0)
        self.fetches += 1
        self.on_fetch()
        if not self.start <= offset <= self.high_watermark:
            raise OffsetOutOfRange(f"offset {offset}")
        data, following = b"", offset
        for header, batch in self.stored:
            if header.last_offset < offset:
                continue
            if data and len(data) + len(batch) > bytes_max:
                break
            data, following = data + batch, header.last_offset + 1
        return FetchResult(data, Offset(following), Offset(self.high_watermark), Offset(self.start))


class Host:
    """The part of the `Broker` port that a state topic uses."""

    def __init__(self, partitions: int = 1) -> None:
        self.logs = [Log() for _ in range(partitions)]
        self.created: list[tuple[str, int, TopicConfig]] = []
        self.known = False
        self.quicker = False
        """Whether another node creates the topic first."""
        self.leader: str | None = None
        """Another node that leads all partitions."""

    def topic(self, name: str) -> TopicInfo:
        if not self.known:
            raise UnknownTopic(name)
        return TopicInfo(name, "0" * 32, len(self.logs))

    def topic_defaults(self) -> TopicConfig:
        return TopicConfig(retention_ms=5, retention_bytes=7, batch_max_bytes=1024)

    async def create_topic(self, name: str, partitions: int, config: TopicConfig) -> None:
        await asyncio.sleep(0)
        if self.quicker:
            raise TopicExists(name)
        self.created.append((name, partitions, config))
        self.known = True

    async def ensure_topic(self, name: str) -> None:
        self.known = True

    def partition(self, topic: str, partition: int) -> Log:
        self.topic(topic)
        if self.leader is not None:
            raise NotLeader(f"{topic} is led by {self.leader}", leader=self.leader, epoch=2)
        return self.logs[partition]


def a_topic(host: Any, **options: Any) -> StateTopic:
    return StateTopic(host, NAME, now_ms=lambda: 1, **options)


@pytest.fixture
async def host() -> Host:
    host = Host()
    await a_topic(host).ensure()
    return host


async def values(host: Host) -> dict[bytes, bytes | None]:
    """What another life of the owner reads."""
    return {key: record.value for key, record in (await a_topic(host).load()).items()}


def listener() -> tuple[list[LakeMQError | None], Done]:
    told: list[LakeMQError | None] = []
    return told, told.append


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- the topic


async def test_the_topic_is_created_once_compacted_and_without_retention() -> None:
    host = Host()
    topic = a_topic(host, partitions=3)
    await asyncio.gather(topic.ensure(), topic.ensure())
    ((name, partitions, config),) = host.created
    assert (name, partitions, config.cleanup) == (NAME, 3, "compact")
    assert (config.retention_ms, config.retention_bytes) == (None, None)
    assert (config.segment_max_bytes, config.batch_max_bytes) == (16 * 1024 * 1024, 1024)


async def test_values_of_a_whole_batch_are_taken_whatever_the_defaults_are() -> None:
    host = Host()
    await a_topic(host, large_values=True, compacted=False).ensure()
    ((_, _, config),) = host.created
    assert (config.cleanup, config.compression) == ("delete", "producer")
    assert config.batch_max_bytes == BODY_MAX_BYTES


async def test_another_node_may_create_it_first() -> None:
    host = Host()
    host.quicker = True
    await a_topic(host).ensure()
    assert host.known and not host.created


@pytest.mark.parametrize("name", ["mine", "_mine", "_lakemq_new", "_lakemq_offsets2"])
def test_state_is_kept_in_internal_topics_of_the_one_prefix_alone(name: str) -> None:
    with pytest.raises(ValueError, match=f"internal topic '{name}' must be named __"):
        StateTopic(Host(), name)  # type: ignore[arg-type]


def test_the_names_of_topics_that_hold_data_do_not_change() -> None:
    """No build would find what another one wrote."""
    names = {formats.STAGED_TOPIC, formats.TRANSACTIONS_TOPIC, formats.SCHEDULES_TOPIC}
    assert names | {OFFSETS_TOPIC, QUEUES_TOPIC} == OLDER_NAMES
    assert {f"_lakemq_{each}" for each in OLD} == OLDER_NAMES
    mqtt = {SESSIONS, RETAINED, delay_log.TOPIC, ban_log.TOPIC}
    assert mqtt == {f"__mqtt_{each}" for each in ("sessions", "retained", "delayed", "bans")}
    assert STATES == "__bridge"


# -- reading back


async def test_a_topic_that_is_absent_holds_nothing() -> None:
    host = Host()
    assert await a_topic(host).load() == {}
    assert [each async for each in a_topic(host).records()] == []


async def test_the_newest_value_of_a_key_counts_and_a_tombstone_deletes_it(host: Host) -> None:
    topic = a_topic(host)
    await topic.put(b"a", b"1")
    await topic.write({b"a": b"2", b"b": b"3"})
    await topic.delete(b"b")
    await topic.put(b"c", b"")
    assert await a_topic(host).load() == {
        b"a": StateRecord(0, 1, b"a", b"2"),
        b"c": StateRecord(0, 4, b"c", b""),
    }
    assert [each.value async for each in a_topic(host).records()] == [b"1", b"2", b"3", None, b""]


async def test_keys_stay_in_their_partition() -> None:
    host = Host(4)
    topic = a_topic(host, partitions=4)
    await topic.ensure()
    for key in (b"a", b"b", b"c", b"d"):
        await topic.put(key, key, partition=topic.partition_of(key))
    assert sum(bool(log.stored) for log in host.logs) > 1
    assert await values(host) == {key: key for key in (b"a", b"b", b"c", b"d")}


async def test_a_corrupt_batch_is_stepped_over_counted_and_named(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    topic = a_topic(host)
    await topic.put(b"a", b"1")
    bad = garbage_lengths()
    host.logs[0].stored.append(stamp(bad, read_header(bad), 1, 0))
    await topic.put(b"b", b"2")
    before = SKIPPED.count
    assert await values(host) == {b"a": b"1", b"b": b"2"}
    assert SKIPPED.count == before + 1
    assert f"topic {NAME} partition 0 offset 1" in caplog.text


async def test_a_record_that_its_owner_cannot_decode_is_counted_and_named(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    topic = a_topic(host)
    await topic.write({b"a": b"1", b"b": b"not a number"})
    found = {}
    async for record in topic.records():
        try:
            found[record.key] = int(record.value or b"")
        except ValueError as error:
            topic.skip(record, error)
    assert (found, topic.skipped) == ({b"a": 1}, 1)
    assert f"skipping undecodable record in {NAME}-0 at offset 1: invalid literal" in caplog.text


async def test_what_restores_a_table_skips_what_it_cannot_take(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    topic = a_topic(host)
    await topic.write({b"x": b"0"})
    await topic.write({b"a": b"1", b"b": b"not a number", b"c": None, b"a2": b"2"})
    found: dict[bytes, int | None] = {}

    def take(key: bytes, value: bytes | None) -> None:
        found[key] = None if value is None else int(value)

    await topic.restore(take)
    assert found == {b"x": 0, b"a": 1, b"c": None, b"a2": 2} and topic.skipped == 1
    assert f"{NAME}-0 at offset 2" in caplog.text


async def test_compaction_leaves_gaps(host: Host) -> None:
    topic = a_topic(host)
    for number in range(6):
        await topic.put(b"k%d" % (number % 2), b"%d" % number)
    log = host.logs[0]
    log.stored = [log.stored[0], *log.stored[4:]]
    assert await values(host) == {b"k0": b"4", b"k1": b"5"}


async def test_the_log_start_may_move_while_it_is_read(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_topic, "READ_BYTES", 1)
    topic = a_topic(host)
    for number in range(6):
        await topic.put(b"k%d" % number, b"v")
    log = host.logs[0]

    def trim() -> None:
        if log.fetches == 2:
            log.start, log.stored = 4, log.stored[4:]

    log.on_fetch = trim
    assert set(await values(host)) == {b"k0", b"k4", b"k5"}


async def test_what_cannot_be_read_at_all_ends_the_start(host: Host) -> None:
    await a_topic(host).put(b"a", b"1")

    def fail() -> None:
        raise CorruptLog("the disk is broken")

    host.logs[0].on_fetch = fail
    with pytest.raises(CorruptLog, match="broken"):
        await a_topic(host).load()


async def test_loading_takes_the_memory_of_what_is_alive_and_one_fetch(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_topic, "READ_BYTES", 1000)
    topic = a_topic(host)
    for number in range(200):
        await topic.put(b"k", b"%d" % number * 100)
    assert list(await values(host)) == [b"k"]
    assert host.logs[0].fetches > 20, "not the whole topic in one piece"


async def test_one_value_is_read_by_its_offset(host: Host) -> None:
    topic = a_topic(host)
    await topic.write({b"a": b"1", b"b": b"2", b"c": None})
    assert await topic.value_at(0, 1) == b"2"
    with pytest.raises(CorruptLog, match="no value at offset 2"):
        await topic.value_at(0, 2)


# -- writing


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.REPLICATED])
async def test_a_write_waits_for_what_its_owner_chose(host: Host, acks: Acks) -> None:
    await a_topic(host, acks=acks).put(b"a", b"1")
    assert host.logs[0].acks == [acks]


async def test_entries_of_one_write_are_one_batch(host: Host) -> None:
    await a_topic(host).write({b"a": b"1", b"b": None})
    assert len(host.logs[0].stored) == 1


async def test_back_pressure_reaches_the_writer(host: Host) -> None:
    host.logs[0].faults = [StorageFull("no space left")]
    with pytest.raises(StorageFull):
        await a_topic(host).put(b"a", b"1")
    assert await values(host) == {}


async def test_done_is_called_once_the_last_batch_is_on_disk(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_topic, "PIECE_BYTES", 10)
    log, topic = host.logs[0], a_topic(host)
    log.faults = ["held", "held"]
    told, done = listener()
    topic.write_all({b"a": b"1234567", b"b": b"1234567"}, done)
    await turns()
    assert (len(log.stored), len(topic.writing), told) == (1, 1, [])
    log.held.pop().set_result(AppendResult(Offset(0), Offset(0), Acks.LEADER))
    await turns()
    assert (len(log.stored), told) == (2, []), "the second batch follows the first"
    log.held.pop().set_result(AppendResult(Offset(1), Offset(1), Acks.LEADER))
    await turns()
    assert (topic.writing, told) == (set(), [None])


async def test_what_comes_last_is_never_kept_without_what_comes_first(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_topic, "PIECE_BYTES", 1)
    full = StorageFull("no space left")
    host.logs[0].faults = ["", full]
    told, done = listener()
    a_topic(host).write_all({b"a": b"1", b"b": b"2", b"positions": b"3"}, done)
    await turns()
    assert (told, await values(host)) == ([full], {b"a": b"1"})


async def test_a_lost_append_is_told_as_a_failure(host: Host) -> None:
    host.logs[0].faults = ["cancelled"]
    told, done = listener()
    topic = a_topic(host)
    topic.write_all({b"a": b"1"}, done)
    await turns()
    (error,) = told
    assert isinstance(error, LakeMQError) and "given up" in str(error)
    assert not topic.writing


async def test_values_that_no_batch_holds_are_told_as_a_failure(host: Host) -> None:
    told, done = listener()
    a_topic(host).write_all({b"a": "text"}, done)  # type: ignore[dict-item]
    (error,) = told
    assert isinstance(error, InvalidRequest)


async def test_no_entries_are_on_disk_at_once(host: Host) -> None:
    told, done = listener()
    a_topic(host).write_all({}, done)
    assert (told, host.logs[0].stored) == ([None], [])


# -- leadership


async def test_another_nodes_partition_is_neither_written_nor_read(host: Host) -> None:
    host.leader = "other"
    topic = a_topic(host)
    with pytest.raises(NotLeader, match="led by other"):
        topic.put(b"a", b"1")
    told, done = listener()
    topic.write_all({b"a": b"1"}, done)
    (error,) = told
    assert isinstance(error, NotLeader) and (error.leader, error.epoch) == ("other", 2)
    assert host.logs[0].stored == []
    with pytest.raises(NotLeader):
        await topic.load()


async def test_a_write_is_retried_until_this_node_leads_again(host: Host) -> None:
    host.leader = "other"
    heard: list[LakeMQError] = []

    def failed(error: LakeMQError) -> None:
        heard.append(error)
        if len(heard) == 3:
            host.leader, host.logs[0].faults = None, [StorageFull("no space left")]

    waits = Backoff(1, 4, lambda: 0.0)
    await a_topic(host).write_retrying({b"a": b"1"}, waits, failed=failed)
    assert [type(each) for each in heard] == [NotLeader, NotLeader, NotLeader, StorageFull]
    assert await values(host) == {b"a": b"1"}


# -- crashes


@pytest.mark.parametrize("seed", range(40))
async def test_what_was_told_to_be_on_disk_is_there_after_a_crash(seed: int) -> None:
    dice, disk = random.Random(seed), Disk()
    sure: dict[bytes, bytes | None] = {}
    maybe: dict[bytes, list[bytes | None]] = {}
    for _ in range(6):
        broker = CrashingBroker(disk, dice, dice.randint(2, 40), 0.1)
        with suppress(Crashed):
            await _one_life(broker, dice, sure, maybe)
        broker = CrashingBroker(disk, dice, 10**9, 0.0)
        found = {key: each.value for key, each in (await a_topic(broker).load()).items()}
        for key in {*found, *sure, *maybe}:
            assert found.get(key) in [sure.get(key), *maybe.get(key, [])], (seed, key)
        sure, maybe = dict(found), {}


async def _one_life(
    broker: CrashingBroker,
    dice: random.Random,
    sure: dict[bytes, bytes | None],
    maybe: dict[bytes, list[bytes | None]],
) -> None:
    topic = a_topic(broker)
    await topic.ensure()
    for number in range(40):
        keys: Sequence[bytes] = [b"k%d" % dice.randint(0, 5) for _ in range(dice.randint(1, 3))]
        entries = {key: dice.choice([b"%d" % number, None]) for key in keys}
        for key, value in entries.items():
            maybe.setdefault(key, []).append(value)
        ended: asyncio.Future[LakeMQError | None] = asyncio.get_running_loop().create_future()
        topic.write_all(entries, ended.set_result)
        waits = [asyncio.ensure_future(broker.dead.wait()), ended]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        waits[0].cancel()
        if broker.dead.is_set():
            raise Crashed
        if ended.result() is None:
            for key, value in entries.items():
                sure[key] = value
                maybe.pop(key)
