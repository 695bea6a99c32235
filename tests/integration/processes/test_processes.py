"""Goal: processes of one node look like one broker to clients: every record that was acknowledged
is there, whichever process took it, though one of them is killed; they begin and end together."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import paho.mqtt.client as paho
import psutil
import pytest

import lakemq
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_port

TOPIC = "mqtt"
CLIENTS = 24
CONFIG = """
[node]
id = "n1"
[meta]
port = {0}
raft_port = 0
[cluster]
peer_port = 0
[topics]
partitions = 8
[plugins.admin]
port = 0
[plugins.native]
port = {1}
[plugins.mqtt]
port = {2}
"""


def config() -> str:
    return CONFIG.format(*(free_port() for _ in range(3)))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path, config(), arguments=("--processes", "2")) as node:
        until(lambda: len(leaders(node)) == 2, "partitions led by both processes")
        yield node


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def leaders(node: NodeProcess) -> set[str]:
    """Processes that lead a partition."""
    url = f"http://{node.addresses['admin']}/api/v1/partitions?topic={TOPIC}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.load(answer)["data"]
    return {each["leader"] for each in found}


def processes(pid: int) -> dict[str, psutil.Process]:
    """The children, by number."""
    found = {}
    for child in psutil.Process(pid).children():
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            environment = child.environ()
            if "LAKEMQ_NODE__PROCESS" in environment:
                found[environment["LAKEMQ_NODE__PROCESS"]] = child
    return found


class Device:
    """Publishes one after the other, each when the one before was acknowledged."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.acknowledged = 0
        self.over = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.over.is_set():
            told = self._client.publish(f"d/{self.name}", str(self.acknowledged), 1)
            told.wait_for_publish(60)
            assert told.is_published()
            self.acknowledged += 1

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()


def stored(node: NodeProcess) -> Counter[tuple[bytes, bytes]]:
    with lakemq.connect(node.native) as client:
        return Counter((each.key or b"", each.value or b"") for each in client.consume(TOPIC))


def metrics(node: NodeProcess, name: str) -> dict[str, float]:
    """Value by process."""
    url = f"http://{node.addresses['admin']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        if line.startswith(f"{name}{{"):
            found[line.split('process="', 1)[1].split('"', 1)[0]] += float(line.rsplit(" ", 1)[1])
    return dict(found)


def test_clients_of_one_port_are_served_by_all_though_one_is_killed(node: NodeProcess) -> None:
    # Where clients come in, and not where one process alone is reached.
    assert node.native.rpartition(":")[2] in node.config_file.read_text()
    with ExitStack() as stack:
        devices = [
            stack.enter_context(Device(node.mqtt_port, f"c{number}")) for number in range(CLIENTS)
        ]
        until(lambda: min(each.acknowledged for each in devices) > 20, "publishes acknowledged")
        found = metrics(node, "lakemq_mqtt_connections")
        assert set(found) == {"n1", "n1.p2"}
        assert sum(found.values()) == CLIENTS
        assert min(found.values()) > 0
        before = processes(node.pid)
        before["2"].kill()
        until(lambda: "2" in processes(node.pid) and processes(node.pid)["2"] != before["2"],
              "the killed process started again")  # fmt: skip
        reached = [each.acknowledged for each in devices]
        until(
            lambda: all(a.acknowledged > b + 20 for a, b in zip(devices, reached, strict=True)),
            "every device publishing again",
        )
        assert processes(node.pid)["1"] == before["1"]
    there = stored(node)
    for device in devices:
        for number in range(device.acknowledged):
            key = (f"d/{device.name}".encode(), str(number).encode())
            assert there[key] >= 1, key
    assert "process n1.p2 ended with code -9" in node.log_file.read_text()


def test_they_end_together(node: NodeProcess) -> None:
    children = list(processes(node.pid).values())
    assert len(children) == 2
    assert node.stop() == 0
    assert not any(each.is_running() for each in children)
    assert "ERROR" not in node.log_file.read_text()


def test_they_end_when_who_started_them_is_killed(node: NodeProcess) -> None:
    children = list(processes(node.pid).values())
    node.kill()
    until(lambda: not any(each.is_running() for each in children), "no process left")


def test_a_data_folder_of_one_process_is_shared_out_and_no_record_is_lost(tmp_path: Path) -> None:
    text = config()
    with NodeProcess(tmp_path, text) as node, lakemq.connect(node.native) as client:
        for number in range(200):
            client.send(TOPIC, str(number).encode(), key=str(number).encode())
    with NodeProcess(tmp_path, text, arguments=("--processes", "2")) as node:
        until(lambda: len(leaders(node)) == 2, "partitions moved to the new process")
        assert len(stored(node)) == 200
    with NodeProcess(tmp_path, text) as node:
        until(lambda: "n1.p2" in node.log_file.read_text(), "a word about the missing process")


def test_one_that_cannot_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "data" / "processes").mkdir(parents=True)
    (tmp_path / "data" / "processes" / "2").write_text("no folder")
    node = NodeProcess(tmp_path, config(), arguments=("--processes", "2"))
    with pytest.raises(AssertionError, match="n1.p2 did not start"):
        node.start()
    assert not [each for each in psutil.Process(os.getpid()).children(recursive=True)
                if "LAKEMQ_NODE__PROCESS" in each.environ()]  # fmt: skip


def test_a_reload_reaches_all(node: NodeProcess) -> None:
    os.kill(node.pid, signal.SIGHUP)
    until(
        lambda: min(metrics(node, "lakemq_node_config_reloads_total").values()) >= 1,
        "both have read their configuration again",
    )
