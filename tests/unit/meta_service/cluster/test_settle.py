"""Who leads and who is in sync, with an eligible set and a strict minimum: the rules of level 4."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.meta_service.api.types import PartitionDescription
from lakemq.meta_service.catalog.partitions import settle
from tests.support.seeds import examples

NODES = ("a", "b", "c")


def states(active: str = "", draining: str = "", fenced: str = "") -> dict[str, str]:
    """One letter for each node."""
    each = (("active", active), ("draining", draining), ("fenced", fenced))
    return {node: state for state, nodes in each for node in nodes}


def partition(
    leader: str | None, in_sync: str, eligible: str = "", *, minimum: int = 2
) -> PartitionDescription:
    """Of a, b and c, in leader epoch 5 and partition epoch 9."""
    return PartitionDescription(
        0, leader, 5, 9, NODES, tuple(in_sync), (), tuple(eligible), minimum
    )


def outcome(new: PartitionDescription) -> tuple[str | None, str, str, int]:
    """(leader, in sync, eligible, leader epoch)."""
    return new.leader, "".join(new.in_sync), "".join(new.eligible), new.leader_epoch


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        # A follower goes, and there are still enough: it is not eligible.
        (partition("a", "abc"), states("ab", fenced="c"), ("a", "ab", "", 5)),
        # One too few: it is, and the leader keeps its epoch.
        (partition("a", "ab"), states("a", fenced="bc"), ("a", "a", "b", 5)),
        (partition("a", "abc"), states("a", fenced="bc"), ("a", "a", "bc", 5)),
        # The leader goes.
        (partition("a", "abc"), states("bc", fenced="a"), ("b", "bc", "", 6)),
        (partition("a", "ab"), states("bc", fenced="a"), ("b", "b", "a", 6)),
        # Nobody in sync is left: an eligible node, but never one that lacks records.
        (partition("a", "a", "b"), states("b", fenced="ac"), ("b", "b", "a", 6)),
        (partition("a", "a", "b"), states("c", fenced="ab"), (None, "", "ba", 6)),
        (partition("a", "a", minimum=1), states("bc", fenced="a"), (None, "", "a", 6)),
        # The last one in sync comes back, in another epoch.
        (partition(None, "", "ab"), states("a"), ("a", "a", "b", 6)),
        (partition(None, "", "a", minimum=1), states("abc"), ("a", "a", "", 6)),
        # Draining nodes come last.
        (partition("a", "abc"), states("c", draining="ab"), ("c", "abc", "", 6)),
        (partition("b", "ab"), states("c", draining="ab"), ("b", "ab", "", 5)),
        (partition(None, "", "bc"), states("c", draining="b"), ("c", "c", "b", 6)),
        (partition(None, "", "bc"), states(draining="b"), ("b", "b", "c", 6)),
        (partition("a", "ab"), states("c", draining="b"), ("b", "b", "a", 6)),
        # A node that the catalog does not know is dead.
        (partition("a", "ab"), {}, (None, "", "ab", 6)),
    ],
)
def test_settling(
    before: PartitionDescription, now: dict[str, str], after: tuple[str | None, str, str, int]
) -> None:
    new = settle(before, now)
    assert outcome(new) == after
    assert new.partition_epoch == before.partition_epoch + 1 - (new is before)


def test_where_nothing_is_amiss_the_partition_is_the_same_one() -> None:
    calm = partition("b", "ab", "")
    assert settle(calm, states("ab", fenced="c")) is calm
    alone = partition("a", "a", "b")
    assert settle(alone, states("ac", fenced="b")) is alone


def test_the_eligible_set_is_judged_behind_the_election() -> None:
    """Under a minimum that was lowered one is elected alone: the other may soon lack records."""
    lowered = replace(partition(None, "", "ab"), min_in_sync=1)
    assert outcome(settle(lowered, states("b", fenced="a"))) == ("b", "b", "", 6)


def test_the_first_replica_leads_again_where_that_is_asked_for() -> None:
    old = partition("b", "abc")
    assert settle(old, states("abc")) is old
    assert outcome(settle(old, states("abc"), preferred=True)) == ("a", "abc", "", 6)
    behind = partition("b", "bc")
    assert settle(behind, states("abc"), preferred=True) is behind
    drains = settle(old, states("bc", draining="a"), preferred=True)
    assert drains is old


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        (partition("a", "abc"), states("abc"), ("b", "abc", "", 6)),
        (partition("a", "ac"), states("abc"), ("c", "ac", "", 6)),
        # Others first, even eligible ones: it said that it can't.
        (partition("a", "a", "b"), states("abc"), ("b", "b", "a", 6)),
        (partition("a", "ab"), states("a", draining="b"), ("b", "ab", "", 6)),
        # Alone it goes on, but what it gave out in the epoch before is over.
        (partition("a", "a", "b"), states("a", fenced="b"), ("a", "a", "b", 6)),
        (partition("a", "a", minimum=1), states("abc"), ("a", "a", "", 6)),
        # It leads nothing any more.
        (partition("b", "abc"), states("abc"), ("b", "abc", "", 5)),
    ],
)
def test_a_node_resigns(
    before: PartitionDescription, now: dict[str, str], after: tuple[str | None, str, str, int]
) -> None:
    assert outcome(settle(before, now, resigned="a")) == after


def test_a_lost_disk_is_a_member_of_nothing() -> None:
    now = states("abc")
    assert outcome(settle(partition("a", "abc"), now, lost=("a",))) == ("b", "bc", "", 6)
    assert outcome(settle(partition("b", "b", "a"), now, lost=("a",))) == ("b", "b", "", 5)
    last = settle(partition("a", "a", minimum=1), now, lost=("a",))
    assert outcome(last) == (None, "", "", 6)
    assert settle(last, now) is last, "no empty disk is ever elected"
    assert settle(last, now, lost=("a",)) is last


def test_only_an_unclean_word_elects_who_lacks_records() -> None:
    lost = partition(None, "", "a")
    now = states("b", draining="c", fenced="a")
    assert settle(lost, now) is lost
    assert outcome(settle(lost, now, unclean=True)) == ("b", "b", "", 6)
    assert settle(lost, states(draining="c"), unclean=True).leader is None
    clean = settle(lost, states("ab"), unclean=True)
    assert clean.leader == "a", "one that has everything is there"


_states = st.dictionaries(
    st.sampled_from(NODES), st.sampled_from(["active", "fenced", "draining"]), max_size=3
)


@given(
    st.lists(
        st.tuples(
            _states,
            st.booleans(),
            st.sampled_from(["", *NODES]),
            st.sets(st.sampled_from(NODES), max_size=1),
            st.sets(st.sampled_from(NODES)),
            st.integers(1, 3),
        ),
        max_size=12,
    )
)
@settings(max_examples=examples(300))
def test_whatever_happens_the_sets_agree(
    events: list[tuple[dict[str, str], bool, str, set[str], set[str], int]],
) -> None:
    old = PartitionDescription(0, "a", 0, 0, NODES, NODES)
    for now, preferred, resigned, lost, wish, minimum in events:
        new = settle(old, now, preferred=preferred, resigned=resigned, lost=lost)
        alive = {node for node in now if now[node] != "fenced"}
        assert set(new.in_sync) <= (set(old.in_sync) | set(old.eligible)) & alive - lost
        assert set(new.eligible) <= set(old.in_sync) | set(old.eligible)
        assert not set(new.in_sync) & set(new.eligible) and not lost & set(new.eligible)
        assert (new.leader is None) == (not new.in_sync)
        assert new.leader is None or new.leader in new.in_sync
        assert not new.eligible or len(new.in_sync) < new.min_in_sync
        if new.leader is None:
            assert not (set(new.eligible) & alive)
            members = {*old.in_sync, *old.eligible} - lost
            assert set(new.eligible) == members, "nobody who has everything is forgotten"
        ended = new.leader != old.leader or resigned == old.leader
        assert new.leader_epoch - old.leader_epoch == ended
        assert (new is not old) == (new.partition_epoch > old.partition_epoch)
        if resigned != old.leader:
            again = settle(new, now, preferred=preferred, lost=lost)
            assert again is new, "settling twice changes nothing"
        old = replace(new, min_in_sync=minimum)
        if new.leader is not None:
            grown = tuple(n for n in NODES if n in wish | {new.leader})
            old = replace(old, in_sync=grown, eligible=())
        old = settle(old, now)
