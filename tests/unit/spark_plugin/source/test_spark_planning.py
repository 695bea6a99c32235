"""Cursors and the planning of reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.spark_plugin.errors import DataLossError, OffsetsError, OptionError, TopicRecreated
from lakemq.spark_plugin.source import planning
from lakemq.spark_plugin.source.offsets import TopicCursor, cursor_from_json, cursor_to_json
from lakemq.spark_plugin.source.options import Boundary, parse_options
from lakemq.spark_plugin.source.planning import OffsetRange, PartitionView, TopicView


def view(**topics):
    """view(t={0: (log_start, high_watermark)})"""
    return {
        name: TopicView(
            f"id-{name}",
            {
                p: PartitionView(first, last, 10 * (last - first))
                for p, (first, last) in held.items()
            },
        )
        for name, held in topics.items()
    }


def cursor(**topics):
    return {name: TopicCursor(f"id-{name}", offsets) for name, offsets in topics.items()}


def test_a_cursor_survives_json_with_sorted_keys():
    before = {"b": TopicCursor("x", {10: 5, 2: 7}), "a": TopicCursor("y", {0: 0})}
    text = json.dumps(cursor_to_json(before))
    assert text == (
        '{"v": 1, "t": {"a": {"id": "y", "p": {"0": 0}}, "b": {"id": "x", "p": {"2": 7, "10": 5}}}}'
    )
    assert cursor_from_json(json.loads(text)) == before


@pytest.mark.parametrize("value", [{}, {"v": 2, "t": {}}, {"v": 1}, {"v": 1, "t": {"a": {}}}])
def test_a_checkpoint_that_cannot_be_read_is_said(value):
    with pytest.raises(OffsetsError, match="checkpoint offsets"):
        cursor_from_json(value)


def test_topics_are_chosen_by_name_pattern_or_assignment():
    held = view(a={0: (0, 1), 1: (0, 1)}, ab={0: (0, 1)})
    by = {"bootstrap": "h:1"}
    choose = lambda **o: planning.select_topics(parse_options({**by, **o}, streaming=False), held)  # noqa: E731 - shorter here
    assert list(choose(subscribe="ab")) == ["ab"]
    assert list(choose(subscribePattern="a.?")) == ["a", "ab"]
    assert list(choose(subscribePattern="b")) == []
    assert list(choose(assign='{"a":[1]}')["a"].partitions) == [1]
    with pytest.raises(OptionError, match="unknown topic zz at h:1"):
        choose(subscribe="zz")
    with pytest.raises(OptionError, match="topic a has no partition 7; it has 2"):
        choose(assign='{"a":[7]}')


def test_marks_and_defaults_of_a_boundary():
    held = view(t={0: (5, 50), 1: (6, 60), 2: (7, 70)})
    boundary = Boundary(offsets={"t": {0: -1, 1: -2}})
    found = planning.resolve(boundary, "starting", planning.earliest(held), held, {})
    assert found["t"].offsets == {0: 50, 1: 6, 2: 7}
    with pytest.raises(OffsetsError, match="startingOffsets: t-9"):
        planning.resolve(Boundary(offsets={"t": {9: 0}}), "starting", {}, held, {})


def test_an_offset_that_is_not_reached_is_refused():
    with pytest.raises(OffsetsError, match="t-0 ends at offset 50; 51 is not there yet"):
        planning.check_reached(cursor(t={0: 51}), "ending", view(t={0: (5, 50)}))


def test_what_was_lost_is_an_error_or_a_sentence():
    held = view(t={0: (5, 50)})
    cases = {
        "offsets 3 to 4 are gone, the log now starts at 5": (cursor(t={0: 3}), 5),
        "ends at offset 50, before offset 51": (cursor(t={0: 51}), 50),
    }
    for sentence, (before, goes_on_at) in cases.items():
        with pytest.raises(DataLossError, match=sentence):
            planning.repair(before, held, True)
        repaired = planning.repair(before, held, False)
        assert repaired.cursor["t"].offsets == {0: goes_on_at}
        assert sentence in repaired.losses[0]


def test_a_recreated_or_deleted_topic_is_noticed():
    held = view(t={0: (0, 50)})
    old = {"t": TopicCursor("other", {0: 20})}
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        planning.repair(old, held, True)
    assert planning.repair(old, held, False).cursor == planning.earliest(held)
    with pytest.raises(DataLossError, match="topic u is gone"):
        planning.repair(cursor(u={0: 1}), held, True)
    with pytest.raises(TopicRecreated):
        planning.ranges_between(old, planning.latest(held), {})


def test_partitions_that_appear_are_read_from_their_start():
    held = view(t={0: (0, 50), 1: (3, 9)}, u={0: (0, 4)})
    start = planning.repair(cursor(t={0: 10}), held, True).cursor
    ranges = planning.ranges_between(start, planning.latest(held), planning.earliest(held))
    assert [each[:1] + each[2:] for each in ranges] == [
        ("t", 0, 10, 50), ("t", 1, 3, 9), ("u", 0, 0, 4),
    ]  # fmt: skip
    # Also when Spark's checkpoint of the batch before did not know them.
    again = planning.ranges_between(
        cursor(t={0: 10}), planning.latest(held), planning.earliest(held)
    )
    assert again == ranges


LAGS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6)


@given(LAGS, st.integers(1, 1500))
def test_a_limit_on_rows_holds_and_lets_every_batch_move(lags, rows_max):
    held = view(t={p: (0, start + lag) for p, (start, lag) in enumerate(lags)})
    start = cursor(t={p: first for p, (first, _) in enumerate(lags)})
    end = planning.limit(start, planning.latest(held), held, rows_max=rows_max, bytes_max=None)
    moved = {p: end["t"].offsets[p] - start["t"].offsets[p] for p in start["t"].offsets}
    assert all(0 <= step <= lags[p][1] for p, step in moved.items())
    lag = sum(each for _, each in lags)
    assert sum(moved.values()) <= rows_max
    assert sum(moved.values()) >= (1 if lag else 0)
    if lag <= rows_max:
        assert sum(moved.values()) == lag


def test_a_limit_on_bytes_is_kept_about():
    held = view(t={0: (0, 1000), 1: (0, 3000)})  # 10 bytes a record
    end = planning.limit(
        planning.earliest(held), planning.latest(held), held, rows_max=None, bytes_max=4000
    )
    assert end["t"].offsets == {0: 100, 1: 300}


@given(LAGS, st.integers(1, 40) | st.none(), st.integers(1, 300) | st.none())
def test_pieces_cover_the_ranges_exactly(lags, pieces_min, rows_max):
    ranges = [
        OffsetRange("t", "id", p, start, start + lag) for p, (start, lag) in enumerate(lags) if lag
    ]
    pieces = planning.split(ranges, pieces_min=pieces_min, rows_max=rows_max)
    covered = [(each.partition, o) for each in pieces for o in range(each.start, each.end)]
    assert covered == [(each.partition, o) for each in ranges for o in range(each.start, each.end)]
    assert all(each.start < each.end for each in pieces)
    if rows_max:
        assert all(each.end - each.start <= rows_max for each in pieces)
    if pieces_min:
        assert len(pieces) >= min(pieces_min, sum(lag for _, lag in lags))


def test_a_batch_waits_for_enough_records_or_long_enough():
    enough = planning.enough
    assert enough(5, rows_min=None, waited_s=0, delay_max_s=9, last_call=False)
    assert enough(5, rows_min=5, waited_s=0, delay_max_s=9, last_call=False)
    assert not enough(4, rows_min=5, waited_s=8, delay_max_s=9, last_call=False)
    assert enough(4, rows_min=5, waited_s=9, delay_max_s=9, last_call=False)
    assert enough(4, rows_min=5, waited_s=0, delay_max_s=9, last_call=True)
