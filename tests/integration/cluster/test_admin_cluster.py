"""Goal: whichever node is asked, the admin API answers for the whole cluster, and what belongs to
another node is carried out there."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import lakemq
from tests.support.node.admin_api import Answered, ask
from tests.support.node.dashboard import Visitor, dashboard_of
from tests.support.node.node import NodeProcess, unique

Nodes = dict[str, NodeProcess]


def spread_topic(nodes: Nodes) -> tuple[str, dict[int, str]]:
    """A topic of which each broker leads a partition: (name, leaders)."""
    name = unique("spread")
    ask(nodes["a"], "POST", "topics", {"name": name, "partitions": 2})
    rows = until(
        lambda: ask(nodes["b"], "GET", f"partitions?topic={name}"),
        lambda found: found.status == 200 and all(each["leader"] for each in found.data),
    ).data
    leaders = {each["partition"]: each["leader"] for each in rows}
    assert set(leaders.values()) == {"a", "b"}
    return name, leaders


def until(look: Callable[[], Answered], wanted: Callable[[Answered], bool]) -> Answered:
    deadline = time.monotonic() + 30
    while not wanted(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_records_and_offsets_from_any_node(nodes: Nodes) -> None:
    name, leaders = spread_topic(nodes)
    for number in leaders:
        body = {"records": [{"value": f"to {number}"}]}
        done = ask(nodes["a"], "POST", f"topics/{name}/records?partition={number}", body)
        assert done.json["stored"] == 1, done
    for node in "ab":
        found = ask(nodes[node], "GET", f"topics/{name}/partitions")
        assert [(each["partition"], each["node"]) for each in found.data] == sorted(leaders.items())
        assert [each["high_watermark"] for each in found.data] == [1, 1]
        assert ask(nodes[node], "GET", f"topics/{name}/offsets").json["offsets"] == {"0": 1, "1": 1}
        for number in leaders:
            read = ask(nodes[node], "GET", f"topics/{name}/partitions/{number}/records").json
            assert [each["value"] for each in read["records"]] == [f"to {number}"]
    elsewhere = next(number for number, leader in leaders.items() if leader == "b")
    path = f"topics/{name}/partitions/{elsewhere}/delete-records"
    assert ask(nodes["a"], "POST", path, {"before": -1}).json["log_start_offset"] == 1
    assert ask(nodes["b"], "GET", f"topics/{name}/offsets?at=earliest").json["offsets"] == {
        str(number): int(number == elsewhere) for number in leaders
    }


def test_groups_of_all_nodes(nodes: Nodes) -> None:
    name, leaders = spread_topic(nodes)
    for number in leaders:
        for _ in range(3):
            ask(nodes["a"], "POST", f"topics/{name}/records?partition={number}",
                {"records": [{"value": "x"}]})  # fmt: skip
    groups = [unique("group") for _ in range(12)]
    with lakemq.connect(nodes["a"].native) as a, lakemq.connect(nodes["b"].native) as b:
        for number, group in enumerate(groups):
            client = (a, b)[number % 2]
            client.reset_offsets(group, {lakemq.TopicPartition(name, each): 1 for each in leaders})
        assert {each.name for each in a.groups()} == {each.name for each in b.groups()}
        assert {each.name for each in b.groups()} >= set(groups)
        assert a.describe_group(groups[1]) == b.describe_group(groups[1])
    rows = ask(nodes["a"], "GET", "groups?q=group&limit=500").data
    found = {each["name"]: (each["node"], each["lag"]) for each in rows}
    assert {found[each][1] for each in groups} == {4}
    assert {found[each][0] for each in groups} == {"a", "b"}, "each has one of them as coordinator"
    group = next(each for each in groups if found[each][0] == "b")
    reset = {"topic": name, "to": "latest"}
    done = ask(nodes["a"], "POST", f"groups/{group}/reset", reset).json
    assert [(each["before"], each["after"]) for each in done["offsets"]] == [(1, 3), (1, 3)]
    for node in "ab":
        assert ask(nodes[node], "GET", f"groups/{group}").json["lag"] == 0
    # a change is in the log of the node that was asked, with what the other one noted
    (noted,) = ask(nodes["b"], "GET", f"audit?q={group}&limit=500").data[:1]
    assert (noted["node"], noted["action"]) == ("a", "POST groups/{group}/reset")
    assert noted["before"] == {"0": 1, "1": 1}


def test_a_member_knows_the_catalog_and_names_brokers_for_the_rest(nodes: Nodes) -> None:
    name, _ = spread_topic(nodes)
    member = nodes["m"]
    assert [each["name"] for each in ask(member, "GET", f"topics?q={name}").data] == [name]
    assert {each["node"] for each in ask(member, "GET", "nodes").data} >= {"a", "b"}
    assert ask(member, "GET", "cluster").json["nodes"]["active"] >= 2
    refused = ask(member, "POST", "topics", {"name": unique("t")})
    assert (refused.status, refused.json["code"]) == (503, "UNAVAILABLE")
    assert "is no broker" in refused.json["detail"]
    assert ask(member, "GET", "groups").status in (404, 503)
    assert ask(member, "GET", "/readyz").status == 200


def test_nodes_drain_and_come_back(nodes: Nodes) -> None:
    name, leaders = spread_topic(nodes)
    assert ask(nodes["a"], "POST", "nodes/b/drain?dry_run=true").json["state"] == "active"
    assert ask(nodes["a"], "POST", "nodes/b/drain").json == {"node": "b", "state": "draining"}
    until(
        lambda: ask(nodes["a"], "GET", "nodes/b"), lambda found: found.json["state"] == "draining"
    )
    assert ask(nodes["b"], "GET", "cluster").json["nodes"]["draining"] == 1
    assert ask(nodes["m"], "POST", "nodes/b/undrain").json["state"] == "active"
    assert ask(nodes["a"], "DELETE", "nodes/b").json["code"] == "INVALID_REQUEST"
    assert ask(nodes["a"], "DELETE", "nodes/c").json["code"] == "UNKNOWN_NODE"
    number = next(each for each, leader in leaders.items() if leader == "b")
    path = f"topics/{name}/partitions/{number}"
    wrong = ask(nodes["a"], "POST", f"{path}/move", {"to": ["a", "b"]})
    assert "wants 1 replicas" in wrong.json["detail"] or wrong.status == 400, wrong
    assert ask(nodes["a"], "POST", f"{path}/move?dry_run=true", {"to": ["c"]}).status == 404
    assert ask(nodes["a"], "POST", f"{path}/move", {"to": ["a"]}).status == 202
    until(lambda: ask(nodes["b"], "GET", path), lambda found: found.json["leader"] == "a")


def test_a_node_that_is_down_is_missing_and_the_rest_is_answered(nodes: Nodes) -> None:
    nodes["b"].kill()
    try:
        found = ask(nodes["a"], "GET", "plugins")
        assert {each["node"] for each in found.data} == {"a"}
        (missing,) = found.json["meta"]["missing"]
        assert missing["node"] == "b" and missing["reason"]
        assert ask(nodes["a"], "GET", "plugins?node=b").status == 503
    finally:
        nodes["b"].start(60)
    until(lambda: ask(nodes["a"], "GET", "plugins?node=b"), lambda found: found.status == 200)


def test_a_change_that_a_node_has_not_answered_may_have_been_made(nodes: Nodes) -> None:
    until(lambda: ask(nodes["a"], "GET", "plugins?node=b"), lambda found: found.status == 200)
    frozen = nodes["b"].process
    assert frozen is not None
    frozen.send_signal(signal.SIGSTOP)
    try:
        found = ask(nodes["a"], "POST", "nodes/b/reload")
        read = ask(nodes["a"], "GET", "key-uses?node=b")
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert (found.status, found.json["code"]) == (504, "OUTCOME_UNKNOWN"), found
    assert found.json["retriable"] is False and "look before you ask again" in found.json["detail"]
    assert (read.status, read.json["retriable"]) == (503, True), read
    noted = ask(nodes["a"], "GET", "audit?node=a&q=reload").data[0]
    assert (noted["outcome"], noted["resource"]) == ("OUTCOME_UNKNOWN", "b")
    until(lambda: ask(nodes["a"], "GET", "plugins?node=b"), lambda found: found.status == 200)


def test_every_node_follows_a_dynamic_setting_also_one_that_was_down(nodes: Nodes) -> None:
    def use(name: str, setting: str, value: int, source: str) -> None:
        until(
            lambda: ask(nodes[name], "GET", f"settings?node={name}&q={setting}"),
            lambda found: [(each["value"], each["source"], each["pending"])
                           for each in found.data] == [(value, source, "")],
        )  # fmt: skip

    cluster, own = "dynamic-settings/cluster", "dynamic-settings/node=b"
    setting, of_plugin = "topics.segment_age_max_ms", "plugins.native.fetch_wait_ms"
    assert ask(nodes["a"], "PUT", f"{cluster}/{setting}", {"value": 70_000}).status == 200
    # Of the plugin, which the member does not have: it leaves the setting out and says why.
    assert ask(nodes["a"], "PUT", f"{cluster}/{of_plugin}", {"value": 300}).status == 200
    for name in "mab":
        use(name, setting, 70_000, "cluster")
    use("b", of_plugin, 300, "cluster")
    nodes["b"].kill()
    try:
        for path, value in ((cluster, 80_000), (own, 90_000)):
            assert ask(nodes["a"], "PUT", f"{path}/{setting}", {"value": value}).status == 200
        use("a", setting, 80_000, "cluster")
    finally:
        nodes["b"].start(60)
    use("b", setting, 90_000, "node=b")
    made = unique("dynamic")
    ask(nodes["b"], "POST", "topics", {"name": made})
    assert ask(nodes["b"], "GET", f"topics/{made}").json["config"]["segment_age_max_ms"] == 90_000
    for path in (f"{cluster}/{setting}", f"{own}/{setting}", f"{cluster}/{of_plugin}"):
        assert ask(nodes["b"], "DELETE", path).status == 200
    for name in "mab":
        use(name, setting, 24 * 3_600_000, "default")
    use("b", of_plugin, 1000, "default")
    (noted, *_) = ask(nodes["b"], "GET", f"audit?node=b&q=node%3Db/{setting}").data
    assert (noted["outcome"], noted["before"]) == ("done", 90_000), noted


def test_metrics_of_all_nodes_from_any(nodes: Nodes) -> None:
    name, leaders = spread_topic(nodes)
    for number in leaders:
        body = {"records": [{"value": "x"}]}
        ask(nodes["a"], "POST", f"topics/{name}/records?partition={number}", body)
    asked = "metrics?names=lakemq_journal_appended_records_total,lakemq_mqtt_connections"
    for node in "ab":
        rows = ask(nodes[node], "GET", asked).data
        assert [row["node"] for row in rows] == ["a", "b"]
        assert all(row["totals"]["lakemq_journal_appended_records_total"] > 0 for row in rows)
        assert all(set(row["totals"]) <= set(asked.partition("=")[2].split(",")) for row in rows)
    (one,) = ask(nodes["a"], "GET", "metrics?node=b").data
    assert one["node"] == "b" and len(one["totals"]) > 50


def test_the_dashboard_says_whose_figures_are_missing(nodes: Nodes) -> None:
    with dashboard_of(nodes["a"].addresses["admin"]) as url:
        visitor = Visitor(url)
        assert "Figures are missing" not in visitor.get("/").text
        nodes["b"].kill()
        try:
            deadline = time.monotonic() + 30
            while "Figures are missing: b: " not in visitor.get("/").text:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            nodes["b"].start(60)
