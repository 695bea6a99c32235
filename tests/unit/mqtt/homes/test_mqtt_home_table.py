"""Goal: a home grants a session to one node at a time, and keeps what its owner says alone.

Method: the table alone. `tests/simulation/mqtt` has what many nodes make of it.
"""

from __future__ import annotations

import pytest

from lakemq.plugins.mqtt.homes.table import (
    EPOCH_BITS,
    GATHER_MS,
    LET_GO_MS,
    NOT_KEPT,
    ORPHAN_MS,
    UNKEPT_MS,
    Ask,
    Claim,
    Decision,
    Entry,
    Granted,
    HomeTable,
    Known,
    Owned,
    Owner,
    Refused,
    Unused,
    Why,
)

ANN, BOB = ("user", "ann"), ("user", "bob")
A, B, C = Owner("a", 1), Owner("b", 1), Owner("c", 1)
LIVES = {"a": 1, "b": 1, "c": 1}


def table(entries_max: int = 100) -> HomeTable:
    found = HomeTable(entries_max)
    for node in found.gather(1, LIVES, 0):
        found.told(node)
    assert found.serving(0)
    return found


def claim(
    home: HomeTable, owner: Owner, now_ms: int = 0, client_id: str = "x", **changes: object
) -> list[Decision]:
    wanted = Claim(client_id, owner, ANN, clean=False, here=False, replace=False)
    home.claim(wanted._replace(**changes), now_ms)  # type: ignore[arg-type]
    return home.take()


def granted(decisions: list[Decision]) -> Granted:
    (one,) = decisions
    assert isinstance(one, Granted)
    return one


def kept(home: HomeTable, owner: Owner, *, urgent: bool = False, client_id: str = "x") -> Granted:
    one = granted(claim(home, owner, client_id=client_id))
    assert home.begin_write(client_id, one.epoch, owner.node, 1)
    home.written(client_id, one.epoch, 7, urgent)
    return one


def test_epochs_grow_and_tell_the_leadership() -> None:
    home = table()
    first = granted(claim(home, A))
    assert (first.epoch >> EPOCH_BITS, first.offset, first.state) == (1, NOT_KEPT, None)
    again = granted(claim(home, A, here=True))
    assert again.epoch > first.epoch
    assert again.here


def test_an_owner_lets_go_before_another_gets_the_session() -> None:
    home = table()
    first = kept(home, A)
    assert claim(home, B, clean=True) == [Ask("x", A, first.epoch, ends=True)]
    assert not home.let_go("x", first.epoch - 1, b"late")
    assert home.take() == []
    assert home.let_go("x", first.epoch, b"state")
    second = granted(home.take())
    assert (second.state, second.offset, second.clean) == (b"state", 7, True)
    assert not home.owned_by("x", first.epoch, "a")
    assert home.owned_by("x", second.epoch, "b")


def test_who_does_not_answer_is_not_waited_for() -> None:
    home = table()
    kept(home, A)
    claim(home, B)
    home.tick(LET_GO_MS - 1)
    assert home.take() == []
    home.tick(LET_GO_MS)
    assert (granted(home.take()).state, home.entries["x"].owner) == (None, B)


def test_who_has_all_there_is_of_a_session_is_waited_for() -> None:
    home = table()
    home.owns(A, [Owned("x", 0, ANN, False), Owned("y", 0, ANN, False)])
    claim(home, B)
    claim(home, B, client_id="y", clean=True)
    home.tick(LET_GO_MS)
    assert granted(home.take()).client_id == "y"  # it begins anew
    home.tick(UNKEPT_MS - 1)
    assert home.take() == []
    home.tick(UNKEPT_MS)
    assert granted(home.take()).client_id == "x"


def test_what_was_kept_while_its_owner_was_asked_goes_on_from_there() -> None:
    home = table()
    ((_, _, epoch),) = home.owns(A, [Owned("x", 0, ANN, False)])
    claim(home, B)
    assert home.begin_write("x", epoch, "a", 1)
    home.written("x", epoch, 7, urgent=False)
    home.tick(LET_GO_MS)
    assert granted(home.take()).offset == 7


def test_an_owner_that_is_gone_is_not_asked() -> None:
    home = table()
    kept(home, A)
    home.nodes({"b": 1, "c": 1}, 0)
    assert granted(claim(home, B)).offset == 7
    home.nodes(LIVES, 0)
    claim(home, C)
    home.nodes({"a": 1, "c": 1}, 0)  # it dies while it is asked
    assert granted(home.take()).offset == 7
    home.nodes({"a": 1, "c": 2}, 0)  # and another one begins a new life
    assert granted(claim(home, A)).offset == 7


def handed_over(home: HomeTable) -> tuple[Granted, Granted]:
    """The session was handed over, and its new owner has had nothing kept."""
    first = kept(home, A)
    claim(home, B)
    home.let_go("x", first.epoch, b"state")
    return first, granted(home.take())


def test_a_state_whose_owner_dies_before_it_is_kept_is_lost() -> None:
    home = table()
    first, _ = handed_over(home)
    home.nodes({"a": 1, "c": 1}, 0)
    assert home.take() == [Unused("x", A, first.epoch)]
    home.nodes({"a": 1, "c": 1}, 0)
    assert granted(claim(home, C)).offset == 7  # said once


def test_a_state_that_its_owner_did_not_get_is_lost() -> None:
    """The answer to its claim was."""
    home = table()
    first, _ = handed_over(home)
    unused, again = claim(home, B)
    assert unused == Unused("x", A, first.epoch)
    assert isinstance(again, Granted)


def test_a_state_that_goes_on_and_on_is_lost_to_all_who_had_it() -> None:
    home = table()
    first, second = handed_over(home)
    assert granted(claim(home, B, here=True)).here  # it has it in memory
    ((_, _, epoch, _),) = claim(home, C)  # type: ignore[misc]
    assert home.let_go("x", epoch, b"state and more")
    granted(home.take())
    (_,) = claim(home, A)
    home.tick(LET_GO_MS)  # it does not answer
    *unused, _ = home.take()
    assert unused == [Unused("x", A, first.epoch), Unused("x", B, epoch)]
    assert epoch > second.epoch


@pytest.mark.parametrize("of", [A, B], ids=["before", "now"])
def test_what_is_kept_is_not_lost(of: Owner) -> None:
    """What the owner before wrote does not hold what it had in memory when it let go."""
    home = table()
    first, second = handed_over(home)
    epoch = first.epoch if of is A else second.epoch
    home.written("x", epoch, 8, urgent=False)
    home.nodes({"a": 1, "c": 1}, 0)
    assert home.take() == ([Unused("x", A, first.epoch)] if of is A else [])


def test_who_connected_last_gets_the_session() -> None:
    home = table()
    first = kept(home, A)
    claim(home, B, clean=True)
    assert [one.why for one in claim(home, C) if isinstance(one, Refused)] == [Why.SUPERSEDED]
    home.let_go("x", first.epoch, b"")
    last = granted(home.take())
    assert (home.entries["x"].owner, last.clean) == (C, True)  # the one before has ended it


def test_a_session_of_another_user() -> None:
    home = table()
    kept(home, A)
    (refused,) = claim(home, A, user=BOB)
    assert isinstance(refused, Refused)
    assert refused.why is Why.ANOTHERS
    assert granted(claim(home, A, user=BOB, replace=True, here=True)).clean


def test_as_many_sessions_as_there_may_be() -> None:
    home = table(entries_max=1)
    kept(home, A)
    (refused,) = claim(home, A, client_id="y")
    assert isinstance(refused, Refused)
    assert refused.why is Why.FULL
    assert granted(claim(home, A, here=True))
    assert home.owns(A, [Owned("y", 0, ANN, False)]) == [Known("y", 0, 0)]


def test_writes_count_in_the_newest_epoch_alone_and_in_order() -> None:
    home = table()
    first = kept(home, A)
    assert not home.begin_write("x", first.epoch, "b", 2)
    assert home.begin_write("x", first.epoch, "a", 2)
    assert not home.begin_write("x", first.epoch, "a", 1)
    assert home.begin_write("x", first.epoch, "a", 2)  # it was not stored, and is tried again
    second = granted(claim(home, A, here=True))
    assert not home.begin_write("x", first.epoch, "a", 3)
    home.ended("x", first.epoch, "a")
    assert home.owned_by("x", second.epoch, "a")
    home.ended("x", second.epoch, "a")
    assert home.entries == {}


def test_a_new_home_asks_before_it_serves() -> None:
    home = HomeTable()
    home.restore("x", Entry(5, A, ANN, offset=3))
    home.restore("y", Entry(6, A, ANN, offset=4))
    home.restore("y", None)
    assert home.gather(9, LIVES, 0) == {"a", "b", "c"}
    told = [Owned("x", 6, ANN, True), Owned("new", 0, ANN, False), Owned("z", 4, BOB, False)]
    known = home.owns(B, told)
    assert [one.told for one in known] == [6, 0, 4]
    assert known[0].epoch == 6  # it was granted by the home before, and never written
    assert known[1].epoch >> EPOCH_BITS == 9
    assert known[2].epoch == 4
    assert home.owns(A, [Owned("x", 5, ANN, False)]) == [Known("x", 5, 0)]
    assert home.entries["x"].offset == 3
    home.told("a")
    home.told("b")
    assert not home.serving(GATHER_MS - 1)
    assert home.serving(GATHER_MS)


def test_a_new_home_has_one_of_two_owners_let_go() -> None:
    # The home before had granted it to `a`, then to `b`, and `a` never heard of the second.
    for first, second, asked in (((A, 5), (B, 6), [A]), ((B, 6), (A, 5), [])):
        home = HomeTable()
        home.gather(2, LIVES, 0)
        for owner, epoch in (first, second):
            (known,) = home.owns(owner, [Owned("x", epoch, ANN, False)])
        assert (home.entries["x"].owner, home.entries["x"].epoch) == (B, 6)
        assert home.take() == [Ask("x", owner, 5, ends=False) for owner in asked]
        assert bool(known.epoch) is bool(asked)
        assert not home.let_go("x", 5, b"state")
        assert (home.entries["x"].owner, home.take()) == (B, [])


def test_a_session_that_is_announced_twice_is_kept() -> None:
    home = table()
    row = Owned("x", 0, ANN, False)
    ((_, _, epoch),) = home.owns(A, [row])
    assert home.owns(A, [row]) == [Known("x", 0, epoch)]
    assert home.owns(B, [row]) == [Known("x", 0, 0)]
    assert home.owns(Owner("a", 2), [row]) == [Known("x", 0, 0)]  # what it kept in an earlier life
    assert home.owns(Owner("a", 2), [row._replace(epoch=epoch)]) == [Known("x", epoch, epoch)]
    assert home.entries["x"].owner == Owner("a", 2)


def test_what_an_owner_said_before_it_claimed_again_takes_nothing_away() -> None:
    home = table()
    ((_, _, told),) = home.owns(A, [Owned("x", 0, ANN, False)])
    epoch = granted(claim(home, A, here=True)).epoch
    assert home.owns(A, [Owned("x", told, ANN, False)]) == [Known("x", told, epoch)]
    assert home.owns(B, [Owned("x", told, ANN, False)]) == [Known("x", told, 0)]
    assert home.begin_write("x", epoch, "a", 1)
    home.written("x", epoch, 7, urgent=False)
    # What is kept is newer than what a node may have from before it lost the session.
    assert home.owns(A, [Owned("x", told, ANN, False)]) == [Known("x", told, 0)]


def test_orphans_are_taken_with_a_will_at_once_and_else_later() -> None:
    home = table()
    kept(home, A)
    kept(home, A, urgent=True, client_id="will")
    granted(claim(home, A, client_id="brief"))
    assert home.orphans(0, 10) == []
    home.nodes({"b": 1}, 1000)
    assert home.orphans(1000, 10) == ["will"]
    assert "brief" not in home.entries
    home.adopt("will", B)
    assert granted(home.take()).offset == 7
    assert home.orphans(1000 + ORPHAN_MS - 1, 10) == []
    assert home.orphans(1000 + ORPHAN_MS, 10) == ["x"]
    home.nodes(LIVES, 40_000)
    assert home.orphans(40_000, 10) == []
