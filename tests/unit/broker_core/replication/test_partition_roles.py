"""Goal: a node leads only what the catalog gave to this process, and no epoch again that it gave
up."""

from __future__ import annotations

from lakemq.broker_core.replication.roles import (
    Assignment,
    Drop,
    Follow,
    KeepLeading,
    Lead,
    PartitionRole,
    Wait,
)

ABC = frozenset("abc")


def row(
    leader: str | None,
    epoch: int,
    partition_epoch: int,
    *,
    replicas: str = "abc",
    in_sync: str = "abc",
    eligible: str = "",
) -> Assignment:
    return Assignment(
        leader,
        epoch,
        partition_epoch,
        frozenset(replicas),
        frozenset(in_sync),
        frozenset(eligible),
        2,
    )


def test_it_leads_and_follows_as_the_catalog_says() -> None:
    role = PartitionRole("a")
    first = row("a", 1, 1)
    assert role.assigned(first, active=True) == Lead(first.view, alone=False)
    assert role.leads
    assert role.assigned(first, active=True) is None
    changed = row("a", 1, 2, in_sync="ab")
    assert role.assigned(changed, active=True, last_epoch=1) == KeepLeading(changed.view)
    assert role.assigned(first, active=True) is None, "an old row"
    assert role.assigned(row("b", 2, 3), active=True) == Follow("b", 2)
    assert not role.leads
    assert role.assigned(row("b", 2, 4, in_sync="b"), active=True) is None
    assert role.assigned(row("c", 3, 5), active=True) == Follow("c", 3)
    assert isinstance(role.assigned(row(None, 4, 6), active=True), Wait)
    again = row("a", 5, 7)
    assert role.assigned(again, active=True, last_epoch=3) == Lead(again.view, alone=False)


def test_it_counts_as_long_as_the_catalog_says() -> None:
    role = PartitionRole("a")
    assert role.counts, "until the catalog says no"
    for number, (in_sync, eligible, counts) in enumerate(
        (("ab", "", True), ("b", "a", True), ("b", "", False))
    ):
        role.assigned(row("b", 1, number, in_sync=in_sync, eligible=eligible), active=True)
        assert role.counts is counts
    role.assigned(row("b", 1, 0, in_sync="ab"), active=True)
    assert not role.counts, "an old row"


def test_a_replica_that_the_catalog_names_no_more_is_dropped() -> None:
    role = PartitionRole("a")
    assert role.assigned(row("b", 1, 1), active=True) == Follow("b", 1)
    assert role.assigned(row("b", 1, 2, replicas="bcd"), active=True) == Drop()
    assert role.assigned(row("b", 1, 3, replicas="bcda"), active=True) == Follow("b", 1)


def test_nothing_is_dropped_by_a_row_that_may_be_old() -> None:
    """A process that has just registered may see rows of before: it was named since, and counted
    upon what its disk holds."""
    role = PartitionRole("a")
    old = row("b", 1, 1, replicas="bcd")
    assert isinstance(role.assigned(old, active=False), Wait)
    assert role.assigned(row("b", 1, 2, replicas="abcd"), active=False) == Follow("b", 1)
    role = PartitionRole("a")
    role.assigned(old, active=False)
    assert role.assigned(old, active=True) == Drop(), "handed in again"


def test_what_an_earlier_registration_was_given_is_not_led() -> None:
    role = PartitionRole("a")
    assert isinstance(role.assigned(row("a", 3, 5), active=False), Wait)
    assert role.assigned(row("b", 4, 6), active=False) == Follow("b", 4)
    role = PartitionRole("a")
    assert isinstance(role.assigned(row("a", 3, 5), active=True, last_epoch=3), Wait)
    assert isinstance(role.assigned(row("a", 4, 6), active=True, last_epoch=3), Lead)


def test_an_only_replica_goes_on_leading_when_others_are_added() -> None:
    """Its log has records of that epoch, and this very process has appended them."""
    role = PartitionRole("a", led_alone=3)
    more = row("a", 3, 5, in_sync="a")
    assert role.assigned(more, active=True, last_epoch=3) == Lead(more.view, alone=False)
    role = PartitionRole("a", led_alone=2)
    assert isinstance(role.assigned(more, active=True, last_epoch=3), Wait)


def test_a_row_older_than_the_log_is_waited_out() -> None:
    role = PartitionRole("a")
    assert isinstance(role.assigned(row("b", 3, 5), active=True, last_epoch=4), Wait)
    assert role.assigned(row("b", 4, 6), active=True, last_epoch=4) == Follow("b", 4)


def test_an_epoch_that_was_given_up_is_not_led_again() -> None:
    role = PartitionRole("a")
    role.assigned(row("a", 3, 5), active=True)
    role.gave_up(3)
    assert not role.leads
    assert role.assigned(row("a", 3, 6, in_sync="a"), active=True) is None
    assert not role.leads
    assert isinstance(role.assigned(row("a", 4, 7), active=True), Lead)


def test_the_only_replica_leads_by_itself() -> None:
    """What only it has goes on while it is fenced; not when the catalog knows that it lost it."""
    role = PartitionRole("a")
    alone = row(None, 3, 5, replicas="a", in_sync="", eligible="a")
    assert role.assigned(alone, active=False, last_epoch=3) == Lead(alone.view, alone=True)
    lost = row(None, 4, 6, replicas="a", in_sync="", eligible="")
    assert isinstance(role.assigned(lost, active=True), Wait)


def test_a_second_replica_ends_leading_alone() -> None:
    role = PartitionRole("a")
    alone = row("a", 3, 5, replicas="a", in_sync="a")
    assert role.assigned(alone, active=True) == Lead(alone.view, alone=True)
    moving = row("a", 3, 6, replicas="ab", in_sync="a")
    assert role.assigned(moving, active=True, last_epoch=3) == Lead(moving.view, alone=False)
    back = row("a", 3, 7, replicas="a", in_sync="a")
    assert role.assigned(back, active=True, last_epoch=3) == Lead(back.view, alone=True)
