"""Goal: the admin API tells health, metrics, nodes, topics and groups, changes them, and answers
errors as problems."""

from __future__ import annotations

import lakemq
from tests.support.node.admin_api import ask
from tests.support.node.node import NodeProcess, unique


def test_health_and_readiness(node: NodeProcess) -> None:
    for path in ("/healthz", "/livez"):
        assert ask(node, "GET", path)[:2] == (200, '{"status": "ok"}')
    assert ask(node, "GET", "/readyz")[:2] == (200, '{"status": "ready"}')


def test_node_cluster_and_plugins(node: NodeProcess) -> None:
    told = ask(node, "GET", "node").json
    assert (told["node_id"], told["ready"], told["broker"]) == ("node-1", True, True)
    assert told["addresses"] == node.addresses
    assert told["meta"]["leader_id"] and told["cluster_id"] == told["meta"]["cluster_id"]
    cluster = ask(node, "GET", "cluster").json
    assert cluster["nodes"] == {"active": 1, "draining": 0, "fenced": 0}
    assert cluster["partitions"] >= 1 and cluster["lacks"]["leaderless"] == 0
    (listed,) = ask(node, "GET", "nodes").data
    assert (listed["node"], listed["state"]) == ("node-1", "active")
    assert listed["leads"] >= cluster["partitions"]
    plugins = {each["name"]: each for each in ask(node, "GET", "plugins").data}
    assert plugins["mqtt"]["enabled"] and plugins["mqtt"]["node"] == "node-1"
    assert plugins["native"]["settings"]["groups_max"] == 10_000
    assert ask(node, "GET", "whoami").json["kind"] == "anonymous"
    assert ask(node, "GET", "cluster/advice").json["advice"] == []
    assert ask(node, "GET", "cluster/rebalance").json["moves"] == []


def test_topics_and_metrics(node: NodeProcess) -> None:
    name = unique("seen")
    with lakemq.connect(node.native) as client:
        client.create_topic(name)
        client.send(name, b"x" * 100)
    (log,) = ask(node, "GET", f"topics/{name}/partitions").data
    assert (log["high_watermark"], log["records"], log["node"]) == (1, 1, "node-1")
    assert ask(node, "GET", f"topics/{name}/offsets").json["offsets"] == {"0": 1}
    assert ask(node, "GET", f"topics/{name}/offsets?at=earliest").json["offsets"] == {"0": 0}
    assert [each["name"] for each in ask(node, "GET", f"topics?q={name}").data] == [name]
    status, text, _ = ask(node, "GET", "/metrics")
    lines = [line for line in text.splitlines() if line.startswith("lakemq_native_produce_bytes")]
    assert status == 200 and float(lines[0].rsplit(" ", 1)[1]) > 100


def test_a_topic_lives(node: NodeProcess) -> None:
    name = unique("lives")
    body = {"name": name, "partitions": 2, "config": {"retention_ms": None, "schema": ""}}
    assert ask(node, "POST", "topics?dry_run=true", body).status == 200
    assert ask(node, "GET", f"topics/{name}").status == 404
    made = ask(node, "POST", "topics", body)
    assert (made.status, made.json["partitions"], made.json["retention_ms"]) == (201, 2, None)
    again = ask(node, "POST", "topics", body)
    assert (again.status, again.json["code"]) == (409, "TOPIC_EXISTS")
    changed = ask(node, "PATCH", f"topics/{name}", {"partitions": 3, "reset": ["retention_ms"]})
    assert changed.json["partitions"] == 3
    assert changed.json["retention_ms"] == changed.json["defaults"]["retention_ms"]
    wrong = ask(node, "PATCH", f"topics/{name}", {"config": {"retention_ms": "long"}})
    assert wrong.json["errors"][0]["where"] == "body.config.retention_ms"
    tried = ask(node, "DELETE", f"topics/{name}?dry_run=true").json
    assert tried == {"name": name, "partitions": 3}
    assert ask(node, "GET", f"topics/{name}").status == 200
    assert ask(node, "DELETE", f"topics/{name}").status == 200
    assert ask(node, "GET", f"topics/{name}").json["code"] == "UNKNOWN_TOPIC"


def test_records_of_a_partition_are_deleted(node: NodeProcess) -> None:
    name = unique("deleted")
    with lakemq.connect(node.native) as client:
        client.create_topic(name)
        for _ in range(3):
            client.send(name, b"x")
    path = f"topics/{name}/partitions/0/delete-records"
    assert ask(node, "POST", f"{path}?dry_run=true", {"before": 2}).json["log_start_offset"] == 2
    assert ask(node, "GET", f"topics/{name}/offsets?at=earliest").json["offsets"] == {"0": 0}
    assert ask(node, "POST", path, {"before": 2}).json["log_start_offset"] == 2
    assert ask(node, "POST", path, {"before": 9}).json["code"] == "OFFSET_OUT_OF_RANGE"
    assert ask(node, "POST", path, {"before": -1}).json["log_start_offset"] == 3


def test_groups_are_listed_reset_and_deleted(node: NodeProcess) -> None:
    topic, group = unique("read"), unique("readers")
    with lakemq.connect(node.native) as client:
        client.create_topic(topic)
        for _ in range(5):
            client.send(topic, b"x")
        client.reset_offsets(group, {lakemq.TopicPartition(topic, 0): 2})
        (row,) = ask(node, "GET", f"groups?q={group}").data
        assert (row["name"], row["state"], row["lag"]) == (group, "empty", 3)
        assert row["topics"] == [topic]
        path = f"groups/{group}/reset"
        tried = ask(node, "POST", f"{path}?dry_run=true", {"topic": topic, "to": "earliest"}).json
        assert tried["offsets"] == [{"partition": 0, "before": 2, "after": 0}]
        assert ask(node, "GET", f"groups/{group}").json["offsets"][0]["committed_offset"] == 2
        ask(node, "POST", path, {"topic": topic, "to": "latest"})
        (found,) = client.describe_group(group).offsets
        assert (found.committed_offset, found.lag) == (5, 0)
        assert ask(node, "DELETE", f"groups/{group}").json == {"name": group, "offsets": 1}
        assert ask(node, "GET", f"groups/{group}").json["code"] == "UNKNOWN_GROUP"


def test_problems(node: NodeProcess) -> None:
    missing = ask(node, "GET", "topics/nowhere")
    assert (missing.status, missing.json["code"]) == (404, "UNKNOWN_TOPIC")
    assert missing.headers["Content-Type"].startswith("application/problem+json")
    assert ask(node, "GET", "nowhere").json["code"] == "UNKNOWN_PATH"
    refused = ask(node, "PUT", "topics/nowhere")
    assert (refused.status, refused.headers["Allow"]) == (405, "DELETE, GET, HEAD, PATCH")
    assert ask(node, "POST", "/readyz").headers["Allow"] == "GET, HEAD"
    for wrong in ("limit=0", "limit=501", "limit=1.0", "sort=secret", "fields=x", "colour=red",
                  "cursor=xx", "limit=1&limit=2"):  # fmt: skip
        found = ask(node, "GET", f"topics?{wrong}")
        assert (found.status, found.json["code"]) == (400, "INVALID_REQUEST"), wrong


def test_web_pages_change_nothing(node: NodeProcess) -> None:
    """What a browser may send from another site without asking is refused."""
    for headers in (
        {"Content-Type": "text/plain"},
        {"Host": "evil.example.org"},
        {"Origin": "http://evil.example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert ask(node, "DELETE", "mqtt/slow", headers=headers).status in (403, 415), headers
    own = {"Origin": f"http://{node.addresses['admin']}", "Sec-Fetch-Site": "same-origin"}
    assert ask(node, "DELETE", "mqtt/slow", headers=own).status == 200
    assert ask(node, "DELETE", "mqtt/slow?node=*", headers=own).json == {"nodes": ["node-1"]}
