"""Goal: a producer's batches keep order and sequence numbers through every retry and refusal."""

from lakemq.broker_core.api.errors import BatchTooLarge, OutcomeUnknown, Unavailable
from lakemq.broker_core.api.records.batch import RECORDS_MAX, RecordBatch, read_header
from lakemq.broker_core.api.types import Acks, Columns, Compression
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers, backoff_s
from lakemq.plugins.native.sdk.producer.accumulator import ProducerBatch, RecordAccumulator
from lakemq.plugins.native.sdk.producer.pending import Appended, PendingBlock, cut
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata


def batches(batch_max_bytes: int = 1 << 20) -> RecordAccumulator:
    return RecordAccumulator(
        SequenceNumbers(9),
        batch_max_bytes=batch_max_bytes,
        buffer_max_bytes=1 << 30,
        compression=Compression.NONE,
    )


def add(to: RecordAccumulator, *values: bytes, partition: int = 0) -> list[object]:
    """What stands for their futures."""
    futures = []
    for value in values:
        pending = to.add("t", partition, NewRecord(value), 1000)
        futures.append(object())
        pending.watch(pending.count - 1, futures[-1])
    return futures


def told(batch: ProducerBatch, outcome: Appended) -> list[tuple[object, RecordMetadata]]:
    """Futures of a batch, and what they are told."""
    indexes, futures = batch.pending.settle(outcome)
    return list(zip(futures, outcome.records(indexes), strict=True))


def sequence(batch: ProducerBatch) -> int:
    return read_header(batch.data).base_sequence


def test_one_batch_under_way_per_partition_and_the_rest_gathers() -> None:
    state = batches()
    futures = add(state, b"a", b"b")
    (first,) = state.ready(5)
    add(state, b"c")
    add(state, b"d", partition=1)
    (other,) = state.ready(6)
    assert (first.partition, other.partition) == (0, 1)
    assert told(first, state.appended(first, 40, Acks.LEADER)) == [
        (futures[0], RecordMetadata("t", 0, 40, 5, Acks.LEADER)),
        (futures[1], RecordMetadata("t", 0, 41, 5, Acks.LEADER)),
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
    assert isinstance(state.refused(batch, BatchTooLarge("x")), BatchTooLarge)
    add(state, b"c")
    (after,) = state.ready(0)
    assert sequence(after) == 0


def test_a_refused_batch_that_may_be_stored_keeps_its_numbers_to_itself() -> None:
    state = batches()
    add(state, b"a", b"b")
    (batch,) = state.ready(0)
    batch.maybe_appended = True
    assert isinstance(state.refused(batch, BatchTooLarge("x")), OutcomeUnknown)
    add(state, b"c", b"d")
    (after,) = state.ready(0)
    assert (read_header(after.data).producer_epoch, sequence(after)) == (1, 0)


def test_batches_obey_their_size_but_one_record_always_fits() -> None:
    state = batches(batch_max_bytes=250)
    add(state, b"x" * 100, b"y" * 100, b"z" * 1000)
    sizes = []
    while not state.idle:
        (batch,) = state.ready(0)
        sizes.append(batch.count)
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
    gone = Unavailable("gone")
    failed = [future for each in state.fail_all() for future in each.settle(gone)[1]]
    assert failed == sent + waiting
    assert state.idle and not state.last() and not list(state.ready(0))


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
    state.add_block("t", 0, PendingBlock(Columns([b"c", b"d"], timestamps_ms=[7, 8]), 1000))
    add(state, b"e")
    sent, placed, offset = [], [], 10
    for now_ms in (1, 2, 3):
        (batch,) = state.ready(now_ms)
        sent.append((sequence(batch), RecordBatch(batch.data).values()))
        placed += state.appended(batch, offset, Acks.LEADER).records([0])
        offset += batch.count
    assert sent == [(0, [b"a", b"b"]), (2, [b"c", b"d"]), (4, [b"e"])]
    assert placed[1:] == [
        RecordMetadata("t", 0, 12, 7, Acks.LEADER),
        RecordMetadata("t", 0, 14, 3, Acks.LEADER),
    ]
    assert state.idle


def test_columns_without_times_get_the_time_of_sending() -> None:
    state = batches()
    state.add_block("t", 0, PendingBlock(Columns([b"c"]), 1000))
    (batch,) = state.ready(55)
    assert RecordBatch(batch.data).timestamps_ms() == [55]
    placed = state.appended(batch, 0, Acks.LEADER)
    assert list(placed.records([0])) == [RecordMetadata("t", 0, 0, 55, Acks.LEADER)]


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
    tail = state.add("t", 0, NewRecord(b"b"), 1000)
    assert state.add("t", 0, NewRecord(b"c"), 2000) is tail and tail.count == 2
    other = state.add("t", 1, NewRecord(b"d"), 500)
    assert state.last() == [tail, other] and state.oldest_deadline_ms() == 500
    state.appended(first, 0, Acks.LEADER)
    assert state.last() == [tail, other]
    sent, _ = state.ready(0)
    assert sent.pending is tail and state.last() == [tail, other]
    assert state.add("t", 0, NewRecord(b"e"), 2000) is not tail  # it is under way


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
        SequenceNumbers(9),
        batch_max_bytes=1 << 40,
        buffer_max_bytes=1 << 30,
        compression=Compression.NONE,
    )
    accumulator.bytes_max["t"] = 1024
    for number in range(100):
        record = NewRecord(b"x" * 50, b"k", (("a", b"b"),), number)
        accumulator.add("t", 0, record, 0)
    counts = []
    while (batch := next(accumulator.ready(0), None)) is not None:
        assert len(batch.data) <= 1024
        counts.append(batch.count)
        accumulator.appended(batch, 0, Acks.LEADER)
    assert sum(counts) == 100 and not accumulator.rejected
    assert min(counts[:-1]) > 5


def test_the_parts_of_a_record_stay_together() -> None:
    state = batches()
    given = [
        NewRecord(b"a"),
        NewRecord(b"b", b"k"),
        NewRecord(None, None, (("h", b"x"), ("i", None))),
        NewRecord(b"d", timestamp_ms=7),
        NewRecord(b"e"),
    ]
    for record in given:
        pending = state.add("t", 0, record, 1000)
    assert list(pending.headers(3)) == [(), (), (("h", b"x"), ("i", None))]
    (batch,) = state.ready(5)
    found = [(each.key, each.value, each.headers) for each in RecordBatch(batch.data).records()]
    assert found == [(each.key, each.value, each.headers) for each in given]
    times = [5, 5, 5, 7, 5]
    assert RecordBatch(batch.data).timestamps_ms() == times
    appended = state.appended(batch, 90, Acks.LEADER)
    assert [each.timestamp_ms for each in appended.records(range(5))] == times


def test_an_outcome_is_there_for_who_asks_late_and_its_records_are_not() -> None:
    state = batches()
    watched = add(state, b"a")
    pending = state.add("t", 0, NewRecord(b"b"), 1000)
    (batch,) = state.ready(5)
    assert pending is batch.pending and pending.outcome(1) is None and pending.unwatched == 1
    assert told(batch, state.appended(batch, 8, Acks.LEADER)) == [
        (watched[0], RecordMetadata("t", 0, 8, 5, Acks.LEADER))
    ]
    assert pending.outcome(1) == RecordMetadata("t", 0, 9, 5, Acks.LEADER)
    assert not pending.count and pending.settle(BatchTooLarge("x")) == ([], [])
