"""Goal: a stored batch that is corrupt inside is left out, counted and named once."""

from __future__ import annotations

import logging

import pytest

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import CONTROL, encode, read_header, stamp
from lakemq.broker_core.api.records.stored import SKIPPED, CorruptBatches, readable_batches
from lakemq.broker_core.api.types import Columns
from tests.support.poison import garbage_lengths, no_frame


def stored(offset: int, batch: bytes) -> bytes:
    return stamp(batch, read_header(batch), offset, 0)[1]


def test_what_is_corrupt_is_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    good = encode(Columns([b"a", b"b"]))
    control = encode(Columns([b"c"]), attributes=CONTROL)
    data = b"".join(
        stored(offset, batch)
        for offset, batch in [
            (0, good),
            (2, garbage_lengths()),
            (3, no_frame()),
            (4, control),
            (5, good),
        ]
    )
    before = SKIPPED.count
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found = list(readable_batches(data, "t-stored", 7))
            assert [batch.header.base_offset for batch in found] == [0, 5]
    assert SKIPPED.count == before + 2
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "topic t-stored partition 7 offset 2",
        "topic t-stored partition 7 offset 3",
    ]
    assert [len(batch) for batch in readable_batches(data, "t-stored", 7, start=2)] == [2]


def test_what_was_seen_is_bounded() -> None:
    skipped = CorruptBatches(logging.getLogger("nobody"), logging.DEBUG)
    for offset in range(25_000):
        skipped.note("t", 0, offset, CorruptBatch("x"))
    assert skipped.count == 25_000
    assert len(skipped._seen) <= 10_000
