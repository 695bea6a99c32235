"""Goal: a producer's batches keep order and sequence numbers through every retry and refusal."""

from broker_core.api.errors import BatchTooLarge, Unavailable
from broker_core.api.record_batch import RecordBatch, read_header
from broker_core.api.types import Acks, Compression
from plugins.native.sdk.batching import OutgoingBatch, ProducerBatches, Ticket
from plugins.native.sdk.sequencing import SequenceNumbers, backoff_s
from plugins.native.sdk.types import NewRecord, RecordMetadata


def batches(batch_bytes_max: int = 1 << 20) -> ProducerBatches:
    return ProducerBatches(
        SequenceNumbers(9), batch_bytes_max=batch_bytes_max, compression=Compression.NONE
    )


def add(to: ProducerBatches, *values: bytes, partition: int = 0) -> list[Ticket]:
    tickets = [Ticket(NewRecord(value), 1000) for value in values]
    for ticket in tickets:
        to.add("t", partition, ticket)
    return tickets


def sequence(batch: OutgoingBatch) -> int:
    return read_header(batch.data).base_sequence


def test_one_batch_under_way_per_partition_and_the_rest_gathers() -> None:
    state = batches()
    add(state, b"a", b"b")
    (first,) = state.ready(5)
    add(state, b"c")
    add(state, b"d", partition=1)
    (other,) = state.ready(6)
    assert (first.partition, other.partition) == (0, 1)
    done = state.taken(first, 40, Acks.LEADER)
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
    assert [each.data for each in state.under_way()] == [data]
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


def test_batches_obey_their_size_but_one_record_always_fits() -> None:
    state = batches(batch_bytes_max=250)
    add(state, b"x" * 100, b"y" * 100, b"z" * 1000)
    sizes = []
    while not state.idle:
        (batch,) = state.ready(0)
        sizes.append(len(batch.tickets))
        state.taken(batch, 0, Acks.LEADER)
    assert sizes == [2, 1]


def test_buffered_bytes_return_to_zero() -> None:
    state = batches()
    add(state, b"a", b"b")
    add(state, b"c", partition=3)
    for batch in list(state.ready(0)):
        state.taken(batch, 0, Acks.LEADER)
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
    numbers.taken("t", 0, 2**31 - 1)
    assert numbers.next("t", 0).base_sequence == 2**31 - 1
    numbers.taken("t", 0, 1)
    assert numbers.next("t", 0).base_sequence == 0


def test_pauses_double_up_to_a_second() -> None:
    pauses = backoff_s()
    assert [next(pauses) for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
