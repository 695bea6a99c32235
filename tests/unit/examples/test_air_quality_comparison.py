"""Demo on real data: sent against stored, and what the verdict says."""

from __future__ import annotations

from decimal import Decimal

from examples.air_quality.comparison import compare, disagreements
from examples.air_quality.readings import Figures, Reading
from examples.air_quality.report import verdict

A, B, C = (Reading("t", f"2004-03-10T1{hour}:00:00", Decimal(hour)) for hour in range(3))
FIGURES = Figures(3, 1, Decimal(1), Decimal(2), Decimal(3))


def test_order_does_not_matter() -> None:
    comparison = compare([A, B, C], [C, A, B])

    assert comparison.exact
    assert comparison.once == comparison.sent == 3


def test_a_stored_decimal_may_have_more_zeros() -> None:
    assert compare([A], [A._replace(value=Decimal("0.0000"))]).exact


def test_what_is_lost_doubled_or_strange_is_told_apart() -> None:
    stranger = A._replace(value=Decimal(-1))
    comparison = compare([A, B, C], [A, B, B, B, stranger])

    assert not comparison.exact
    assert comparison.once == 1
    assert comparison.lost == [C]
    assert comparison.doubled == [B, B]
    assert comparison.strangers == [stranger]


def test_figures_that_differ_are_named() -> None:
    other = FIGURES._replace(total=Decimal("3.0001"))

    assert disagreements({"t": FIGURES, "rh": FIGURES}, {"t": other, "rh": FIGURES}) == {
        ("t", "total")
    }
    assert len(disagreements({"t": FIGURES}, {})) == len(Figures._fields)
    assert len(disagreements({}, {"t": FIGURES})) == len(Figures._fields)


def test_the_verdict_says_which_it_is() -> None:
    good = verdict(compare([A, B], [A, B]), set(), 65)
    assert "All agree" in good
    assert "every one of 2 readings is in the table exactly once" in good

    bad = verdict(compare([A, B], [A, A]), {("t", "total")}, 65)
    assert "do not agree" in bad
    assert "1 figure wrong; 1 reading lost" in bad
    assert "1 reading stored more than once" in bad
