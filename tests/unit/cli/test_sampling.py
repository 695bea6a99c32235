"""Goal: `lakemq top` counts rates of two samples, and asks no node twice in a second."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from lakemq.broker_core.api.admin_client import Refused
from lakemq.broker_core.api.command_line import AdminOptions, ExitCode
from lakemq.cli.overview.sampling import STEPS, Sampler


class Cluster:
    """Two nodes and one that is not there; n1 is asked. Each second stores 10 records more."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: dict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, ExitCode] = {}
        self.counted_from_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def ask(self, place: AdminOptions, path: str) -> bytes:
        who = place.admin.removeprefix("https://")
        self.asked[who].append(self.now_s)
        path = path.removeprefix("api/v1/").partition("?")[0]
        if path in self.refused:
            raise Refused("no", self.refused[path])
        if path in ("groups", "metrics"):
            self.asked["n2:1"].append(self.now_s)  # by n1
        return json.dumps(self._answer(path)).encode()

    def _answer(self, path: str) -> dict[str, Any]:
        rows = [self._node("n1"), self._node("n2"), self._node("n3", "fenced")]
        count = 10 * (self.now_s - self.counted_from_s)
        totals = {"lakemq_journal_appended_records_total": count}
        missing = [{"node": "n3", "reason": "time-out"}]
        return {
            "cluster": {"node": "n1", "lacks": {}, "meta": {"leader": "n1"}},
            "nodes": {"data": rows, "meta": {}},
            "metrics": {"data": [{"node": name, "totals": totals} for name in ("n1", "n2")]},
            "groups": {"data": [{"name": "g", "lag": 3}], "meta": {"missing": missing}},
        }[path]

    def _node(self, name: str, state: str = "active") -> dict[str, Any]:
        return {"node": name, "state": state, "addresses": {"admin": f"{name}:1"}, "figures": {}}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def sampler(cluster: Cluster) -> Sampler:
    place = AdminOptions(admin="https://outside:1")
    return Sampler(place, cluster.ask, lambda: cluster.now_s, cluster.sleep)


def test_rates_come_with_the_second_sample(cluster: Cluster, sampler: Sampler) -> None:
    view = sampler.sample()
    assert {name: each["stored"] for name, each in view.rates.items()} == {"n1": None, "n2": None}
    assert view.reading.missing == {"n3": "time-out"} and view.reading.groups[0]["lag"] == 3
    sampler.measure(view)
    assert {name: each["stored"] for name, each in view.rates.items()} == {"n1": 10.0, "n2": 10.0}
    cluster.now_s += 60
    cluster.counted_from_s = cluster.now_s - 1  # both began again
    again = sampler.sample().rates["n1"]["stored"]
    assert again is not None and 0 <= again < 1


def test_no_node_is_asked_twice_in_a_second(cluster: Cluster, sampler: Sampler) -> None:
    for _ in range(3):
        began_s = cluster.now_s
        sampler.sample()
        assert cluster.now_s - began_s <= STEPS
    assert set(cluster.asked) == {"outside:1", "n2:1"}
    for times in cluster.asked.values():
        assert all(later - before >= 1 for before, later in zip(times, times[1:], strict=False))


def test_what_may_not_be_seen_is_left_out(cluster: Cluster, sampler: Sampler) -> None:
    cluster.refused = {"groups": ExitCode.DENIED, "metrics": ExitCode.DENIED}
    view = sampler.sample()
    assert view.rates == {} and view.reading.groups == []
    assert view.reading.denied == ["groups"]
    cluster.refused = {"groups": ExitCode.UNAVAILABLE}
    with pytest.raises(Refused):
        sampler.sample()
