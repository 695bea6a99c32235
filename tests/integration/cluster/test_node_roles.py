"""Goal: a node is a member of the MetaService, a broker, or both, as `node.roles` says."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import lakemq
from tests.support.node.node import NodeProcess


def admin(node: NodeProcess, path: str) -> Any:
    with urllib.request.urlopen(f"http://{node.addresses['admin']}{path}") as answer:
        text = answer.read()
    return json.loads(text) if text.startswith((b"{", b"[")) else text


def test_each_opens_the_ports_of_its_roles(nodes: dict[str, NodeProcess]) -> None:
    assert set(nodes["m"].addresses) == {"meta", "admin"}
    assert set(nodes["a"].addresses) == {"peer", "native", "admin"}
    assert not (nodes["m"].data_dir / "journal").exists()
    assert not (nodes["a"].data_dir / "meta").exists()


def test_brokers_alone_hold_and_serve_what_is_stored(nodes: dict[str, NodeProcess]) -> None:
    with lakemq.connect(nodes["a"].native) as client:
        client.create_topic("t", 4)
        for number in range(20):
            client.send("t", b"%d" % number)
        described = client.describe_topic("t").partitions
        assert {each.leader for each in described} == {"a", "b"}
    with lakemq.connect(nodes["b"].native) as client:
        assert len([*client.consume("t")]) == 20
        described_cluster = client.admin.describe_cluster()
    assert {each.node_id for each in described_cluster.nodes} == {"a", "b"}
    assert described_cluster.meta_leader == "m"


def test_the_admin_of_a_member_shows_the_catalog(nodes: dict[str, NodeProcess]) -> None:
    with lakemq.connect(nodes["a"].native) as client:
        client.create_topic("shown", 2)
    assert "shown" in [each["name"] for each in admin(nodes["m"], "/api/v1/topics")["data"]]
    shown = admin(nodes["m"], "/api/v1/topics/shown")
    assert (shown["partitions"], shown["leaderless"]) == (2, 0)
    listed = admin(nodes["m"], "/api/v1/partitions?topic=shown")["data"]
    assert {each["leader"] for each in listed} <= {"a", "b"} and len(listed) == 2
    admin(nodes["m"], "/readyz")


def test_a_broker_comes_back_as_it_was(nodes: dict[str, NodeProcess]) -> None:
    with lakemq.connect(nodes["a"].native) as client:
        client.create_topic("kept", 2)
        for partition in range(2):
            client.send("kept", b"kept", partition=partition)
    assert nodes["b"].stop() == 0
    nodes["b"].start(60)
    with lakemq.connect(nodes["b"].native, timeout_s=20) as client:
        assert [each.value for each in client.consume("kept")] == [b"kept"] * 2
