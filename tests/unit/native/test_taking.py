"""Records that are a value alone join the batch before them, as if they were looked at."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.records.batch import RECORDS_MAX, RecordBatch
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers
from lakemq.plugins.native.sdk.producer.accumulator import RecordAccumulator
from lakemq.plugins.native.sdk.producer.pending import PendingBlock
from lakemq.plugins.native.sdk.types import NewRecord

PLAIN = NewRecord(b"plain")


def opened(batch_max_bytes: int = 1 << 20, buffer_max_bytes: int = 1 << 30) -> RecordAccumulator:
    """With one record, as the producer leaves it."""
    state = RecordAccumulator(
        SequenceNumbers(9),
        batch_max_bytes=batch_max_bytes,
        buffer_max_bytes=buffer_max_bytes,
        compression=Compression.NONE,
    )
    state.open["t"] = state.add("t", 0, NewRecord(b"first"), 0)
    return state


def test_it_counts_as_any_other() -> None:
    state = opened()
    added = state.buffered_bytes
    pending = state.take("t", PLAIN)
    assert pending is state.open["t"] and pending.count == 2
    assert (pending.bytes, state.buffered_bytes) == (2 * added, 2 * added)
    (batch,) = state.ready(5)
    assert RecordBatch(batch.data).values() == [b"first", b"plain"]
    assert batch.timestamps_ms == [5, 5]


class _Odd(NewRecord):
    """Whose parts may be anything."""


@pytest.mark.parametrize(
    "record",
    [
        NewRecord(None),
        NewRecord(bytearray(b"v")),
        NewRecord("text"),
        NewRecord(b"v", b"k"),
        NewRecord(b"v", headers=(("h", b""),)),
        NewRecord(b"v", timestamp_ms=0),
        _Odd(b"v"),
        (b"v", None, (), None),
        b"value",
    ],
)
def test_all_else_has_to_be_looked_at(record: object) -> None:
    state = opened()
    added = state.buffered_bytes
    assert state.take("t", record) is None
    assert state.buffered_bytes == added and state.open["t"].count == 1


@pytest.mark.parametrize("topic", ["other", None, 1])
def test_no_other_topic_is_open(topic: object) -> None:
    assert opened().take(topic, PLAIN) is None


def test_none_joins_a_batch_of_records_with_keys() -> None:
    state = opened()
    state.add("t", 0, NewRecord(b"second", b"key"), 0)
    assert state.take("t", PLAIN) is None


def test_none_joins_a_full_batch() -> None:
    state = opened(batch_max_bytes=16 + 5 + 16 + 4)
    assert state.take("t", PLAIN) is None and state.take("t", NewRecord(b"four")) is not None
    state = opened(batch_max_bytes=1 << 40)
    state.open["t"].values = [b""] * RECORDS_MAX
    assert state.take("t", PLAIN) is None


def test_who_fills_the_buffer_has_to_notice() -> None:
    state = opened(buffer_max_bytes=16 + 5 + 16 + 5)
    assert state.take("t", PLAIN) is None and state.take("t", NewRecord(b"four")) is not None


def test_none_goes_before_what_came_earlier() -> None:
    """A block, or a batch that was begun for a record that did not fit."""
    state = opened()
    state.add_block("t", 0, PendingBlock(Columns([b"block"]), 0))
    assert state.take("t", PLAIN) is None
    state = opened(batch_max_bytes=50)
    state.add("t", 0, NewRecord(b"x" * 100), 0)
    assert state.take("t", NewRecord(b"")) is None


def test_a_flush_moves_records_on() -> None:
    state = opened()
    assert [batch.count for batch in state.ready(0)] == [1]
    assert state.take("t", PLAIN) is None
    state = opened()
    state.fail_all()
    assert state.take("t", PLAIN) is None and state.idle
