"""Goal: the checker of histories finds each anomaly that is planted, and no other."""

from __future__ import annotations

import pytest

from tests.support.history import OPEN, REFUSED, History, Logs, Read, Send

LOG = [(0, "a"), (1, "b"), (2, "c")]


def sends(*offsets: int, partition: str = "p") -> list[Send]:
    """Of a, b, c, ... by one producer, one after the other."""
    return [
        Send(partition, "x", number, "abcdef"[number], number, number + 0.5, offset)
        for number, offset in enumerate(offsets)
    ]


def read(start: int, *values: str, at_s: float = 9.0, reader: str = "r", **other: object) -> Read:
    records = tuple((start + number, value) for number, value in enumerate(values))
    made = Read("p", reader, at_s, at_s + 0.5, start, records, start + len(values))
    return made._replace(**other)  # type: ignore[arg-type]


def kinds(history: History, final: Logs) -> set[str]:
    return {anomaly.kind for anomaly in history.anomalies(final)}


def history(*operations: Send | Read, **transactions: bool) -> History:
    made = History()
    made.sends = [each for each in operations if isinstance(each, Send)]
    made.reads = [each for each in operations if isinstance(each, Read)]
    made.transactions = transactions
    return made


def test_a_good_history_has_no_anomaly() -> None:
    good = history(
        *sends(0, 1, 2, OPEN, REFUSED),
        read(0, "a", "b", end=3),
        read(2, "c", at_s=10.0),
        read(0, "a", "b", "c", reader="s"),
    )
    assert good.anomalies({"p": LOG}) == []
    assert good.anomalies({"p": [*LOG, (3, "d")]}) == [], "an open one may be stored"


@pytest.mark.parametrize(
    ("kind", "operations", "final"),
    [
        ("lost", sends(0, 1, 2), LOG[:2]),
        ("lost", [*sends(0, 1, OPEN), read(0, "a", "b", "c")], LOG[:2]),
        ("duplicate", sends(0, 1, 2), [*LOG, (3, "a")]),
        ("never-sent", sends(0, 1, 2), [*LOG, (3, "z")]),
        ("never-sent", [*sends(0, 1, 2), *sends(OPEN, partition="q")], [*LOG, (3, "z")]),
        ("refused", sends(0, 1, REFUSED), LOG),
        ("inconsistent-offset", sends(0, 1, 1), LOG),
        ("inconsistent-offset", [*sends(0, 1, 2), read(0, "b")], LOG),
        ("reordered", sends(0, OPEN, OPEN), [(0, "a"), (1, "c"), (2, "b")]),
        ("reordered", [*sends(0, 1, 2), read(0)._replace(records=((1, "b"), (0, "a")))], LOG),
        ("skipped", [*sends(0, 1, 2), read(0)._replace(records=((0, "a"), (2, "c")))], LOG),
        ("skipped", [*sends(0, 1, 2), read(0, "a"), read(2, "c", at_s=10.0, end=3)], LOG),
        ("nonmonotonic", [*sends(0, 1, 2), read(0, "a", "b", end=3),
                          read(1, "b", at_s=10.0, end=3)], LOG),
        ("stale-read", [*sends(0, 1, 2), read(0, "a", at_s=3.0)], LOG),
        ("stale-read", [*sends(0, OPEN, OPEN), read(0, "a", end=3, at_s=3.0),
                        read(0, "a", reader="s", at_s=4.0)], LOG),
    ],
)  # fmt: skip
def test_each_planted_anomaly_is_found(
    kind: str, operations: list[Send | Read], final: list[tuple[int, str]]
) -> None:
    assert kind in kinds(history(*operations), {"p": final})


def test_what_was_answered_before_lies_before() -> None:
    one = Send("p", "x", 0, "a", 0.0, 1.0, 1)
    other = Send("p", "y", 0, "b", 2.0, 3.0, 0)
    assert kinds(history(one, other), {"p": [(0, "b"), (1, "a")]}) == {"reordered"}
    together = other._replace(start_s=0.5)
    assert kinds(history(one, together), {"p": [(0, "b"), (1, "a")]}) == set()


def test_a_read_that_began_before_the_answer_may_miss_it() -> None:
    early = read(0, "a", "b", at_s=2.2)
    assert kinds(history(*sends(0, 1, 2), early), {"p": LOG}) == set()


# ------------------------------------------------------------ transactions


def write(value: str, transaction: str, partition: str = "p") -> Send:
    return Send(partition, transaction, 0, value, 0.0, 9.0, OPEN, transaction)


def test_aborted_records_are_not_read() -> None:
    mixed = history(write("a", "t"), write("b", "u"), t=False, u=True)
    assert kinds(mixed, {"p": [(0, "b")]}) == set()
    assert "G1a" in kinds(mixed, {"p": [(0, "a"), (1, "b")]})
    mixed.reads.append(read(0, "a"))
    assert "G1a" in kinds(mixed, {"p": [(1, "b")]})


def test_a_transaction_is_there_as_a_whole() -> None:
    both = history(write("a", "t"), write("b", "t", "q"), t=True)
    assert kinds(both, {"p": [(0, "a")], "q": [(0, "b")]}) == set()
    assert kinds(both, {"p": [(0, "a")], "q": []}) == {"G1b"}
    assert kinds(both, {"p": [], "q": []}) == {"G1b"}
    both.transactions.clear()  # nobody knows how it ended
    assert kinds(both, {"p": [], "q": []}) == set()
    assert kinds(both, {"p": [(0, "a")], "q": []}) == {"G1b"}


def test_transactions_are_written_in_one_order() -> None:
    crossed = history(
        write("a", "t"), write("b", "u"), write("c", "t", "q"), write("d", "u", "q"), t=True, u=True
    )
    assert kinds(crossed, {"p": [(0, "a"), (1, "b")], "q": [(0, "c"), (1, "d")]}) == set()
    assert kinds(crossed, {"p": [(0, "a"), (1, "b")], "q": [(0, "d"), (1, "c")]}) == {"G0"}


def test_transactions_do_not_read_each_other() -> None:
    circular = history(
        write("a", "t"),
        write("b", "u", "q"),
        read(0, "a", transaction="u"),
        Read("q", "r", 9.0, 9.5, 0, ((0, "b"),), 1, "t"),
        t=True,
        u=True,
    )
    assert kinds(circular, {"p": [(0, "a")], "q": [(0, "b")]}) == {"G1c"}
