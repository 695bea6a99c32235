"""Goal: records of one turn share batches, every record gets its own outcome, order holds."""

import asyncio
from collections.abc import Sequence

import pytest

from lakemq.broker_core.api.errors import (
    BatchTooLarge,
    InvalidRequest,
    NotLeader,
    SchemaMismatch,
    StorageFull,
)
from lakemq.broker_core.api.ports import AppendDone, PartitionLog
from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    Offset,
    Placed,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.publishing.publisher import Publisher


class Log:
    """Takes batches; answers when told to."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.full = False
        self._next = 0

    def append_records(self, columns: Columns, now_ms: int, acks: Acks, done: AppendDone) -> None:
        if self.full:
            done(StorageFull("no space"))
            return
        self.batches.append(RecordBatch(encode(columns, now_ms=now_ms)))
        base, self._next = self._next, self._next + len(columns.values)
        done(AppendResult(Offset(base), Offset(self._next - 1), acks))


class Desk:
    def __init__(self, partitions: int = 1, batch_max_bytes: int = 1 << 20) -> None:
        self.logs = [Log() for _ in range(partitions)]
        self.topic = TopicInfo(
            "t", "0" * 32, partitions, TopicConfig(batch_max_bytes=batch_max_bytes)
        )
        self.elsewhere: set[int] = set()
        self.publisher = Publisher(self._log, lambda: 77, lambda _, one: one not in self.elsewhere)

    def _log(self, topic: str, partition: int) -> PartitionLog:
        if partition in self.elsewhere:
            raise NotLeader(f"partition {partition} of {topic} is led by other", leader="other")
        return self.logs[partition]  # type: ignore[return-value]  # only append is used

    def publish(self, columns: Columns, partition: int | None = None) -> asyncio.Future:  # type: ignore[type-arg]
        return self.publisher.publish(self.topic, columns, Acks.LEADER, partition)


async def test_calls_of_one_turn_share_a_batch() -> None:
    desk = Desk()
    first = desk.publish(Columns([b"a", b"b"], [b"k", None]))
    second = desk.publish(Columns([b"c"], None, [encode_headers((("h", b"1"),))], [5]))
    assert await first == [Placed(0, Offset(0)), Placed(0, Offset(1))]
    assert await second == [Placed(0, Offset(2))]
    (batch,) = desk.logs[0].batches
    assert batch.values() == [b"a", b"b", b"c"]
    assert batch.keys() == [b"k", None, None]
    assert batch.timestamps_ms() == [77, 77, 5]
    assert [record.headers for record in batch.records()] == [(), (), (("h", b"1"),)]


async def test_keys_go_to_their_partitions_and_outcomes_come_back_in_order() -> None:
    desk = Desk(partitions=4)
    keys = [b"key-%d" % number for number in range(40)]
    outcomes = await desk.publish(Columns([b"v"] * 40, keys))
    assert [each.partition for each in outcomes] == [partition_of(key, 4) for key in keys]
    for number, log in enumerate(desk.logs):
        mine = [key for key in keys if partition_of(key, 4) == number]
        assert log.batches[0].keys() == mine
    assert sum(len(log.batches) for log in desk.logs) == 4


async def test_keyless_records_take_turns() -> None:
    desk = Desk(partitions=2)
    first = await desk.publish(Columns([b"a", b"b"]))
    second = await desk.publish(Columns([b"c"]))
    assert {each.partition for each in first} | {each.partition for each in second} == {0, 1}
    assert first[0].partition == first[1].partition


async def test_a_chosen_partition_is_obeyed() -> None:
    desk = Desk(partitions=3)
    assert await desk.publish(Columns([b"a"], [b"k"]), partition=2) == [Placed(2, Offset(0))]


async def test_too_much_for_one_batch_is_split_in_order() -> None:
    desk = Desk(batch_max_bytes=4096)
    values = [b"%03d" % number * 100 for number in range(50)]
    outcomes = await desk.publish(Columns(values))
    assert [each.offset for each in outcomes] == list(range(50))
    assert [value for batch in desk.logs[0].batches for value in batch.values()] == values
    assert len(desk.logs[0].batches) > 3
    assert all(batch.header.total_bytes <= 4096 for batch in desk.logs[0].batches)


async def test_many_small_calls_never_exceed_the_limit() -> None:
    desk = Desk(batch_max_bytes=4096)
    futures = [desk.publish(Columns([b"x" * 1000])) for _ in range(20)]
    outcomes = [(await each)[0].offset for each in futures]
    assert outcomes == list(range(20))
    assert all(batch.header.total_bytes <= 4096 for batch in desk.logs[0].batches)


async def test_no_batch_has_more_records_than_a_reader_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakemq.broker_core.publishing.publisher.RECORDS_MAX", 8)
    desk = Desk()
    futures = [desk.publish(Columns([b"v"] * count)) for count in (5, 3, 1, 30, 8)]
    offsets = [each.offset for future in futures for each in await future]
    assert offsets == list(range(47))
    assert max(len(batch) for batch in desk.logs[0].batches) == 8


async def test_one_record_that_is_too_large_is_refused_alone() -> None:
    desk = Desk(batch_max_bytes=4096)
    outcomes = await desk.publish(Columns([b"a", b"x" * 5000, b"b"]))
    assert isinstance(outcomes[1], BatchTooLarge)
    assert [outcomes[0].offset, outcomes[2].offset] == [0, 1]


async def test_a_refused_append_is_every_records_outcome() -> None:
    desk = Desk()
    desk.logs[0].full = True
    outcomes = await desk.publish(Columns([b"a", b"b"]))
    assert all(isinstance(each, StorageFull) for each in outcomes)


async def test_nothing_to_publish() -> None:
    assert await Desk().publish(Columns([])) == []


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_caller_who_left_does_not_disturb_the_others(cancelled: int) -> None:
    desk = Desk()
    futures = [desk.publish(Columns([b"a"])), desk.publish(Columns([b"b"]))]
    futures[cancelled].cancel()
    assert (await futures[1 - cancelled])[0].offset == 1 - cancelled


async def test_columns_that_no_batch_holds_take_nobody_with_them() -> None:
    desk = Desk(partitions=2)
    wrong = desk.publish(Columns([b"a"], timestamps_ms=[1 << 70]), 0)
    right = desk.publish(Columns([b"b"]), 1)
    (refused,) = await wrong
    assert isinstance(refused, InvalidRequest)
    assert await right == [Placed(1, Offset(0))]


@pytest.mark.parametrize("batch_max_bytes", [1 << 20, 4096])
async def test_columns_that_one_partition_does_not_hold_are_told_of_once(
    batch_max_bytes: int,
) -> None:
    desk = Desk(partitions=4, batch_max_bytes=batch_max_bytes)
    keys = [b"key-%d" % number for number in range(8)]
    values: list[object] = [bytes(1500)] * 8
    values[5] = 7
    told: dict[int, list[object]] = {index: [] for index in range(8)}

    def done(indexes: Sequence[int], outcome: object) -> None:
        for index in indexes:
            told[index].append(outcome)

    columns = Columns(values, keys)  # type: ignore[arg-type]
    desk.publisher.append(desk.topic, columns, Acks.LEADER, None, done)
    desk.publisher.flush()
    assert all(len(outcomes) == 1 for outcomes in told.values())
    bad = partition_of(keys[5], 4)
    for key, (outcome,) in zip(keys, told.values(), strict=True):
        assert isinstance(outcome, InvalidRequest) == (partition_of(key, 4) == bad)


async def test_what_another_node_leads_is_refused_and_the_rest_is_stored() -> None:
    desk = Desk(partitions=4)
    desk.elsewhere = {1, 2}
    keys: list[bytes | None] = [b"%d" % number for number in range(40)]
    outcomes = await desk.publish(Columns(list(keys), keys))
    for key, outcome in zip(keys, outcomes, strict=True):
        assert key is not None
        if (home := partition_of(key, 4)) in desk.elsewhere:
            assert isinstance(outcome, NotLeader) and f"partition {home} of t" in str(outcome)
        else:
            assert isinstance(outcome, Placed) and outcome.partition == home
    assert not desk.logs[1].batches and not desk.logs[2].batches


async def test_keyless_records_go_to_partitions_of_this_node() -> None:
    desk = Desk(partitions=4)
    desk.elsewhere = {0, 1, 3}
    for _ in range(8):
        (outcome,) = await desk.publish(Columns([b"x"]))
        assert isinstance(outcome, Placed) and outcome.partition == 2
    desk.elsewhere = {0, 1, 2, 3}
    (outcome,) = await desk.publish(Columns([b"x"]))
    assert isinstance(outcome, NotLeader)


async def test_records_that_are_refused_leave_those_of_the_same_call() -> None:
    desk = Desk()
    columns = Columns([b"0", b"1", b"2", b"3"])
    refused = {1: SchemaMismatch("one"), 2: SchemaMismatch("two")}
    outcomes = await desk.publisher.publish_without(desk.topic, columns, Acks.LEADER, 0, refused)
    assert outcomes == [Placed(0, Offset(0)), refused[1], refused[2], Placed(0, Offset(1))]
    assert [batch.values() for batch in desk.logs[0].batches] == [[b"0", b"3"]]
    with pytest.raises(SchemaMismatch, match="why"):
        desk.publisher.publish_without(
            desk.topic, Columns([b"0"]), Acks.LEADER, 0, {0: SchemaMismatch("why")}
        )
