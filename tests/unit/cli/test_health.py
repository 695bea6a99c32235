"""Goal: `lakemq status` finds what of a cluster is not well, says what to do, and weighs it."""

from __future__ import annotations

from typing import Any

import pytest

from lakemq.cli.doctor import State
from lakemq.cli.overview.health import alarms, health
from lakemq.cli.overview.reading import Reading


def node(name: str = "n1", **changes: Any) -> dict[str, Any]:
    figures = {"disk_used_ratio": changes.pop("disk", 0.2)}
    return {"node": name, "state": "active", "silent_s": 0.4, "figures": figures} | changes


def reading(**changes: Any) -> Reading:
    cluster = {
        "lacks": changes.pop("lacks", {"leaderless": 0, "moving": 3}),
        "meta": {"leader": changes.pop("leader", "n1")},
    }
    return Reading(cluster, **({"nodes": [node()]} | changes))


def test_all_is_well() -> None:
    assert alarms(reading()) == []
    assert alarms(reading(nodes=[node(figures={}, silent_s=None)])) == []
    assert health([]) is State.OK


@pytest.mark.parametrize(
    ("found", "state", "told"),
    [
        (reading(leader=None), State.FAILING, "no leader"),
        (reading(nodes=[node(state="fenced", disk=0.99)]), State.FAILING, "n1 is not there"),
        (reading(nodes=[node(state="draining")]), State.WARNING, "n1 drains"),
        (reading(nodes=[node(silent_s=7.0)]), State.WARNING, "heard of 7 s ago"),
        (reading(nodes=[node(disk=0.9)]), State.WARNING, "used 90% of its disk"),
        (reading(nodes=[node(disk=0.95)]), State.FAILING, "used 95% of its disk"),
        (reading(missing={"n2": "time-out"}), State.WARNING, "n2 does not answer: time-out"),
        (reading(failed_plugins=["p on n1: no key"]), State.FAILING, "p on n1: no key"),
        (reading(slow=2), State.WARNING, "2 slow subscribers"),
        (
            reading(lacks={"leaderless": 1}, lacking={"leaderless": ["t/0"]}),
            State.FAILING,
            "1 leaderless: t/0",
        ),
        (reading(lacks={"under-min-in-sync": 1}), State.FAILING, "1 under-min-in-sync"),
        (reading(lacks={"under-replicated": 4}), State.WARNING, "4 under-replicated"),
    ],
)
def test_what_is_not(found: Reading, state: State, told: str) -> None:
    (alarm,) = alarms(found)
    assert alarm.state is state is health([alarm])
    assert told in alarm.found and alarm.advice


def test_what_fails_comes_first() -> None:
    found = alarms(reading(slow=1, leader=None, lacks={"under-replicated": 1, "leaderless": 1}))
    assert [each.state for each in found] == [State.FAILING] * 2 + [State.WARNING] * 2
    assert health(found) is State.FAILING
