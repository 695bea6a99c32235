"""Goal: `lakemq top` follows a node on a terminal and gives it back, and prints once elsewhere."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app
from lakemq.cli.overview import sampling
from tests.support.node.node import NodeProcess, unique
from tests.support.terminal import LAKEMQ, Terminal


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("top")) as node:
        yield node


def test_on_a_terminal_until_it_is_ended(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    # Not "ok" where this machine's disk is nearly full, say.
    where = ("--admin", node.addresses["admin"], "--output", "json")
    health = json.loads(CliRunner().invoke(app, ["top", *where]).stdout)["health"]
    group = unique("top")
    client.reset_offsets(group, {lakemq.TopicPartition(topic, 0): 0})
    terminal = Terminal(
        str(LAKEMQ), "top", "-i", "4", environment={"LAKEMQ_ADMIN": node.addresses["admin"]}
    )
    try:
        first = terminal.read(until=group)
        assert b"\x1b[?1049h" in first  # a screen of its own
        assert b"node-1" in first
        assert f"health: {health}".encode() in first, first.decode()
        terminal.signal(signal.SIGTERM)
        assert b"\x1b[?1049l" in terminal.read()
        assert terminal.wait() == 143
    finally:
        terminal.end()


@pytest.mark.parametrize("form", ["text", "json"])
def test_once(node: NodeProcess, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STEP_S", 0.1)
    where = ("--admin", node.addresses["admin"], "--output", form)
    run = CliRunner().invoke(app, ["top", *where])
    assert run.exit_code == 0, run.output
    if form == "text":
        assert run.stdout.startswith("cluster ") and "stored/s" in run.stdout
        return
    (row,) = json.loads(run.stdout)["nodes"]
    assert row["node"] == "node-1"
    assert row["rates"]["stored"] >= 0 and row["rates"]["clients"] >= 0


def test_no_answer() -> None:
    run = CliRunner().invoke(app, ["top", "--admin", "127.0.0.1:1"])
    assert (run.exit_code, run.stdout) == (3, "")
