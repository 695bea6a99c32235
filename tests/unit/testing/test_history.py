"""Goal: whatever contradicts what clients were told is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakemq.broker_core.api.types import TopicPartition
from lakemq.testing import History, Seen

PLACE = TopicPartition("t", 0)
STORED = [Seen(0, b"a"), Seen(1, b"b"), Seen(2, b"c")]


def told(history: History) -> None:
    for offset, value in STORED:
        history.acked("t", 0, offset, value)
    history.read("t", 0, 1, b"b")


def test_what_was_told_is_there() -> None:
    history = History()
    told(history)
    assert history.acks == 3
    assert history.topics() == ["t"]
    assert history.problems({PLACE: STORED}, unique=True) == []


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (STORED[:2], "t/0: acknowledged and lost: 2"),
        ([*STORED[:2], Seen(2, b"x")], "t/0: acknowledged, and another record is there now: 2"),
        ([STORED[0], Seen(1, b"x"), STORED[2]], "t/0: read, and another record is there now: 1"),
        ([STORED[0], STORED[2]], "t/0: read and lost: 1"),
        ([STORED[0], STORED[2]], "t/0: offsets are not one after the other"),
        ([STORED[0], STORED[2], STORED[1]], "t/0: offsets are not one after the other"),
        ([*STORED, Seen(3, b"a")], "stored more than once: t: b'a'"),
    ],
)
def test_each_contradiction_is_named(stored: list[Seen], named: str) -> None:
    history = History()
    told(history)
    assert named in history.problems({PLACE: stored}, unique=True)


@pytest.mark.parametrize("tell", [History.acked, History.read])
def test_an_offset_told_twice_is_named(
    tell: Callable[[History, str, int, int, bytes], None],
) -> None:
    history = History()
    tell(history, "t", 0, 0, b"a")
    tell(history, "t", 0, 0, b"other")
    (problem, *_) = history.problems({PLACE: STORED})
    assert "b'a' and b'other'" in problem


def test_a_partition_that_is_gone_has_lost_everything() -> None:
    history = History()
    for offset in range(9):
        history.acked("t", 1, offset, b"x")
    assert history.problems({}) == ["t/1: acknowledged and lost: 0, 1, 2, 3, 4, ... (9 in all)"]


def test_values_may_repeat_where_nothing_says_that_they_are_unique() -> None:
    assert History().problems({PLACE: [Seen(0, b"a"), Seen(1, b"a")]}) == []
