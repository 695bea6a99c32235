"""Goal: matching, covering and overlapping of topic filters agree with trying every topic name."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.topic_filters import (
    covers,
    filters_overlap,
    is_filter,
    levels_of,
    matches,
    overlaps,
)

LETTERS = ("a", "b", "$s")
NAMES = [
    name for size in (1, 2, 3, 4) for name in itertools.product(("a", "b", "$s", "z"), repeat=size)
]
"""`z` occurs in no filter and names are deeper than filters: what holds here holds for all."""
LEVELS = st.sampled_from((*LETTERS, "+"))
FILTERS = st.builds(
    lambda levels, tail: "/".join((*levels, *tail)),
    st.lists(LEVELS, max_size=2),
    st.sampled_from(((), ("#",))),
).filter(bool)


def naively_matches(topic_filter: str, name: tuple[str, ...]) -> bool:
    """MQTT 5.0 section 4.7, level by level."""
    levels = topic_filter.split("/")
    if levels[0] in ("+", "#") and name[0].startswith("$"):
        return False
    for place, level in enumerate(levels):
        if level == "#":
            return True
        if place >= len(name) or level not in ("+", name[place]):
            return False
    return len(levels) == len(name)


def matched(topic_filter: str) -> set[tuple[str, ...]]:
    return {name for name in NAMES if naively_matches(topic_filter, name)}


@given(FILTERS, FILTERS)
def test_covering_is_having_all_names(wide: str, narrow: str) -> None:
    expected = matched(narrow) <= matched(wide)
    assert covers(levels_of(wide), levels_of(narrow)) is expected


@given(FILTERS, FILTERS)
def test_overlapping_is_having_a_name_in_common(one: str, other: str) -> None:
    expected = bool(matched(one) & matched(other))
    assert overlaps(levels_of(one), levels_of(other)) is expected
    assert filters_overlap(one, other) is expected


@given(FILTERS, st.sampled_from(NAMES))
def test_matching_is_covering_the_name(topic_filter: str, name: tuple[str, ...]) -> None:
    expected = naively_matches(topic_filter, name)
    assert matches(topic_filter, "/".join(name)) is expected
    assert covers(levels_of(topic_filter), name) is expected


@pytest.mark.parametrize(
    ("wide", "narrow", "verdict"),
    [
        ("devices/#", "devices", True),  # the level above
        ("devices/+/#", "devices/#", False),
        ("devices/+", "devices/+/t", False),
        ("+/#", "#", True),
        ("#", "$SYS/#", False),
        ("$SYS/#", "$SYS/broker/+", True),
        ("a//b", "a/+/b", False),
        ("a/+/b", "a//b", True),
    ],
)
def test_well_known_cases(wide: str, narrow: str, verdict: bool) -> None:
    assert covers(levels_of(wide), levels_of(narrow)) is verdict


def test_what_a_filter_is() -> None:
    assert all(is_filter(each) for each in ("#", "a/#", "+/a/+", "/", "a//b", "$SYS/#"))
    assert not any(is_filter(each) for each in ("", "a#", "#/a", "a+/b", "a/#/b", "a\0"))


@pytest.mark.parametrize(
    ("topic_filter", "name", "does"),
    [("#", "a/b", True), ("#", "$SYS/x", False), ("+/x", "$SYS/x", False),
     ("$SYS/#", "$SYS/x", True), ("a/#", "a", True),
     ("a/+", "a", False), ("a/+", "a/", True), ("+", "/a", False)],
)  # fmt: skip
def test_filters_match_as_mqtt_has_it(topic_filter: str, name: str, does: bool) -> None:
    assert matches(topic_filter, name) is does
