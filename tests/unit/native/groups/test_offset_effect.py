"""Goal: offsets that are committed with a transaction are written when it is applied, also late and
twice, but never over what was committed since.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.groups.offset_effect import decode_changes, encode_changes, still_due
from lakemq.plugins.native.groups.offset_table import Committed

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
committed = st.builds(
    Committed,
    st.integers(0, 2**62),
    st.integers(0, 9),
    st.integers(0, 2**60),
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.text(max_size=9),
)
changes = st.dictionaries(
    st.builds(TopicPartition, st.text("ab", min_size=1, max_size=3), st.integers(0, 9)),
    st.tuples(st.none() | committed, st.none() | committed),
    min_size=1,
    max_size=4,
)


@given(st.text(min_size=1, max_size=9), changes)
def test_changes_are_read_back(group, found) -> None:  # type: ignore[no-untyped-def]
    assert decode_changes(encode_changes(group, found)) == (group, found)


@pytest.mark.parametrize("data", [b"", b"\x02" + bytes(4), b"\x01\x01\x00\x00\x00"])
def test_damaged_changes_are_told(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_changes(data)


def at(offset: int) -> Committed:
    return Committed(offset, 1, offset, "0" * 32)


@pytest.mark.parametrize(
    ("now", "due"), [(None, False), (at(1), True), (at(5), True), (at(9), False), (at(0), False)]
)
def test_only_what_was_before_or_ours_is_written_over(now: Committed | None, due: bool) -> None:
    table = {} if now is None else {PLACE: now}
    assert (PLACE in still_due({PLACE: (at(1), at(5))}, table)) is due


def test_a_first_commit_is_written_unless_somebody_was_quicker() -> None:
    change = {PLACE: (None, at(5)), OTHER: (at(1), None)}
    assert still_due(change, {}) == {PLACE: at(5), OTHER: None}
    assert still_due(change, {PLACE: at(7), OTHER: at(2)}) == {}
