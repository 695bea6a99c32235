"""Goal: the cluster that tests are given does to its nodes what it says it does.

One cluster for all tests; each leaves every node running and every link whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakemq.local_cluster.process import NodeFailed
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.testing import Cluster

pytestmark = pytest.mark.fault
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), config="[topics]\npartitions = 3") as made:
        yield made


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.heal()
    until(lambda: set(states(cluster, cluster.meta).values()) == {"active"})


def states(cluster: Cluster, members: list[str]) -> dict[str, str]:
    async def ask() -> dict[str, str]:
        client = RemoteClient(members, attempt_s=0.5, timeout_s=2.0)
        try:
            return {node.node_id: node.state for node in await client.nodes()}
        except MetaError:
            return {}
        finally:
            await client.close()

    return asyncio.run(ask())


def leader_seen_by(cluster: Cluster, name: str) -> str | None:
    """The member that leads the MetaService, as this one believes."""

    async def ask() -> str | None:
        client = RemoteClient([cluster.address(name, "meta")], attempt_s=0.5, timeout_s=1.0)
        try:
            return (await client.status()).leader_id
        except MetaError:
            return None
        finally:
            await client.close()

    return asyncio.run(ask())


def connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), WAIT_S).close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_sent_is_counted(cluster: Cluster) -> None:
    client = cluster.client()
    client.create_topic("counted")
    for number in range(30):
        cluster.send(client, "counted", b"%d" % number, key=b"%d" % number)
    cluster.assert_no_loss()
    (place, *_), records = zip(*cluster.stored("counted").items(), strict=True)
    assert sum(map(len, records)) == 30
    # The count would see a record that is not there.
    cluster.history.acked("counted", place.partition, 10_000, b"never sent")
    with pytest.raises(AssertionError, match="acknowledged and lost: 10000"):
        cluster.assert_no_loss()


def test_a_node_is_killed_and_comes_back_where_it_was(cluster: Cluster) -> None:
    pid = cluster.nodes["n2"].pid
    address = cluster.nodes["n2"].addresses["peer"]
    cluster.kill("n2")
    assert cluster.running == ["n1", "n3"]
    with pytest.raises(ConnectionRefusedError):
        connect(address)
    until(lambda: states(cluster, cluster.meta).get("n2") == "fenced")
    with pytest.raises(NodeFailed, match="n2 is not running"):
        cluster.terminate("n2")
    cluster.restart("n2")
    assert cluster.nodes["n2"].pid != pid
    connect(address)
    assert cluster.nodes["n2"].addresses["native"] == cluster.address("n2") in cluster.bootstrap


def test_a_paused_node_is_fenced(cluster: Cluster) -> None:
    cluster.pause("n1")
    until(lambda: states(cluster, cluster.meta).get("n1") == "fenced")
    cluster.resume("n1")


def test_a_node_cut_off_is_silent_on_both_sides(cluster: Cluster) -> None:
    led = leader_seen_by(cluster, "n1")
    assert led is not None
    others = [name for name in cluster.names if name != led]
    cluster.isolate(led)
    until(lambda: leader_seen_by(cluster, led) is None)
    until(lambda: leader_seen_by(cluster, others[0]) in others)
    members = [cluster.address(name, "meta") for name in others]
    until(lambda: states(cluster, members).get(led) == "fenced")


def put(cluster: Cluster, name: str, value: bytes) -> None:
    """Ask the member to store a row."""

    async def ask() -> None:
        client = RemoteClient([cluster.address(name, "meta")], timeout_s=WAIT_S)
        await client.put(b"told", value)
        await client.close()

    asyncio.run(ask())


def told(cluster: Cluster, name: str) -> bytes | None:
    """What the member has, without asking the others."""

    async def ask() -> bytes | None:
        client = RemoteClient([cluster.address(name, "meta")], timeout_s=WAIT_S)
        row = await client.get(b"told", stale=True)
        await client.close()
        return row and row.value

    return asyncio.run(ask())


def led_and_others(cluster: Cluster) -> list[str]:
    """The member that leads the MetaService, and the others."""
    until(lambda: leader_seen_by(cluster, "n1") is not None)
    led = leader_seen_by(cluster, "n1")
    assert led is not None
    return [led, *(name for name in cluster.names if name != led)]


def test_a_link_is_cut_one_way(cluster: Cluster) -> None:
    led, deaf, third = led_and_others(cluster)
    put(cluster, led, b"before")
    until(lambda: told(cluster, deaf) == b"before")
    for other in (led, third):
        cluster.cut(other, deaf, both=False)
    put(cluster, led, b"after")
    until(lambda: told(cluster, third) == b"after")
    assert leader_seen_by(cluster, third) == led
    time.sleep(1.0)
    assert told(cluster, deaf) == b"before"
    cluster.heal()
    until(lambda: told(cluster, deaf) == b"after")


def test_links_to_one_listener_are_cut(cluster: Cluster) -> None:
    led, mute, _ = led_and_others(cluster)
    cluster.cut(mute, led, listeners=["meta"])
    until(lambda: states(cluster, [cluster.address(led, "meta")]).get(mute) == "fenced")
    assert leader_seen_by(cluster, mute) == led, "members of the MetaService hear each other"


def test_a_link_is_slow(cluster: Cluster) -> None:
    led, late, third = led_and_others(cluster)
    cluster.slow(led, late, 0.5)
    began = time.monotonic()
    put(cluster, led, b"late")
    until(lambda: told(cluster, third) == b"late")
    until(lambda: told(cluster, late) == b"late")
    assert time.monotonic() - began >= 0.5
    assert leader_seen_by(cluster, late) == led


def test_a_lost_disk_comes_back_empty(cluster: Cluster) -> None:
    def storage_id() -> str:
        stored = cluster.nodes["n3"].data_dir / "journal/storage.json"
        return str(json.loads(stored.read_text())["storage_id"])

    before = storage_id()
    cluster.lose_disk("n3")
    assert "n3" not in cluster.running
    cluster.start_node("n3")
    assert storage_id() != before


def test_terminate_stops_in_order(cluster: Cluster) -> None:
    assert cluster.terminate("n2") == 0
    cluster.start_node("n2")


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    made = Cluster(tmp_path, 1, config='[security]\nanonymous = "sometimes"', links=False)
    with pytest.raises(NodeFailed, match="(?s)n1 did not get ready.*anonymous"):
        made.start()
    assert made.running == []


USER_TEST = """
import pytest


@pytest.mark.lakemq_cluster(nodes=1, links=False)
def test_one(lakemq_cluster):
    with open("pid", "w") as out:
        out.write(str(lakemq_cluster.nodes["n1"].pid))
    client = lakemq_cluster.client()
    client.create_topic("t")
    lakemq_cluster.send(client, "t", b"a")
    lakemq_cluster.assert_no_loss()
    assert False, "the test's own failure"
"""


def test_the_fixture_ends_its_processes_though_the_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USER_TEST)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "lakemq.testing.cluster", "--strict-markers"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 1 and "the test's own failure" in run.stdout, run.stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
