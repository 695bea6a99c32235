"""Goal: gaps, late and repeated numbers are told apart as one who remembers every number would.

Method: Hypothesis plays devices that skip, repeat, come late, jump and begin anew, and compares the
window of bits with a model that keeps all numbers in sets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.plugins.ledger.counting import JUMP_MAX, WINDOW, NumberWindow, Outcome, nearest

COUNTS = ("missing", "gaps", "late", "duplicates", "strays", "restarts")


@dataclass
class Model:
    """Remembers every number since a device began, or began anew."""

    lowest: int
    seen: set[int] = field(default_factory=set)
    missing_before: int = 0
    gaps: int = 0
    late: int = 0
    duplicates: int = 0
    strays: int = 0
    restarts: int = 0
    stray: int | None = None

    @property
    def highest(self) -> int:
        return max(self.seen)

    @property
    def missing(self) -> int:
        counted = sum(number >= self.lowest for number in self.seen)
        return self.missing_before + self.highest - self.lowest + 1 - counted

    def place(self, number: int, first: int | None) -> None:
        stray, self.stray = self.stray, None
        if stray is not None and stray < number <= stray + 2:
            self.missing_before = self.missing
            self.lowest, self.seen = stray, {stray}
            self.strays -= 1
            self.restarts += 1
        far = number <= self.highest - WINDOW or number > self.highest + JUMP_MAX
        if far or (number == first and number < self.highest):
            self.stray = number
            self.strays += 1
        elif number in self.seen:
            self.duplicates += 1
        else:
            self.late += number < self.highest
            self.gaps += number > self.highest + 1
            self.seen.add(number)


def counts(of: NumberWindow | Model) -> dict[str, int]:
    return {name: getattr(of, name) for name in COUNTS}


STEP = st.one_of(
    st.just(1),
    st.integers(-4, 4),
    st.integers(-WINDOW - 3, WINDOW + 3),
    st.sampled_from([-WINDOW, 1 - WINDOW, WINDOW - 1, WINDOW, WINDOW + 1]),
    st.sampled_from([JUMP_MAX, JUMP_MAX + 1, -5 * WINDOW]),
)


@given(st.integers(0, 5000), st.lists(STEP, max_size=60), st.sampled_from([None, 0, 1]))
def test_counts_are_those_of_one_who_remembers_all(
    start: int, steps: list[int], first: int | None
) -> None:
    window, model = NumberWindow(), Model(start, {start})
    window.place(start, first=first)
    number = start
    for step in steps:
        number = max(0, number + step)
        window.place(number, first=first)
        model.place(number, first)
        assert counts(window) == counts(model), (number, steps)
        assert window.highest == model.highest


@given(st.randoms(use_true_random=False), st.integers(1, 200), st.integers(1, 50))
def test_what_comes_in_another_order_is_not_missing(
    chance: random.Random, count: int, distance: int
) -> None:
    order = sorted(range(1, count), key=lambda number: number + chance.uniform(0, distance))
    window = NumberWindow()
    for number in (0, *order):
        assert window.place(number) is not Outcome.DUPLICATE
    assert (window.missing, window.duplicates, window.highest) == (0, 0, count - 1)


@given(
    st.integers(16, 70_000),
    st.lists(st.integers(-7, 7), max_size=60),
    st.integers(0, 70_000),
)
def test_numbers_that_wrap_count_like_those_that_grow(
    wrap: int, steps: list[int], start: int
) -> None:
    growing, wrapping = NumberWindow(), NumberWindow()
    number = start % wrap + wrap
    growing.place(number)
    wrapping.place(number % wrap, wrap=wrap)
    for step in steps:
        number = max(growing.highest or 0, number) + step
        growing.place(number)
        wrapping.place(number % wrap, wrap=wrap)
    assert counts(wrapping) == counts(growing)
    assert (wrapping.highest or 0) % wrap == (growing.highest or 0) % wrap


def played(*numbers: int, first: int | None = None) -> NumberWindow:
    window = NumberWindow()
    for number in numbers:
        window.place(number, first=first)
    return window


def test_a_restart_that_is_told_by_the_first_number() -> None:
    window = played(*range(50), 0, 1, 2, 3, first=0)
    assert (window.restarts, window.duplicates, window.strays, window.missing) == (1, 0, 0, 0)
    assert window.highest == 3


def test_the_first_number_again_is_no_restart_by_itself() -> None:
    window = played(*range(5), 0, 5, 6, first=0)
    assert (window.restarts, window.strays, window.missing, window.highest) == (0, 1, 0, 6)


@pytest.mark.parametrize("distance", [WINDOW - 2, WINDOW - 1])
def test_the_window_holds_what_came_before_a_large_gap(distance: int) -> None:
    window = played(10_000, 10_000 + distance, 10_000)
    assert (window.duplicates, window.late, window.missing) == (1, 0, distance - 1)


@pytest.mark.parametrize("far", [5, 9_000_000])
def test_one_corrupt_number_moves_nothing(far: int) -> None:
    window = played(*range(5000, 5010), far, *range(5010, 5020))
    assert (window.strays, window.missing, window.restarts) == (1, 0, 0)
    assert window.highest == 5019


def test_a_device_that_begins_far_away_is_followed_from_its_second_record() -> None:
    window = played(*range(5000, 5010), 9_000_000, 9_000_002, 9_000_001)
    assert (window.restarts, window.strays, window.gaps, window.late) == (1, 0, 1, 1)
    assert (window.missing, window.highest) == (0, 9_000_002)


@pytest.mark.parametrize(
    ("elapsed", "intervals"), [(0, 0), (4, 0), (5, 1), (14, 1), (15, 2), (-5, 0), (-6, -1)]
)
def test_the_nearest_number_of_intervals(elapsed: int, intervals: int) -> None:
    assert nearest(elapsed, 10) == intervals
