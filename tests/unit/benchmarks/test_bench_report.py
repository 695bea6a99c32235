"""Goal: the tables of a run say what was measured, against whom, and which goals were missed."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from benchmarks.harness import report
from benchmarks.harness.declare import Curve, Goal, Growth, Result, Running, Side, Work
from benchmarks.harness.history import Run

OURS = Side("LakeMQ", "fsynced", lambda folder: nullcontext(Running()))
PEER = Side("Mosquitto", "in memory", lambda folder: nullcontext(Running()))
WORK = Work(
    "qos1", "mqtt", "One publisher.", (OURS, PEER), lambda side, seconds: {},
    (Goal("rate", 1, "Mosquitto"), Goal("cpu_us", 5), Goal("rate", 1, "NATS")),
)  # fmt: skip
RESULT = Result("qos1", {
    "LakeMQ": [{"rate": 900.0, "cpu_us": 4.0}, {"rate": 1100.0, "cpu_us": 4.0}],
    "Mosquitto": [{"rate": 2000.0, "cpu_us": 2.0}, {"rate": 2000.0, "cpu_us": 2.0}],
})  # fmt: skip
RUN = Run("2026-01-02T03:04:05+00:00", {"cores": 2, "load": 0.1}, results={"qos1": RESULT})
GROWTH = Growth(
    "grown", "Grows.", "clients", (1, 10), ("rate",), "O(1)", (OURS,), lambda side, size, s: {}
)


def sections() -> dict[str, str]:
    return report.sections([WORK], [GROWTH], RUN, lambda name: f"{name}.png")


def test_a_table_has_medians_spread_and_ratios() -> None:
    text = sections()["mqtt"]
    assert "| LakeMQ | 1,000 ± 10% | 4.00 |  |" in text
    assert "| Mosquitto | 2,000 | 2.00 | a second 0.50 x; CPU 2.00 x |" in text
    assert "LakeMQ: fsynced; Mosquitto: in memory." in text


def test_goals_are_reached_missed_or_not_measured() -> None:
    text = sections()["mqtt"]
    assert "a second >= 1 x Mosquitto: 0.50, missed" in text
    assert "CPU, us each <= 5: 4.00, reached" in text
    assert "a second >= 1 x NATS: not measured" in text
    assert "missed, reached, not measured" in sections()["summary"]
    assert "![ratios](ratios.png)" in sections()["summary"]


@pytest.mark.parametrize(
    ("figure", "value", "reached"),
    [("rate", 1.0, True), ("rate", 0.9, False), ("p99_ms", 1.0, True), ("p99_ms", 1.1, False)],
)
def test_more_or_less_is_better(figure: str, value: float, reached: bool) -> None:
    assert Goal(figure, 1).reached(value) is reached


def test_a_side_that_is_missing_is_told() -> None:
    result = Result("qos1", {"LakeMQ": RESULT.samples["LakeMQ"]}, {"Mosquitto": "there is none"})
    text = report.work_text(WORK, result)
    assert "Mosquitto did not take part: there is none." in text
    assert "a second >= 1 x Mosquitto: not measured" in text


def test_figures_of_a_busy_generator_are_marked() -> None:
    busy = [{"rate": 1.0, "generator_pct": 97.0}]
    result = Result("qos1", {"LakeMQ": busy, "Mosquitto": [{"rate": 1.0, "generator_pct": 20.0}]})
    text = report.work_text(WORK, result)
    assert "The load generator, not the side, is the bound of LakeMQ." in text
    assert "bound" not in report.work_text(WORK, RESULT)


def test_a_growth_tells_its_exponent_and_its_plot() -> None:
    RUN.curves["grown"] = Curve("grown", {"LakeMQ": [(1, {"rate": 5.0}), (10, {"rate": 50.0})]})
    text = sections()["growth"]
    assert "![grown](grown.png)" in text
    assert "| LakeMQ | a second | 1: 5, 10: 50 | x^1.00 |" in text


def test_only_what_stands_between_marks_is_written() -> None:
    page = (
        "# Title\nby hand\n<!-- bench: mqtt -->\nold\n<!-- end -->\n"
        "more\n<!-- bench: spark -->\nkept\n<!-- end -->\n"
    )
    new = report.page(page, sections())
    assert new.startswith("# Title\nby hand\n<!-- bench: mqtt -->\n### qos1")
    assert "old" not in new
    assert new.endswith("more\n<!-- bench: spark -->\nkept\n<!-- end -->\n")
    assert report.page(new, sections()) == new
    assert report.marks(new) == ["mqtt", "spark"]


def test_a_result_of_another_run_tells_when_it_was_measured() -> None:
    result = Result("qos1", RESULT.samples, began="2025-01-01T00:00:00+00:00")
    assert "Measured 2025-01-01" in report.work_text(WORK, result, RUN.began)
    result.began = RUN.began
    assert "Measured" not in report.work_text(WORK, result, RUN.began)


def test_small_numbers_keep_a_digit() -> None:
    assert report.number(0.0004, 2) == "0.0004"
    assert report.number(0.0, 2) == "0.00"
    assert report.number(1234.5, 0) == "1,234"
