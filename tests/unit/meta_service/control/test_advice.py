"""When the cluster is said to need more nodes, or fewer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.control.advice import RESOURCES, Advice, advise
from lakemq.meta_service.control.failure_detector import FailureDetector, NodeReport
from lakemq.meta_service.control.load_history import (
    SAMPLE_S,
    SAMPLES_MAX,
    LoadHistory,
    figures_of,
)
from tests.support.seeds import examples


def nodes(*names: str, **states: str) -> list[NodeRegistration]:
    return [NodeRegistration(name, {}, state=states.get(name, "active")) for name in names]


def history(minutes: int = 60, **figures: Mapping[str, tuple[float, float]]) -> LoadHistory:
    """Of nodes by name: figure -> (value now, growth per hour)."""
    made = LoadHistory()
    for minute in range(minutes):
        ago_h = (minutes - 1 - minute) / 60
        made.note(
            {
                node: {name: now - per_hour * ago_h for name, (now, per_hour) in each.items()}
                for node, each in figures.items()
            },
            minute * SAMPLE_S,
        )
    return made


def disks(**nodes: tuple[float, float]) -> LoadHistory:
    return history(**{node: {"disk_used_ratio": each} for node, each in nodes.items()})


def test_a_disk_that_fills_asks_for_a_node() -> None:
    # The mean of the last ten minutes lies 4.5 minutes back.
    found = disks(a=(0.8115, 0.02), b=(0.8115, 0.02), c=(0.8115, 0.02))
    assert advise(nodes("a", "b", "c"), found) == Advice(
        1, ("add 1 node (disk 0.81, +2.0 %/h: full in 9 h)",)
    )


def test_the_worst_resource_says_how_many() -> None:
    found = history(
        **{n: {"disk_used_ratio": (0.92, 0.0), "cpu_ratio": (0.95, 0.0)} for n in "abcdefgh"}
    )
    assert advise(nodes(*"abcdefgh"), found) == Advice(2, ("add 2 nodes (CPU 0.95)",))


def test_connections_count_by_what_a_process_can_hold() -> None:
    found = history(**{n: {"connections": (90_000.0, 0.0)} for n in "abc"})
    assert advise(nodes(*"abc"), found).lines == ("add 1 node (connections 0.90)",)


def test_a_quiet_cluster_of_three_is_well() -> None:
    found = disks(a=(0.1, 0.0), b=(0.1, 0.0), c=(0.1, 0.0))
    assert advise(nodes("a", "b", "c"), found) == Advice(0, ())


def test_the_emptiest_of_many_could_go() -> None:
    found = disks(a=(0.2, 0.0), b=(0.12, 0.0), c=(0.2, 0.0), d=(0.2, 0.0))
    assert advise(nodes(*"abcd"), found) == Advice(-1, ("b could go (disk 0.18)",))
    assert advise(nodes(*"abcd"), found, replication=4).nodes_wanted == 0


def test_nothing_goes_while_the_trend_is_not_known_or_a_node_is_fenced() -> None:
    quiet = {n: {"disk_used_ratio": (0.1, 0.0)} for n in "abcd"}
    assert advise(nodes(*"abcd"), history(5, **quiet)).nodes_wanted == 0
    assert advise(nodes(*"abcde", e="fenced"), history(60, **quiet)) == Advice(
        0, ("e is fenced: start it, or `lakemq node decommission e`",)
    )


def test_what_one_node_alone_has_too_much_of_is_a_matter_for_a_rebalance() -> None:
    found = disks(a=(0.95, 0.0), b=(0.2, 0.0), c=(0.2, 0.0))
    assert advise(nodes("a", "b", "c"), found) == Advice(
        0, ("rebalance: a has disk 0.95, the mean is 0.45",)
    )


def test_too_few_nodes_for_the_replicas_that_topics_want() -> None:
    found = advise(nodes("a", "b", b="draining"), LoadHistory(), replication=3)
    assert found == Advice(2, ("add 2 nodes (topics want 3 replica(s))",))


def test_without_nodes_there_is_no_advice() -> None:
    assert advise([], LoadHistory()) == Advice(1, ("add 1 node (topics want 1 replica(s))",))


@given(
    count=st.integers(1, 20),
    now=st.floats(0.0, 1.0),
    per_hour=st.floats(-0.2, 0.2),
)
@example(count=1, now=0.0, per_hour=2.2e-311)
@settings(max_examples=examples(100), deadline=None)
def test_with_the_nodes_that_were_wanted_no_more_are(
    count: int, now: float, per_hour: float
) -> None:
    """The same load over more nodes: nothing more is wanted, and nothing advised away."""
    first = advise(
        nodes(*(f"n{i}" for i in range(count))),
        disks(**{f"n{i}": (now, per_hour) for i in range(count)}),
    ).nodes_wanted
    if first <= 0:
        return
    total = count + first
    spread = disks(
        **{f"n{i}": (now * count / total, per_hour * count / total) for i in range(total)}
    )
    assert advise(nodes(*(f"n{i}" for i in range(total))), spread).nodes_wanted == 0


# ------------------------------------------------------------ the history


def test_a_sample_a_minute_for_an_hour() -> None:
    found = LoadHistory()
    for second in range(0, 7200, 10):
        found.note({"a": {"x": float(second < 3600)}}, float(second))
    samples = found._nodes["a"]["x"].points
    assert len(samples) == SAMPLES_MAX
    assert found.mean("a", "x") == 0.0 and found.per_hour("a", "x") == 0.0


def test_a_trend_is_the_slope_per_hour() -> None:
    found = history(30, a={"x": (5.0, 1.5)})
    assert found.per_hour("a", "x") == pytest.approx(1.5)
    assert found.per_hour("a", "y") is None and found.mean("b", "x") is None
    assert history(10, a={"x": (5.0, 1.5)}).per_hour("a", "x") is None, "too short"


def test_a_node_that_is_gone_and_a_new_leader_forget() -> None:
    found = history(30, a={"x": (5.0, 1.5)})
    found.note({"b": {"x": 1.0}}, 30 * SAMPLE_S)
    assert found.mean("a", "x") is None and found.mean("b", "x") == 1.0
    found.restart()
    assert found.mean("b", "x") is None
    found.note({"b": {"x": 2.0}}, 0.0)
    assert found.mean("b", "x") == 2.0, "its clock may begin anywhere"


def test_names_of_figures_are_bounded() -> None:
    found = LoadHistory()
    for minute in range(10):
        told = figures_of({f"{minute}x{n:03}": 1.0 for n in range(1000)} | {"y" * 65: 1.0})
        found.note({"a": told}, minute * SAMPLE_S)
        assert len(found._nodes["a"]) == len(told) == 32


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_what_is_no_number_is_no_figure(figure: float) -> None:
    """One node that says so would end the advice for all."""
    detector, found = FailureDetector(), LoadHistory()
    for minute in range(30):
        for node_id in "abc":
            load = {resource.figure: figure for resource in RESOURCES} | {"records": 5.0}
            detector.record_heartbeat(node_id, 1, minute * SAMPLE_S, NodeReport(load))
        found.note(detector.loads(), minute * SAMPLE_S)
    assert advise(nodes("a", "b", "c"), found).nodes_wanted == 0
    assert detector.loads()["a"] == {"records": 5.0}
