"""Goal: a filter finds exactly the records it is about, and leaves out no batch that has one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch, encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.plugins.native.wire.filtering import Condition, RecordFilter

_BYTES = st.none() | st.text("ab", max_size=3).map(str.encode)
_HEADERS = st.lists(st.tuples(st.sampled_from(["h", "i"]), _BYTES), max_size=2)
_ROWS = st.lists(st.tuples(_BYTES, _HEADERS), min_size=1, max_size=5)
_CONDITION = st.builds(
    Condition, st.sampled_from(["", "h"]), st.text("ab", max_size=2).map(str.encode), st.booleans()
)


def batch_of(rows: list[tuple[bytes | None, list[tuple[str, bytes | None]]]]) -> bytes:
    return encode(
        Columns(
            [b"%d" % number for number in range(len(rows))],
            [key for key, _ in rows],
            [encode_headers(tuple(headers)) for _, headers in rows],
        ),
        compression=Compression.LZ4,
    )


def holds(condition: Condition, value: bytes | None) -> bool:
    if value is None:
        return False
    return value.startswith(condition.value) if condition.prefix else value == condition.value


@given(st.lists(_ROWS, max_size=4), st.lists(_CONDITION, min_size=1, max_size=3))
def test_a_filter_finds_exactly_its_records(
    batches: list[list[tuple[bytes | None, list[tuple[str, bytes | None]]]]],
    conditions: list[Condition],
) -> None:
    expected = [
        [
            all(
                any(holds(each, value) for name, value in headers if name == each.header)
                if each.header
                else holds(each, key)
                for each in conditions
            )
            for key, headers in rows
        ]
        for rows in batches
    ]
    wanted = RecordFilter(tuple(conditions))
    stored = [batch_of(rows) for rows in batches]
    for data, rows in zip(stored, expected, strict=True):
        assert wanted.rows(RecordBatch(data)) == rows
        assert [record.value for record in wanted.records(RecordBatch(data))] == [
            b"%d" % number for number, good in enumerate(rows) if good
        ]
    kept = b"".join(data for data, rows in zip(stored, expected, strict=True) if any(rows))
    assert wanted.batches(b"".join(stored)) == kept


def test_control_batches_stay() -> None:
    data = encode(Columns([b"x"]), attributes=CONTROL)
    assert RecordFilter.of(key=b"k").batches(data) == data


def test_what_is_no_filter_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="1 to 16"):
        RecordFilter.of()
    with pytest.raises(InvalidRequest, match="1 to 16"):
        RecordFilter((Condition("", b""),) * 17)
    with pytest.raises(InvalidRequest, match="4096"):
        RecordFilter.of(key=b"x" * 5000)
