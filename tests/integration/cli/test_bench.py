"""Goal: `lakemq bench` measures a broker's acks over both protocols, and leaves no topic behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app
from tests.support.node.node import NodeProcess
from tests.support.terminal import LAKEMQ


def topics(client: lakemq.SyncClient) -> set[str]:
    return {each.name for each in client.topics() if each.name.startswith("lakemq-bench-")}


def bench(node: NodeProcess, *words: str, code: int = 0) -> Any:
    where = ("--bootstrap", node.native)
    run = CliRunner().invoke(app, ["bench", "-s", "0.4", "-r", "200", *where, *words])
    assert run.exit_code == code, run.output
    return json.loads(run.stdout) if "--json" in words else run.stdout or run.stderr


def test_both_protocols(node: NodeProcess, client: lakemq.SyncClient) -> None:
    found = bench(node, "--mqtt", f"127.0.0.1:{node.mqtt_port}", "--size", "50", "--json")
    assert [each["protocol"] for each in found["results"]] == ["native", "mqtt"]
    for each in found["results"]:
        assert (each["offered"], each["acknowledged"], each["problem"]) == (80, 80, None)
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["max_ms"]
        assert "fsynced" in each["ack_means"]
    assert topics(client) == set()


def test_what_an_ack_means_and_what_is_kept(node: NodeProcess, client: lakemq.SyncClient) -> None:
    printed = bench(node, "--acks", "memory", "--keep", "-p", "1")
    assert (
        "p99 ms" in printed and "an ack says that the record is in the leader's memory" in printed
    )
    (kept,) = topics(client)
    assert client.describe_topic(kept).partitions[0].high_watermark == 81  # and the first, untimed
    client.delete_topic(kept)


@pytest.mark.parametrize("ctrl_c", [signal.SIG_DFL, signal.SIG_IGN], ids=["typed", "background"])
def test_ended_early_it_deletes_its_topic(
    node: NodeProcess, client: lakemq.SyncClient, ctrl_c: signal.Handlers
) -> None:
    """Ctrl-C is ignored by what a script runs in the background."""
    words = (LAKEMQ, "bench", "-s", "600", "-r", "10", "--bootstrap", node.native)
    before = signal.signal(signal.SIGINT, ctrl_c)
    process = subprocess.Popen(words)
    signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while not topics(client):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.wait()
    assert topics(client) == set()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--mqtt", "nonsense"), 2, "it takes HOST:PORT"),
        (("--mqtt", "127.0.0.1:1"), 3, "lakemq: "),
        (("--bootstrap", "127.0.0.1:1"), 3, "lakemq: "),
    ],
)
def test_what_is_wrong_is_told(
    node: NodeProcess, client: lakemq.SyncClient, words: tuple[str, ...], code: int, told: str
) -> None:
    assert told in bench(node, *words, code=code)
    assert topics(client) == set()
