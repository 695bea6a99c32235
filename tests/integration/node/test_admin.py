"""Goal: the HTTP admin tells health, metrics and topics, and answers errors as JSON."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import lakemq
from tests.support.node.node import NodeProcess


def get(node: NodeProcess, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{node.addresses['admin']}{path}") as answer:
            body, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        with error:
            body, status = error.read(), error.code
    return status, body.decode()


def test_health_and_readiness(node: NodeProcess) -> None:
    assert get(node, "/healthz") == (200, '{"status": "ok"}')
    assert get(node, "/readyz") == (200, '{"status": "ready"}')


def test_node_and_plugins(node: NodeProcess) -> None:
    status, body = get(node, "/api/v1/node")
    told = json.loads(body)
    assert (status, told["node_id"]) == (200, "node-1")
    assert told["addresses"] == node.addresses
    assert told["meta"]["leader_id"] and told["cluster_id"] == told["meta"]["cluster_id"]
    plugins = {each["name"]: each for each in json.loads(get(node, "/api/v1/plugins")[1])}
    assert plugins["mqtt"]["enabled"]


def test_topics_and_metrics(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        client.create_topic("seen")
        client.send("seen", b"x" * 100)
    told = json.loads(get(node, "/api/v1/topics/seen")[1])
    assert told["partitions"][0]["high_watermark"] == 1
    assert "seen" in [each["name"] for each in json.loads(get(node, "/api/v1/topics")[1])]
    status, text = get(node, "/metrics")
    lines = [line for line in text.splitlines() if line.startswith("lakemq_native_produce_bytes")]
    assert status == 200 and float(lines[0].rsplit(" ", 1)[1]) > 100


def test_unknown_topic_is_404(node: NodeProcess) -> None:
    status, body = get(node, "/api/v1/topics/nowhere")
    assert (status, json.loads(body)["code"]) == (404, "UNKNOWN_TOPIC")
