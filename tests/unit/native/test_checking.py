"""What no record is made of is told by name, and costs nobody else anything."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import Acks, Columns, Compression
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers
from lakemq.plugins.native.sdk.producer.accumulator import RecordAccumulator
from lakemq.plugins.native.sdk.producer.checking import checked_record
from lakemq.plugins.native.sdk.producer.pending import PendingBlock
from lakemq.plugins.native.sdk.types import NewRecord

BAD = {
    "value is of type str; it takes bytes or None; a str has": NewRecord("text"),  # type: ignore[arg-type]
    "value is of type dict": NewRecord({}),  # type: ignore[arg-type]
    "key is of type str": NewRecord(b"", "key"),  # type: ignore[arg-type]
    "headers is a dict; it takes pairs": NewRecord(b"", None, {"a": b""}),  # type: ignore[arg-type]
    "headers is 'ab'; it takes pairs": NewRecord(b"", None, "ab"),  # type: ignore[arg-type]
    "header 'a' is of type str": NewRecord(b"", None, (("a", "b"),)),  # type: ignore[arg-type]
    "header's name is of type bytes": NewRecord(b"", None, ((b"a", b"b"),)),  # type: ignore[arg-type]
    "header's name is 70000 characters": NewRecord(b"", None, (("a" * 70_000, b"b"),)),
    "timestamp_ms is 1.5": NewRecord(b"", timestamp_ms=1.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("said", BAD)
def test_the_field_is_named(said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        checked_record(BAD[said])
    with pytest.raises(InvalidRequest, match=said):
        wire.columns_given([NewRecord(b"good"), BAD[said]], 0)


def test_what_is_like_bytes_is_taken() -> None:
    record = NewRecord(bytearray(b"v"), memoryview(b"k"), (("h", None), ("h", b"")), 1)  # type: ignore[arg-type]
    checked_record(record)
    assert len(wire.columns_given([record], 0).values) == 1


@pytest.mark.parametrize("columns", [Columns([b"a", 1]), Columns([b"a"], ["k"])])  # type: ignore[list-item]
def test_columns_are_looked_at_too(columns: Columns) -> None:
    with pytest.raises(InvalidRequest, match="is of type"):
        wire.columns_given(columns, 0)


def test_what_no_batch_can_be_made_of_fails_alone() -> None:
    state = RecordAccumulator(
        SequenceNumbers(1),
        batch_max_bytes=1000,
        buffer_max_bytes=1 << 30,
        compression=Compression.NONE,
    )
    uneven = PendingBlock(Columns([b"a", b"b"], [b"k"]), 0)
    state.add_block("t", 0, uneven)
    state.add("t", 0, NewRecord(b"good"), 0)
    state.add("t", 1, NewRecord(b"good"), 0)
    assert [batch.partition for batch in state.ready(0)] == [0, 1]
    ((rejected, error),) = state.drain_rejected()
    assert rejected is uneven and isinstance(error, InvalidRequest)
    assert state.drain_rejected() == []
    for batch in state.in_flight():
        state.appended(batch, 0, Acks.LEADER)
    assert state.idle
