"""Goal: one page of metrics for all processes, as Prometheus takes it."""

from __future__ import annotations

from lakemq.broker_core.api.types import NodeInfo
from lakemq.plugins.admin.api.joined_metrics import joined, siblings

FIRST = """\
# HELP a_total Things.
# TYPE a_total counter
a_total 1.0
# TYPE h histogram
h_bucket{le="1",x="{"} 2.0
h_count 2.0
"""
SECOND = """\
# HELP a_total Things.
# TYPE a_total counter
a_total{k="v w"} 3.0
# TYPE only gauge
only 4.0
"""


def test_samples_of_a_metric_lie_together_and_name_their_process() -> None:
    assert (
        joined({"n1": FIRST, "n1.p2": SECOND})
        == """\
# HELP a_total Things.
# TYPE a_total counter
a_total{process="n1"} 1.0
a_total{process="n1.p2",k="v w"} 3.0
# TYPE h histogram
h_bucket{process="n1",le="1",x="{"} 2.0
h_count{process="n1"} 2.0
# TYPE only gauge
only{process="n1.p2"} 4.0
"""
    )


def test_processes_of_one_machine_are_asked() -> None:
    def node(name: str, machine: str) -> NodeInfo:
        return NodeInfo(name, {}, "", "", "active", 1, machine)

    nodes = [node("n1", "m1"), node("n1.p2", "m1"), node("n2", "m2"), node("n3", "n3")]
    assert siblings(nodes, "n1") == ["n1.p2"]
    assert siblings(nodes, "n2") == siblings(nodes, "n3") == siblings([], "n1") == []
