"""Goal: a producer's batches keep order and sequence numbers through every retry and refusal."""

from lakemq.broker_core.api.errors import BatchTooLarge, OutcomeUnknown, Unavailable
from lakemq.broker_core.api.records.batch import RECORDS_MAX, RecordBatch, read_header
from lakemq.broker_core.api.types import Acks, Columns, Compression
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers, backoff_s
from lakemq.plugins.native.sdk.producer.accumulator import (
    PendingBlock,
    PendingRecord,
    ProducerBatch,
    RecordAccumulator,
    cut,
)
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata


def batches(batch_max_bytes: int = 1 << 20) -> RecordAccumulator:
    return RecordAccumulator(
        SequenceNumbers(9), batch_max_bytes=batch_max_bytes, compression=Compression.NONE
    )


def add(to: RecordAccumulator, *values: bytes, partition: int = 0) -> list[PendingRecord]:
    pending = [PendingRecord(NewRecord(value), 1000) for value in values]
    for item in pending:
        to.add("t", partition, item)
    return pending


def sequence(batch: ProducerBatch) -> int:
    return read_header(batch.data).base_sequence


def test_one_batch_under_way_per_partition_and_the_rest_gathers() -> None:
    state = batches()
    add(state, b"a", b"b")
    (first,) = state.ready(5)
    add(state, b"c")
    add(state, b"d", partition=1)
    (other,) = state.ready(6)
    assert (first.partition, other.partition) == (0, 1)
    done = state.appended(first, 40, Acks.LEADER)
    assert [each.outcome for each in done] == [
        RecordMetadata("t", 0, 40, 5, Acks.LEADER),
        RecordMetadata("t", 0, 41, 5, Acks.LEADER),
    ]
    (second,) = state.ready(7)
    assert RecordBatch(second.data).values() == [b"c"]
    assert (sequence(first), sequence(second), sequence(other)) == (0, 2, 0)


def test_a_batch_is_sent_again_as_it_was() -> None:
    state = batches()
    add(state, b"a")
    (batch,) = state.ready(0)
    data = batch.data
    assert [each.data for each in state.in_flight()] == [data]
    assert list(state.ready(1)) == []


def test_a_refused_batch_gives_its_sequence_numbers_back() -> None:
    state = batches()
    add(state, b"a", b"b")
    (batch,) = state.ready(0)
    done = state.refused(batch, BatchTooLarge("x"))
    assert all(isinstance(each.outcome, BatchTooLarge) for each in done)
    add(state, b"c")
    (after,) = state.ready(0)
    assert sequence(after) == 0


def test_a_refused_batch_that_may_be_stored_keeps_its_numbers_to_itself() -> None:
    state = batches()
    add(state, b"a", b"b")
    (batch,) = state.ready(0)
    batch.maybe_appended = True
    done = state.refused(batch, BatchTooLarge("x"))
    assert all(isinstance(each.outcome, OutcomeUnknown) for each in done)
    add(state, b"c", b"d")
    (after,) = state.ready(0)
    assert (read_header(after.data).producer_epoch, sequence(after)) == (1, 0)


def test_batches_obey_their_size_but_one_record_always_fits() -> None:
    state = batches(batch_max_bytes=250)
    add(state, b"x" * 100, b"y" * 100, b"z" * 1000)
    sizes = []
    while not state.idle:
        (batch,) = state.ready(0)
        sizes.append(len(batch.pending))
        state.appended(batch, 0, Acks.LEADER)
    assert sizes == [2, 1]


def test_buffered_bytes_return_to_zero() -> None:
    state = batches()
    add(state, b"a", b"b")
    add(state, b"c", partition=3)
    for batch in list(state.ready(0)):
        state.appended(batch, 0, Acks.LEADER)
    assert state.idle


def test_giving_up_fails_what_was_sent_and_what_was_not() -> None:
    state = batches()
    sent = add(state, b"a")
    list(state.ready(0))
    waiting = add(state, b"b")
    failed = state.fail_all(Unavailable("gone"))
    assert failed == sent + waiting
    assert state.idle and all(isinstance(each.outcome, Unavailable) for each in failed)


def test_sequence_numbers_wrap_as_in_kafka() -> None:
    numbers = SequenceNumbers(1)
    numbers.advance("t", 0, 2**31 - 1)
    assert numbers.next("t", 0).base_sequence == 2**31 - 1
    numbers.advance("t", 0, 1)
    assert numbers.next("t", 0).base_sequence == 0


def test_waits_double_up_to_a_second_with_jitter() -> None:
    longest, shortest = backoff_s(rng=lambda: 1.0), backoff_s(rng=lambda: 0.0)
    waits = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [next(longest) for _ in range(7)] == waits
    assert [next(shortest) for _ in range(7)] == [each / 2 for each in waits]


def test_blocks_and_single_records_keep_their_order() -> None:
    state = batches()
    add(state, b"a", b"b")
    block = PendingBlock(Columns([b"c", b"d"], timestamps_ms=[7, 8]), 1000)
    state.add("t", 0, block)
    (late,) = add(state, b"e")
    sent, offset = [], 10
    for now_ms in (1, 2, 3):
        (batch,) = state.ready(now_ms)
        sent.append((sequence(batch), RecordBatch(batch.data).values()))
        state.appended(batch, offset, Acks.LEADER)
        offset += batch.count
    assert sent == [(0, [b"a", b"b"]), (2, [b"c", b"d"]), (4, [b"e"])]
    assert block.outcome == RecordMetadata("t", 0, 12, 7, Acks.LEADER)
    assert late.outcome == RecordMetadata("t", 0, 14, 3, Acks.LEADER)
    assert state.idle


def test_columns_without_times_get_the_time_of_sending() -> None:
    state = batches()
    block = PendingBlock(Columns([b"c"]), 1000)
    state.add("t", 0, block)
    (batch,) = state.ready(55)
    assert RecordBatch(batch.data).timestamps_ms() == [55]
    state.appended(batch, 0, Acks.LEADER)
    assert block.outcome == RecordMetadata("t", 0, 0, 55, Acks.LEADER)


def test_columns_are_cut_in_order() -> None:
    columns = Columns([b"x" * 84] * 10, [b"%d" % n for n in range(10)], None, list(range(10)))
    parts = list(cut(columns, 350))
    assert [len(part.values) for part in parts] == [3, 3, 3, 1]
    assert [time for part in parts for time in part.timestamps_ms or ()] == list(range(10))
    assert all(part.headers is None for part in parts)
    assert [len(part.values) for part in cut(columns, 1)] == [1] * 10


def test_the_last_and_the_oldest_are_known() -> None:
    state = batches()
    assert state.last() == [] and state.oldest_deadline_ms() is None
    add(state, b"a")
    (first,) = state.ready(0)
    tail = add(state, b"b", b"c")[-1]
    other = PendingRecord(NewRecord(b"d"), 500)
    state.add("t", 1, other)
    assert state.last() == [tail, other] and state.oldest_deadline_ms() == 500
    state.appended(first, 0, Acks.LEADER)
    assert state.last() == [tail, other]


def test_a_topic_that_was_created_again_gets_numbers_that_pass_for_no_others() -> None:
    state = batches()
    add(state, b"a")
    add(state, b"b", partition=1)
    first, other = state.ready(0)
    state.sequences.restart("t")
    assert state.is_outdated(first) and state.is_outdated(other)
    # The new topic may have taken this one as its first: the next must not look like it.
    state.appended(first, 0, Acks.LEADER)
    add(state, b"c")
    (second,) = state.ready(1)
    assert (read_header(second.data).producer_epoch, sequence(second)) == (1, 0)
    state.renumber(other)
    assert (read_header(other.data).producer_epoch, sequence(other)) == (1, 0)
    assert RecordBatch(other.data).values() == [b"b"]
    assert not state.is_outdated(other)
    state.appended(second, 1, Acks.LEADER)
    add(state, b"d")
    (third,) = state.ready(2)
    assert (read_header(third.data).producer_epoch, sequence(third)) == (1, 1)


def test_no_batch_has_more_records_than_a_broker_takes() -> None:
    values = [b""] * (2 * RECORDS_MAX + 1)
    parts = [len(part.values) for part in cut(Columns(values), 1 << 40)]
    assert parts == [RECORDS_MAX, RECORDS_MAX, 1]
    state = batches(batch_max_bytes=1 << 40)
    add(state, *values[: RECORDS_MAX + 1])
    (batch,) = state.ready(0)
    assert batch.count == RECORDS_MAX


def test_single_records_make_batches_that_their_topic_takes() -> None:
    accumulator = RecordAccumulator(
        SequenceNumbers(9), batch_max_bytes=1 << 40, compression=Compression.NONE
    )
    accumulator.bytes_max["t"] = 1024
    for number in range(100):
        record = NewRecord(b"x" * 50, b"k", (("a", b"b"),), number)
        accumulator.add("t", 0, PendingRecord(record, 0))
    counts = []
    while (batch := next(accumulator.ready(0), None)) is not None:
        assert len(batch.data) <= 1024
        counts.append(batch.count)
        accumulator.appended(batch, 0, Acks.LEADER)
    assert sum(counts) == 100 and not accumulator.rejected
    assert min(counts[:-1]) > 5
