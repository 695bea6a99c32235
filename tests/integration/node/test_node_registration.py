"""Goal: the cluster knows which nodes live. Real nodes are killed, stopped, continued and copied.

Three nodes share one MetaService group. One that doesn't lead it is harmed; where the leader itself
is, its successor gives everybody the whole time again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lakemq
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import NodeRegistration
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_ports

NAMES = ("a", "b", "c")
CONFIG = """
[node]
id = "{name}"
rack = "rack-{name}"
log_level = "info"
[meta]
port = {meta_port}
raft_port = {raft_port}
members = {{ {members} }}
[admin]
enabled = false
[plugins.mqtt]
enabled = false
[plugins.native]
port = {native_port}
"""
FENCED_S = 2.5


class Nodes:
    """Three nodes, and what the cluster says of them."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(9)
        raft = zip(NAMES, ports, strict=False)
        members = ", ".join(f'{name} = "127.0.0.1:{port}"' for name, port in raft)
        self.members = members
        self.meta = {name: f"127.0.0.1:{ports[3 + at]}" for at, name in enumerate(NAMES)}
        self.native = {name: ports[6 + at] for at, name in enumerate(NAMES)}
        self.processes = {
            name: NodeProcess(
                folder / name,
                CONFIG.format(
                    name=name,
                    members=members,
                    raft_port=ports[at],
                    meta_port=ports[3 + at],
                    native_port=ports[6 + at],
                ),
            )
            for at, name in enumerate(NAMES)
        }
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda node: node.start(60), self.processes.values()))

    async def registered(self) -> dict[str, NodeRegistration]:
        client = RemoteClient(list(self.meta.values()), attempt_s=0.5)
        try:
            return {node.node_id: node for node in await client.nodes()}
        finally:
            await client.close()

    def figures(self) -> dict[str, Mapping[str, float]]:
        async def asked() -> dict[str, Mapping[str, float]]:
            client = RemoteClient(list(self.meta.values()), attempt_s=0.5)
            try:
                return {each.node_id: each.figures for each in (await client.loads()).nodes}
            finally:
                await client.close()

        return asyncio.run(asked())

    def look(self) -> dict[str, NodeRegistration]:
        return asyncio.run(self.registered())

    def until(
        self, condition: Callable[[dict[str, NodeRegistration]], bool], seconds: float = 30
    ) -> float:
        """How long it took (s)."""
        begin = time.monotonic()
        while not condition(found := self.look()):
            assert time.monotonic() < begin + seconds, found
            time.sleep(0.02)
        return time.monotonic() - begin

    def until_all_live(self) -> None:
        def live(found: dict[str, NodeRegistration]) -> bool:
            states = [node.state for node in found.values() if node.storage_id]
            return states == ["active"] * 3

        self.until(live, 60)

    async def leader(self) -> str:
        client = RemoteClient(list(self.meta.values()), attempt_s=0.5)
        try:
            return (await client.status()).leader_id or ""
        finally:
            await client.close()

    def follower(self) -> str:
        leader = asyncio.run(self.leader())
        return next(name for name in NAMES if name != leader)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path_factory.mktemp("registration"))
    try:
        yield nodes
    finally:
        for node in nodes.processes.values():
            node.kill()


@pytest.fixture(autouse=True)
def all_live(nodes: Nodes) -> None:
    for node in nodes.processes.values():
        if node.process is None:
            node.start(60)
    nodes.until_all_live()


def test_nodes_register_with_rack_and_storage(nodes: Nodes) -> None:
    found = nodes.look()
    assert {name: node.rack for name, node in found.items()} == {n: f"rack-{n}" for n in NAMES}
    assert all(node.heartbeats for node in found.values())
    for name, node in found.items():
        stored = (nodes.processes[name].data_dir / "journal/storage.json").read_text()
        assert json.loads(stored) == {"format": 1, "storage_id": node.storage_id}
    assert len({node.storage_id for node in found.values()}) == 3


def test_heartbeats_tell_roles_connections_and_bytes(nodes: Nodes) -> None:
    with lakemq.connect(f"127.0.0.1:{nodes.native['a']}") as client:
        client.create_topic("told", 1)
        client.send("told", b"x" * 10_000)

        def told(found: dict[str, NodeRegistration]) -> bool:
            figures = nodes.figures()
            return (
                figures["a"]["connections"] >= 1
                and sum(each["led_bytes"] >= 10_000 for each in figures.values()) == 1
            )

        nodes.until(told)
    assert {name: node.roles for name, node in nodes.look().items()} == dict.fromkeys(
        NAMES, ("meta", "broker")
    )
    for each in nodes.figures().values():
        assert each["uptime_s"] > 0 and each["replica_lag_records"] == 0
        assert each["stored_bytes"] >= each["led_bytes"]


def test_a_killed_node_is_fenced_and_comes_back(nodes: Nodes) -> None:
    name = nodes.follower()
    before = nodes.look()[name]
    nodes.processes[name].kill()
    took_s = nodes.until(lambda found: found[name].state == "fenced")
    assert took_s < FENCED_S, took_s
    listed = subprocess.run(
        [sys.executable, "-m", "lakemq", "node", "list"]
        + [each for address in nodes.meta.values() for each in ("--address", address)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    states = {line.split()[0]: line.split()[1] for line in listed.splitlines()[1:]}
    assert states == {each: "fenced" if each == name else "active" for each in NAMES}
    nodes.processes[name].start(60)
    after = nodes.look()[name]
    assert after.state == "active", "a node is ready when it is active"
    assert after.broker_epoch > before.broker_epoch
    assert after.storage_id == before.storage_id


def test_a_stopped_process_is_fenced_until_it_goes_on(nodes: Nodes) -> None:
    name = nodes.follower()
    process = nodes.processes[name].process
    assert process is not None
    epoch = nodes.look()[name].broker_epoch
    os.kill(process.pid, signal.SIGSTOP)
    try:
        assert nodes.until(lambda found: found[name].state == "fenced") < FENCED_S
    finally:
        os.kill(process.pid, signal.SIGCONT)
    nodes.until(lambda found: found[name].state == "active")
    assert nodes.look()[name].broker_epoch == epoch, "it is the same process"


def test_a_node_that_stops_leaves_at_once(nodes: Nodes) -> None:
    name = nodes.follower()
    process = nodes.processes[name].process
    assert process is not None
    os.kill(process.pid, signal.SIGTERM)
    states: list[str] = []
    while process.poll() is None:
        states.append(nodes.look()[name].state)
    nodes.processes[name].kill()
    assert nodes.look()[name].state == "fenced", "not only when it was silent for long"


def test_a_stopped_leader_of_the_metaservice_fences_nobody_else(nodes: Nodes) -> None:
    """Heartbeats go on at the next leader, though the old one closes no connection."""
    name = asyncio.run(nodes.leader())
    process = nodes.processes[name].process
    assert process is not None
    seen: set[str] = set()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 20
        while (found := nodes.look())[name].state != "fenced":
            assert time.monotonic() < deadline
            seen |= {node.state for each, node in found.items() if each != name}
        end = time.monotonic() + 3
        while time.monotonic() < end:
            seen |= {node.state for each, node in nodes.look().items() if each != name}
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert seen == {"active"}


def test_a_fenced_node_keeps_what_only_it_has(nodes: Nodes) -> None:
    """No other node has the records: its partitions wait for it, under the same leader epoch."""
    name = nodes.follower()
    other = next(each for each in NAMES if each != name)

    async def partitions() -> list[tuple[str | None, int]]:
        client = RemoteClient(list(nodes.meta.values()), attempt_s=0.5)
        try:
            topics = {topic.name: topic for topic in (await client.topics())[1]}
            return [(p.leader, p.leader_epoch) for p in topics["kept"].partitions]
        finally:
            await client.close()

    with lakemq.connect(nodes.processes[other].native) as client:
        client.create_topic("kept", 6)
        for number in range(60):
            client.send("kept", b"%d" % number, partition=number % 6)
    before = asyncio.run(partitions())
    assert {leader for leader, _ in before} == set(NAMES)
    nodes.processes[name].kill()
    nodes.until(lambda found: found[name].state == "fenced")
    time.sleep(0.5)
    assert asyncio.run(partitions()) == before
    nodes.processes[name].start(60)
    with lakemq.connect(nodes.processes[other].native) as client:
        values = sorted(int(record.value or b"") for record in client.consume("kept"))
    assert values == list(range(60))


def test_a_copied_data_folder_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    """Under another node id; `node.json` alone would refuse the whole folder."""
    ports = free_ports(3)
    text = CONFIG.format(
        name="d", members="", raft_port=ports[0], meta_port=ports[1], native_port=ports[2]
    ).replace("members = {  }", f'join = ["{nodes.meta["a"]}"]')
    copy = NodeProcess(tmp_path / "d", text)
    (copy.data_dir / "journal").mkdir(parents=True)
    original = nodes.processes["a"].data_dir / "journal/storage.json"
    shutil.copy(original, copy.data_dir / "journal/storage.json")
    ran = subprocess.run(
        [sys.executable, "-m", "lakemq", "start", "--config", str(copy.config_file),
         "--data-dir", str(copy.data_dir)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "belongs to node 'a' (active): the data folder of 'd' was copied from it" in ran.stderr
    assert "d" not in nodes.look()
