"""Goal: each producer's batches are taken once and in order, and what is remembered is bounded."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import OutOfOrderSequence, ProducerFenced
from lakemq.broker_core.api.records.batch import BatchHeader, ProducerStamp, encode, read_header
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.journal.segment.producers import Appended, ProducerTable

MOST = 2**31 - 1


def header(
    first: int, records: int = 1, *, offset: int = 0, epoch: int = 0, producer: int = 7
) -> BatchHeader:
    columns = Columns([b""] * records, None, None, [0] * records)
    stamp = ProducerStamp(producer, epoch, first)
    return read_header(encode(columns, producer=stamp, base_offset=offset))


def table_with(*headers: BatchHeader, now_ms: int = 0) -> ProducerTable:
    table = ProducerTable()
    for each in headers:
        assert table.check(each) is None
        table.note(each, now_ms)
    return table


def test_a_repeated_batch_is_told_from_others_by_its_first_and_its_last_sequence() -> None:
    table = table_with(header(0, 3, offset=10), header(3, 2, offset=13))
    assert table.check(header(0, 3)) == Appended(0, 2, 10, 12)
    assert table.check(header(3, 2)) == Appended(3, 4, 13, 14)
    assert table.check(header(5)) is None
    for other in (header(0, 2), header(0, 5), header(1, 2), header(3, 1), header(4, 1), header(6)):
        with pytest.raises(OutOfOrderSequence, match="expected 5"):
            table.check(other)


def test_the_last_five_batches_are_remembered() -> None:
    table = table_with(*(header(number, offset=number) for number in range(8)))
    for number in range(3, 8):
        assert table.check(header(number)) == Appended(number, number, number, number)
    for number in range(3):
        with pytest.raises(OutOfOrderSequence, match="expected 8"):
            table.check(header(number))


def test_numbers_begin_again_behind_the_largest() -> None:
    table = ProducerTable()
    table.note(header(MOST - 1, 4, offset=5), 0)  # MOST - 1, MOST, 0, 1
    assert table.check(header(MOST - 1, 4)) == Appended(MOST - 1, 1, 5, 8)
    assert table.check(header(2)) is None
    with pytest.raises(OutOfOrderSequence, match="expected 2"):
        table.check(header(0))


def test_a_new_epoch_begins_at_0_and_fences_the_old_one() -> None:
    table = table_with(header(0, 3), header(0, 1, offset=3, epoch=1))
    with pytest.raises(ProducerFenced, match="epoch 0 is over, 1 writes now"):
        table.check(header(3))
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        table.check(header(1, epoch=2))
    with pytest.raises(OutOfOrderSequence, match="expected 1"):
        table.check(header(0, 3, epoch=1))


def test_who_is_silent_longest_is_forgotten() -> None:
    table = ProducerTable()
    for producer, seen_ms in ((1, 10), (2, 20), (3, 30), (4, 15)):
        table.note(header(0, producer=producer), seen_ms)
    assert table.expire(10, 4) == 0, "seen at that very moment"
    assert table.expire(11, 2) == 2, "one that is too old, and one of too many"
    assert len(table) == 2
    assert table.expire(0, 1) == 1
    assert table.check(header(1, producer=3)) is None
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        table.check(header(1, producer=2))


def test_a_copy_is_of_its_own() -> None:
    table = table_with(header(0))
    twin = table.copy()
    assert twin == table
    twin.note(header(1), 1)
    assert twin != table
    assert ProducerTable.decode(twin.encode()) == twin
