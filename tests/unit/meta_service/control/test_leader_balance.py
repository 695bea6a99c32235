"""Goal: leaderships are even in number first, then in bytes, and a plan that was carried out leaves
nothing to plan."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lakemq.meta_service.api.types import (
    NodeRegistration,
    PartitionDescription,
    TopicDescription,
)
from lakemq.meta_service.control.balance import PlannedMove, cheapest_first, plan
from lakemq.meta_service.control.leader_balance import ABOVE_MEAN, spread_leaders

ID = "0" * 32
MB = 1 << 20


def spread(
    homes: list[str],
    sizes: list[int],
    led: dict[str, int] | None = None,
    led_bytes: dict[str, int] | None = None,
) -> list[str]:
    """A letter is a node, the first one of each home leads."""
    found = [list(home) for home in homes]
    spread_leaders(found, sizes, led or {}, led_bytes or {})
    return ["".join(home) for home in found]


def led_bytes(homes: list[str], sizes: list[int]) -> Counter[str]:
    found = Counter(dict.fromkeys("".join(homes), 0))
    for home, size in zip(homes, sizes, strict=True):
        found[home[0]] += size
    return found


def test_a_large_leadership_is_exchanged_for_a_small_one() -> None:
    assert spread(["ab", "ab", "ba", "ba"], [90, 80, 10, 20]) == ["ba", "ab", "ba", "ab"]


def test_the_odd_leadership_goes_without_another_in_return() -> None:
    assert spread(["ab", "ab", "ba"], [60, 60, 10]) == ["ba", "ab", "ba"]


def test_numbers_come_before_bytes() -> None:
    homes = spread(["ab"] * 4, [100, 1, 1, 1])
    assert Counter(home[0] for home in homes) == {"a": 2, "b": 2}


def test_what_is_nearly_even_stays() -> None:
    homes = ["ab", "ab", "ba", "ba"]
    assert spread(homes, [58, 1, 50, 1]) == homes, "59 of 55 is within a fifth"
    assert spread(homes, [0, 0, 0, 0]) == homes, "sizes are not known"
    assert spread(["ab", "ba"], [100, 90]) == ["ab", "ba"]


def test_nothing_is_exchanged_where_it_would_only_change_sides() -> None:
    assert spread(["ab", "ba"], [100, 1]) == ["ab", "ba"]


def test_what_stays_counts() -> None:
    assert spread(["ab", "ab"], [1, 1], {"a": 2}) == ["ba", "ba"]
    heavy = spread(["ab", "ba"], [50, 10], {"a": 1, "b": 1}, {"a": 60, "b": 0})
    assert heavy == ["ba", "ab"]


_homes = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map("".join),
        st.integers(0, 1000),
    ),
    max_size=24,
)


@given(_homes)
def test_it_comes_to_an_end_and_makes_nothing_worse(drawn: list[tuple[str, int]]) -> None:
    homes, sizes = [home for home, _ in drawn], [size for _, size in drawn]
    even = spread(homes, [0] * len(homes))
    done = spread(homes, sizes)
    assert [sorted(home) for home in done] == [sorted(home) for home in homes]

    def squares(found: Counter[str]) -> int:
        return sum(count**2 for count in found.values())

    assert squares(Counter(h[0] for h in done)) <= squares(Counter(h[0] for h in even))
    assert spread(done, sizes) == done, "nothing is left to do"


@given(st.lists(st.integers(0, 100), min_size=20, max_size=60))
def test_no_node_leads_much_more_than_the_mean_where_all_have_all(sizes: list[int]) -> None:
    homes = ["abc", "acb", "bac", "bca", "cab", "cba"] * 10
    done = spread(homes[: len(sizes)], sizes)
    found = led_bytes(done, sizes)
    # An exchange of two leaderships can be no finer than what they differ by.
    assert max(found.values()) <= (1 + ABOVE_MEAN) * sum(sizes) / 3 + 100


# ------------------------------------------------------------ plans


def topic(*homes: str, topic_id: str = ID) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(number, home[0], 0, 0, tuple(home), tuple(home))
        for number, home in enumerate(homes)
    )
    return TopicDescription("t", topic_id, partitions, {}, 1)


NODES = [NodeRegistration(name, {}) for name in "abc"]


def known(*sizes: int) -> dict[tuple[str, int], int]:
    return {(ID, number): size for number, size in enumerate(sizes)}


def targets(moves: list[PlannedMove]) -> dict[int, str]:
    return {move.partition: "".join(move.target) for move in moves}


def test_a_plan_spreads_leaders_by_bytes() -> None:
    old = topic("ab", "ab", "ba", "ba")
    assert targets(plan([old], NODES[:2], sizes=known(90, 80, 10, 20))) == {0: "ba", 3: "ab"}
    assert plan([old], NODES[:2]) == []


def test_large_partitions_and_unknown_ones_stay_and_count() -> None:
    old = topic(*["a"] * 6)
    sizes = {(ID, number): size for number, size in enumerate((2 * MB, 2 * MB, 1, 1, 1))}
    moves = plan([old], NODES, sizes=sizes, size_max_bytes=MB)
    assert set(targets(moves)) == {2, 3, 4}, "5 is not known"
    assert set(targets(moves).values()) == {"b", "c"}
    assert plan([old], NODES, size_max_bytes=MB) == []


def test_leaders_of_large_partitions_count_where_small_ones_are_spread() -> None:
    old = topic("ab", "ab", "ab", "ab")
    moves = plan([old], NODES[:2], sizes=known(2 * MB, 2 * MB, 1, 1), size_max_bytes=MB)
    assert targets(moves) == {2: "ba", 3: "ba"}


def test_what_copies_least_moves_first() -> None:
    moves = plan([topic(*["a"] * 6)], NODES)
    sizes = dict(zip([(ID, move.partition) for move in moves], (5, 3, 9), strict=False))
    order = cheapest_first(moves, sizes)
    known_sizes = [sizes.get((ID, move.partition)) for move in order]
    assert known_sizes == [3, 5, 9, None][: len(moves)]
    free = PlannedMove("t", ID, 99, 0, ("a", "b"), ("b", "a"))
    assert cheapest_first([*moves, free], sizes)[0] is free
