"""Goal: processes of one node look like one broker to clients: every record that was acknowledged
is there, whichever process took it, though one of them is killed; they begin and end together."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path

import paho.mqtt.client as paho
import psutil
import pytest

import lakemq
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_port

TOPIC = "mqtt"
CLIENTS = 24
PROCESSES = {"n1", "n1.p2"}
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
        until(lambda: leaders(node) == PROCESSES, "partitions led by both processes")
        yield node


def until(holds: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def answer(node: NodeProcess, path: str) -> str:
    """Of the admin API; empty where there is none in time."""
    url = f"http://{node.addresses['admin']}/{path}"
    with suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=10) as answered:
        return str(answered.read().decode())
    return ""


def leaders(node: NodeProcess) -> set[str]:
    """Processes that lead a partition."""
    found = json.loads(answer(node, f"api/v1/partitions?topic={TOPIC}") or '{"data": []}')
    return {each["leader"] for each in found["data"] if each["leader"]}


def processes(pid: int) -> dict[str, psutil.Process]:
    """The children, by number."""
    found = {}
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):
            environment = child.environ()
            if "LAKEMQ_NODE__PROCESS" in environment:
                found[environment["LAKEMQ_NODE__PROCESS"]] = child
    return found


def runs(process: psutil.Process) -> bool:
    """False also for one that has ended and whose exit code nothing has asked for."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def calls_by_socket(process: psutil.Process) -> int:
    """Streams of other processes that have come over this one's socket."""
    with suppress(psutil.Error):
        sockets = process.net_connections("unix")
        # One of them is the socket itself.
        return sum(str(each.laddr).endswith("/peer.sock") for each in sockets) - 1
    return 0


def left_of(folder: Path) -> list[psutil.Process]:
    """Processes of a node in this folder, whatever their parent is by now."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            data_dir = each.environ().get("LAKEMQ_NODE__DATA_DIR", "")
            if Path(data_dir).is_relative_to(folder) and runs(each):
                found.append(each)
    return found


class Device:
    """Publishes one after the other, each when the one before was acknowledged."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.acknowledged = 0
        self._over = False
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._published
        self._client.connect("127.0.0.1", port)
        self._publish()
        self._client.loop_start()

    def _publish(self) -> None:
        # Nobody asks the result: it is an error where the connection has just been lost, though
        # paho keeps the message and sends it over the next one.
        self._client.publish(f"d/{self.name}", str(self.acknowledged), 1)

    def _published(self, *_: object) -> None:
        self.acknowledged += 1
        if not self._over:
            self._publish()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._client.disconnect()
        self._client.loop_stop()


def stored(node: NodeProcess) -> Counter[tuple[bytes, bytes]]:
    with lakemq.connect(node.native) as client:
        return Counter((each.key or b"", each.value or b"") for each in client.consume(TOPIC))


def metrics(node: NodeProcess, name: str) -> dict[str, float]:
    """Value by process, of those that have answered."""
    found: Counter[str] = Counter()
    for line in answer(node, "metrics").splitlines():
        process = re.match(rf'{name}{{.*?process="([^"]+)"', line)
        if process is not None:
            found[process[1]] += float(line.rsplit(" ", 1)[1])
    return dict(found)


def are_shared(connections: dict[str, float]) -> bool:
    all_there = connections.keys() == PROCESSES and sum(connections.values()) == CLIENTS
    return all_there and min(connections.values()) > 0


def test_clients_of_one_port_are_served_by_all_though_one_is_killed(node: NodeProcess) -> None:
    # Where clients come in, and not where one process alone is reached.
    assert node.native.rpartition(":")[2] in node.config_file.read_text()
    with ExitStack() as stack:
        devices = [
            stack.enter_context(Device(node.mqtt_port, f"c{number}")) for number in range(CLIENTS)
        ]
        until(lambda: min(each.acknowledged for each in devices) > 20, "publishes acknowledged")
        until(lambda: are_shared(metrics(node, "lakemq_mqtt_connections")), "clients at both")
        before = processes(node.pid)
        before["2"].kill()
        until(lambda: processes(node.pid).get("2", before["2"]) != before["2"],
              "the killed process started again")  # fmt: skip
        reached = [each.acknowledged for each in devices]
        until(
            lambda: all(a.acknowledged > b + 20 for a, b in zip(devices, reached, strict=True)),
            "every device publishing again",
        )
        assert processes(node.pid)["1"] == before["1"]
        until(
            lambda: all(calls_by_socket(each) >= 2 for each in processes(node.pid).values()),
            "streams over the sockets of both, also of the one that was started again",
        )
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
    assert not any(runs(each) for each in children)
    assert "ERROR" not in node.log_file.read_text()


def test_they_end_when_who_started_them_is_killed(node: NodeProcess) -> None:
    children = list(processes(node.pid).values())
    node.kill()
    until(lambda: not any(runs(each) for each in children), "no process left")


def test_a_data_folder_of_one_process_is_shared_out_and_no_record_is_lost(tmp_path: Path) -> None:
    text = config()
    with NodeProcess(tmp_path, text) as node, lakemq.connect(node.native) as client:
        for number in range(200):
            client.send(TOPIC, str(number).encode(), key=str(number).encode())
    with NodeProcess(tmp_path, text, arguments=("--processes", "2")) as node:
        until(lambda: leaders(node) == PROCESSES, "partitions moved to the new process")
        assert len(stored(node)) == 200
    with NodeProcess(tmp_path, text) as node:
        assert "n1.p2 will not run" in node.log_file.read_text()


def test_one_that_cannot_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "data" / "processes").mkdir(parents=True)
    (tmp_path / "data" / "processes" / "2").write_text("no folder")
    node = NodeProcess(tmp_path, config(), arguments=("--processes", "2"))
    with pytest.raises(AssertionError, match="n1.p2 did not start"):
        node.start()
    assert not left_of(tmp_path)


def test_a_reload_reaches_all(node: NodeProcess) -> None:
    os.kill(node.pid, signal.SIGHUP)

    def all_have() -> bool:
        found = metrics(node, "lakemq_node_config_reloads_total")
        return found.keys() == PROCESSES and min(found.values()) >= 1

    until(all_have, "both have read their configuration again")
