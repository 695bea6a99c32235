"""Goal: medians, ratios, growth and latencies of benchmarks say what the samples say."""

from __future__ import annotations

import pytest

from benchmarks.harness.statistics import Latencies, estimate, exponent, ratio


def test_an_estimate_is_the_median_between_the_least_and_the_greatest() -> None:
    found = estimate([3.0, 1.0, 2.0])
    assert found == (2.0, 1.0, 3.0) and found.spread == 0.5


def test_no_round_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="no round"):
        estimate([])


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine was twice as slow in the second round, for both: the ratio does not see it.
    assert ratio([100.0, 50.0, 110.0], [50.0, 25.0, 50.0]) == (2.0, 2.0, 2.2)


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio([1.0], [0.0]) is None and ratio([], [1.0]) is None


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_tells_how_a_figure_grows(power: float) -> None:
    found = exponent([(x, 7 * x**power) for x in (1, 10, 100, 1000)])
    assert found == pytest.approx(power)


def test_one_size_has_no_exponent() -> None:
    assert exponent([(10, 1.0), (10, 2.0)]) is None


def test_latencies_keep_three_digits() -> None:
    found = Latencies()
    found.record([0.001] * 989 + [0.5] * 10 + [100.0])
    assert found.count == 1000
    figures = found.figures()
    assert figures["p50_ms"] == pytest.approx(1.0, rel=1e-3)
    assert figures["p99_ms"] == pytest.approx(500.0, rel=1e-3)
    assert figures["p999_ms"] == pytest.approx(500.0, rel=1e-3)


def test_latencies_of_processes_add_up() -> None:
    one, other = Latencies(), Latencies()
    one.record([0.001] * 10)
    other.record([0.1] * 30)
    both = Latencies(one.encode())
    both.add(other.encode())
    assert both.count == 40
    assert both.figures()["p50_ms"] == pytest.approx(100.0, rel=1e-3)


def test_what_is_too_short_or_too_long_is_recorded_at_the_ends() -> None:
    found = Latencies()
    found.record([-1.0, 0.0, 1e6])
    assert found.count == 3 and found.figures()["p999_ms"] == pytest.approx(600_000, rel=1e-3)


def test_no_latency_gives_no_figure() -> None:
    assert Latencies().figures() == {}
