"""Goal: a comparison of two runs names what changed beyond noise, and nothing else."""

from __future__ import annotations

import pytest

from benchmarks.harness.compare import changes, tell
from benchmarks.harness.declare import Curve, Result, Sample
from benchmarks.harness.history import NotHistory, Run, loads


def run_of(began: str = "then", **sides: list[Sample]) -> Run:
    samples = {name.replace("_", " "): rounds for name, rounds in sides.items()}
    return Run(began, {"cores": 2}, results={"qos1": Result("qos1", samples)})


def rates(*values: float) -> list[Sample]:
    return [{"rate": value} for value in values]


def test_rounds_that_overlap_are_noise() -> None:
    old, new = run_of(LakeMQ=rates(100, 120, 110)), run_of(LakeMQ=rates(115, 140, 130))
    assert changes(old, new) == []
    assert "nothing changed beyond noise" in tell(old, new)


def test_a_small_change_is_noise_however_alike_the_rounds() -> None:
    assert changes(run_of(LakeMQ=rates(100, 100, 100)), run_of(LakeMQ=rates(103, 103, 103))) == []


def test_rounds_far_apart_hide_a_change_between_them() -> None:
    old, new = run_of(LakeMQ=rates(100, 140, 180)), run_of(LakeMQ=rates(190, 200, 260))
    assert changes(old, new) == []


def test_medians_far_apart_are_noise_where_rounds_overlap() -> None:
    old, new = run_of(LakeMQ=rates(100, 100, 200)), run_of(LakeMQ=rates(150, 251, 251))
    assert changes(old, new) == []


def test_a_faster_side_is_better() -> None:
    (change,) = changes(run_of(LakeMQ=rates(100, 101, 99)), run_of(LakeMQ=rates(150, 151, 149)))
    assert (change.verdict, change.what) == ("better", "rate of LakeMQ")
    assert "100 -> 150 (+50%" in change.line()


def test_more_cpu_is_worse() -> None:
    old = run_of(LakeMQ=[{"cpu_us": value} for value in (10.0, 10.1, 9.9)])
    new = run_of(LakeMQ=[{"cpu_us": value} for value in (20.0, 20.1, 19.9)])
    (change,) = changes(old, new)
    assert change.verdict == "worse"


def test_a_slower_machine_is_no_change_where_a_peer_slowed_down_too() -> None:
    old = run_of(LakeMQ=rates(100, 102, 98), Mosquitto=rates(50, 51, 49))
    new = run_of(LakeMQ=rates(60, 61.2, 58.8), Mosquitto=rates(30, 30.6, 29.4))
    assert changes(old, new) == []


def test_losing_against_a_peer_is_worse() -> None:
    old = run_of(LakeMQ=rates(100, 102, 98), Mosquitto=rates(50, 51, 49))
    new = run_of(LakeMQ=rates(60, 61, 59), Mosquitto=rates(50, 51, 49))
    (change,) = changes(old, new)
    assert (change.verdict, change.what) == ("worse", "rate, LakeMQ / Mosquitto")


def test_figures_that_are_only_told_are_changed_not_judged() -> None:
    old = run_of(LakeMQ=[{"delivered_pct": 100.0}] * 3)
    (change,) = changes(old, run_of(LakeMQ=[{"delivered_pct": 50.0}] * 3))
    assert change.verdict == "changed"


def test_works_of_one_run_alone_are_named() -> None:
    old = run_of(LakeMQ=rates(1.0))
    new = Run("now", {}, results={"qos2": Result("qos2", {"LakeMQ": rates(1.0)})})
    assert "only in one of them: qos1, qos2" in tell(old, new)


def test_a_run_comes_back_from_its_json() -> None:
    run = run_of(LakeMQ=rates(1.5, 2.5))
    run.curves["grown"] = Curve("grown", {"LakeMQ": [(10.0, {"rate": 3.0})]}, {"NATS": "no"}, 1.0)
    run.results["qos1"].missing["NATS"] = "there is no nats-server"
    assert loads(run.dumps(), "run.json") == run


def test_the_first_side_stays_the_first_in_json() -> None:
    """Ratios are its figures divided by those of the others."""
    run = run_of(LakeMQ=rates(1.0), Kafka=rates(2.0), Zenoh=rates(3.0))
    read = loads(run.dumps(), "run.json")
    assert list(read.results["qos1"].samples) == ["LakeMQ", "Kafka", "Zenoh"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2}', "null", "7"])
def test_what_is_no_run_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(NotHistory, match=r"run\.json"):
        loads(text, "run.json")


def test_a_later_run_takes_the_place_of_the_same_works() -> None:
    old = run_of(LakeMQ=rates(1.0))
    old.results["qos2"] = Result("qos2", {"LakeMQ": rates(3.0)})
    merged = old.merged(run_of("now", LakeMQ=rates(2.0)))
    assert merged.began == "now"
    assert merged.results["qos1"].samples == {"LakeMQ": rates(2.0)}
    assert merged.results["qos2"].samples == {"LakeMQ": rates(3.0)}
