"""Goal: offsets that are committed with a transaction are written when it is applied, also late and
twice, but never over what was committed since.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.transactions.types import CommitTry, Owner
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.held_offsets import (
    HeldOffsets,
    HeldTable,
    decode_held,
    decode_held_key,
    encode_held,
    held_key,
    still_due,
)
from lakemq.broker_core.groups.offset_table import Committed, OffsetTable

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


tries = st.builds(
    CommitTry,
    st.builds(Owner, st.sampled_from(["sink", "transaction"]), st.text(min_size=1, max_size=9)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**62),
    st.integers(0, 2**63 - 1),
)


@given(st.text(min_size=1, max_size=9), changes, st.none() | tries)
def test_changes_are_read_back(group, found, commit) -> None:  # type: ignore[no-untyped-def]
    held = HeldOffsets(group, found, commit)
    assert decode_held(encode_held(held)) == held
    if commit is not None:
        assert decode_held_key(held_key(group, commit.owner)) == (group, commit.owner)


@pytest.mark.parametrize(
    "data", [b"", b"\x02" + bytes(4), b"\x01\x01\x00\x00\x00", b"\x03" + bytes(40)]
)
def test_damaged_changes_are_told(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_held(data)


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


# -- held until the transaction has an end


TRY = CommitTry(Owner("transaction", "w"), 1, 0, 7)


def held_at(table: OffsetTable, after: int, number: int = 7) -> HeldOffsets:
    change = (table.of("g").get(PLACE), at(after))
    return HeldOffsets("g", {PLACE: change}, TRY._replace(number=number))


def test_what_is_held_is_in_force_and_bars_other_commits() -> None:
    table = OffsetTable()
    table.put("g", {PLACE: at(1)})
    held = HeldTable(table)
    mine = held_at(table, 5)
    held.hold(mine, 0, stored=True)
    assert table.of("g")[PLACE] == at(5)
    held.check_free("g", [OTHER])
    held.check_free("h", [PLACE])
    with pytest.raises(Unavailable, match="transaction w commits t/0"):
        held.check_free("g", [PLACE])
    held.release(mine)
    held.check_free("g", [PLACE])
    assert table.of("g")[PLACE] == at(5)


def test_what_is_void_leaves_what_was_there_before() -> None:
    table = OffsetTable()
    table.put("g", {PLACE: at(1)})
    held = HeldTable(table)
    mine = held_at(table, 5)
    held.hold(mine, 0, stored=True)
    assert held.undo(mine) == [PLACE]
    assert table.of("g")[PLACE] == at(1)
    assert len(held) == 0
    held.hold(mine, 0, stored=True)
    table.put("g", {PLACE: at(9)})  # an operator, say
    assert held.undo(mine) == []
    assert table.of("g")[PLACE] == at(9)


def test_another_try_of_the_owner_is_not_released_by_the_former_one() -> None:
    table = OffsetTable()
    held = HeldTable(table)
    first = held_at(table, 5, number=1)
    held.hold(first, 0, stored=False)
    held.undo(first)
    second = held_at(table, 6, number=2)
    held.hold(second, 0, stored=True)
    held.release(first)
    assert held.find("g", TRY.owner) is second
    assert held.is_stored(second)


def test_what_is_held_for_long_is_asked_for_again_and_again() -> None:
    table = OffsetTable()
    held = HeldTable(table)
    mine = held_at(table, 5)
    held.hold(mine, 100, stored=True)
    told = [held.due(99, 150), held.due(100, 150), held.due(149, 200), held.due(150, 200)]
    assert told == [[], [mine], [], [mine]]
    held.forget(lambda group: group == "g")
    assert held.due(10**9, 10**9) == []
    held.check_free("g", [PLACE])


def test_a_try_that_comes_behind_a_later_one_is_refused() -> None:
    held = HeldTable(OffsetTable())
    later = held_at(OffsetTable(), 5, number=9)
    held.check_try("g", TRY)
    held.hold(later, 0, stored=True)
    held.release(later)
    held.check_try("g", TRY._replace(number=9))
    with pytest.raises(Unavailable, match="try 7 of transaction w comes behind try 9"):
        held.check_try("g", TRY)
    held.check_try("h", TRY)
