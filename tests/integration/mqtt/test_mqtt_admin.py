"""Goal: `lakemq mqtt ...` shows and ends the clients of a real node; bans outlast its restart."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import paho.mqtt.client as paho
import pytest
from typer.testing import CliRunner

from lakemq.plugins.mqtt.ops.commands import mqtt
from tests.support.node.node import NodeProcess


@pytest.fixture
def node(fresh_node: NodeProcess) -> NodeProcess:
    return fresh_node


def run(node: NodeProcess, *arguments: str) -> str:
    result = CliRunner().invoke(mqtt, [*arguments, "--admin", node.addresses["admin"]])
    assert result.exit_code == 0, result.output
    return result.stdout if "--json" in arguments else result.output


def connected(port: int, client_id: str) -> paho.Client:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id)
    client.connect("127.0.0.1", port)
    client.reconnect_delay_set(60, 60)
    client.loop_start()
    info = client.publish("t", b"x", 1)
    info.wait_for_publish(20)
    return client


def ask(node: NodeProcess, method: str, path: str, headers: dict[str, str]) -> int:
    url = f"http://{node.addresses['admin']}/api/v1/mqtt/{path}"
    request = urllib.request.Request(url, b"{}", headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_clients_of_a_node(node: NodeProcess) -> None:
    port = node.mqtt_port
    clients = [connected(port, name) for name in ("a/1", "b", "c")]
    try:
        listed = json.loads(run(node, "clients", "--json", "--limit", "2"))
        assert [one["client_id"] for one in listed] == ["a/1", "b"]
        assert "there are more" in run(node, "clients", "--limit", "2")
        page: Any = json.loads(run(node, "client", "a/1", "--json"))
        assert page["received"]["publishes"] == [0, 1, 0]
        assert page["sent"]["packets"] >= 2
        assert "a/1" in run(node, "client", "a/1")
        assert run(node, "kick", "b") == "disconnected\n"
        assert json.loads(run(node, "slow", "--json")) == []
        assert run(node, "ban", "client_id", "c", "--why", "noise").endswith("ended: 1\n")
        run(node, "ban", "host", "10.0.0.0/8", "--seconds", "1000")
        missing = CliRunner().invoke(mqtt, ["client", "?", "--admin", node.addresses["admin"]])
        assert (missing.exit_code, missing.stdout) == (4, "")
    finally:
        for client in clients:
            client.disconnect()
            client.loop_stop()
    node.kill()
    node.start()
    bans = json.loads(run(node, "bans", "--json"))
    assert {(one["kind"], one["value"], one["why"]) for one in bans} == {
        ("client_id", "c", "noise"),
        ("host", "10.0.0.0/8", ""),
    }
    run(node, "unban", "host", "10.0.0.0/8", "--all-nodes")
    assert "10.0.0.0" not in run(node, "bans")
    refused: list[bool] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="c")
    client.on_connect = lambda c, u, flags, code, p: refused.append(code.is_failure)
    client.connect("127.0.0.1", node.mqtt_port)
    for _ in range(100):
        client.loop(0.1)
        if refused:
            break
    assert refused == [True]


def test_web_pages_change_nothing(node: NodeProcess) -> None:
    """What a browser may send from another site without asking is refused."""
    json_type = {"Content-Type": "application/json"}
    assert ask(node, "DELETE", "slow", json_type) == 200
    assert ask(node, "DELETE", "slow", {"Content-Type": "text/plain"}) == 415
    assert ask(node, "DELETE", "slow", {**json_type, "Host": "evil.example.org"}) == 403
    assert ask(node, "DELETE", "clients/nobody", json_type) == 404
    assert ask(node, "POST", "bans", json_type) == 400
