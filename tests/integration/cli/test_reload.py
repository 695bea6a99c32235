"""Goal: a node under load takes a changed configuration, and no client notices; a wrong one changes
nothing; SIGHUP ends no node, whenever it comes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest

import lakemq
from tests.support.node.admin_api import ask
from tests.support.node.node import PORTS_FREE, NodeProcess

RELOADS = 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("reload")) as node:
        yield node


def write(node: NodeProcess, more: str = "", **mqtt: int) -> None:
    lines = "".join(f"{name} = {value}\n" for name, value in mqtt.items())
    written = PORTS_FREE.replace("[plugins.mqtt]\n", f"[plugins.mqtt]\n{lines}") + more
    # As an editor or a deployment does: the file is never there by halves.
    new = node.config_file.with_suffix(".new")
    new.write_text(written)
    new.replace(node.config_file)


def wait_for_metric(node: NodeProcess, pattern: str) -> None:
    """Metrics are made once a second at most."""
    deadline = time.monotonic() + 20
    while not re.search(pattern, ask(node, "GET", "/metrics").body):
        assert time.monotonic() < deadline, f"no metric {pattern}"
        time.sleep(0.2)


async def test_twenty_reloads_under_load_close_no_connection(node: NodeProcess) -> None:
    there = {"hostname": "127.0.0.1", "port": node.mqtt_port}
    sent = 0
    done = asyncio.Event()

    async def publish() -> None:
        nonlocal sent
        async with aiomqtt.Client(**there) as client:
            while not done.is_set():
                await client.publish("d/1", b"%d" % sent, qos=1)
                sent += 1

    async with aiomqtt.Client(**there) as subscriber, lakemq.Client(node.native) as native:
        await subscriber.subscribe("d/#", qos=1)
        await native.create_topic("t")
        async with await native.producer() as producer, asyncio.TaskGroup() as group:
            group.create_task(publish())
            for number in range(RELOADS):
                write(node, f"[topics]\nretention_ms = {1000 + number}\n", slow_ms=number + 1)
                answered = await asyncio.to_thread(ask, node, "POST", "nodes/node-1/reload")
                applied = {each["setting"]: each["after"] for each in answered.json["applied"]}
                assert applied == {
                    "topics.retention_ms": 1000 + number, "plugins.mqtt.slow_ms": number + 1,
                }, answered.body  # fmt: skip
                await producer.send("t", b"x")
            done.set()
        # The subscriber's one connection has had every publish, in order.
        for expected in range(sent):
            message = await asyncio.wait_for(anext(aiter(subscriber.messages)), 20)
            assert message.payload == b"%d" % expected
        assert sent > RELOADS
        # And new topics have the newest default.
        await native.create_topic("later")
        found = await native.describe_topic("later")
        assert found.config["retention_ms"] == str(1000 + RELOADS - 1)


def test_a_wrong_file_changes_nothing_and_says_where(node: NodeProcess) -> None:
    write(node, "[topics]\nretention_ms = 7\nretentoin_ms = 5\n")
    line = node.config_file.read_text().splitlines().index("retentoin_ms = 5") + 1
    for query in ("", "?dry_run=true"):
        answered = ask(node, "POST", f"nodes/node-1/reload{query}")
        assert (answered.status, answered.json["code"]) == (400, "CONFIG")
        assert f"{node.config_file}:{line}: topics.retentoin_ms: unknown" in answered.json["detail"]
    write(node, "[topics]\nretention_ms = 7\n")
    assert ask(node, "POST", "nodes/node-1/reload").json["applied"]
    wait_for_metric(node, r'config_reloads_total{[^}]*outcome="failed"[^}]*} 1.0')


def test_what_needs_a_restart_is_named(node: NodeProcess) -> None:
    write(node)
    ask(node, "POST", "nodes/node-1/reload")
    write(node, "[node]\nrack = 'r'\nlog_level = 'info'\n")
    would = ask(node, "POST", "nodes/node-1/reload?dry_run=true").json
    rows = ask(node, "GET", "settings?pending=true").data
    assert [(each["setting"], each["pending"], each["written"]) for each in rows] == [
        ("node.log_level", "reload", "info"), ("node.rack", "restart", "r"),
    ]  # fmt: skip
    assert ask(node, "POST", "nodes/node-1/reload").json == would
    assert [each["setting"] for each in ask(node, "GET", "settings?pending=true").data] == [
        "node.rack"
    ]
    assert "these need a restart: node.rack = 'r', was ''" in node.log_file.read_text()
    wait_for_metric(node, r"restart_pending{[^}]*} 1.0")
    (noted, *_) = ask(node, "GET", "audit?q=reload").data
    assert (noted["outcome"], noted["after"]) == ("done", {"node.log_level": "info"})


def told(manager: socket.socket) -> list[str]:
    return manager.recv(200).decode().split("\n")


def test_sighup_reloads_and_tells_the_service_manager(tmp_path: Path) -> None:
    """Before the node is ready, while it runs, and while it stops."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        node = NodeProcess(tmp_path, environment={"NOTIFY_SOCKET": address}).start()
        assert told(manager) == ["READY=1"]
        write(node, "[node]\nlog_level = 'info'\n")
        os.kill(node.pid, signal.SIGHUP)
        reloading, at = told(manager)
        assert reloading == "RELOADING=1" and re.fullmatch(r"MONOTONIC_USEC=\d+", at)
        assert told(manager) == ["READY=1"]
        assert "reloaded: node.log_level = 'info'" in node.log_file.read_text()
        write(node, "[topics]\nretention_ms = 'x'\n")
        os.kill(node.pid, signal.SIGHUP)
        assert told(manager)[0] == "RELOADING=1"
        assert told(manager) == ["READY=1"]
        assert "topics.retention_ms: it takes a whole number" in node.log_file.read_text()
        os.kill(node.pid, signal.SIGTERM)
        assert told(manager) == ["STOPPING=1"]
        os.kill(node.pid, signal.SIGHUP)
        assert node.stop() == 0


def test_sighup_before_the_node_is_ready(tmp_path: Path) -> None:
    """It reads the file again when it is, and does not end."""
    address = str(tmp_path / "notify")
    node = NodeProcess(tmp_path, environment={"NOTIFY_SOCKET": address})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        # A FIFO holds the start where it reads its file: by then it has no handler of signals.
        process = subprocess.Popen(
            [sys.executable, "-c", _HANGS_UP, "--config", str(node.config_file), "--data-dir",
             str(node.data_dir)],
            stdout=subprocess.DEVNULL, env={**os.environ, "NOTIFY_SOCKET": address},
        )  # fmt: skip
        try:
            assert told(manager) == ["READY=1"]
            assert told(manager)[0] == "RELOADING=1"
            assert told(manager) == ["READY=1"]
        finally:
            process.terminate()
        assert process.wait(60) == 0


_HANGS_UP = """
import os, signal, sys
from lakemq.node import Node
start = Node.start
async def hung_up(self):
    os.kill(os.getpid(), signal.SIGHUP)
    await start(self)
Node.start = hung_up
sys.argv[1:1] = ["start"]
from lakemq.cli.main import main
main()
"""
"""`lakemq start` that has SIGHUP at the beginning of its start."""
