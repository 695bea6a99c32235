"""Goal: `produce` and `consume` take and print all that a record has; a group's member commits what
it has printed and no more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import add_plugin_commands, app
from tests.support.node.node import NodeProcess, unique

Run = Callable[..., str]


@pytest.fixture
def run(node: NodeProcess) -> Run:
    """A command at the shared node: what it prints. `code`: the one it must end with."""
    add_plugin_commands()

    def run(*words: str, code: int = 0, stdin: bytes = b"") -> str:
        told = CliRunner().invoke(app, [*words, "--bootstrap", node.native], input=stdin)
        assert told.exit_code == code, (told.exit_code, told.output)
        return told.stdout if code == 0 else told.stderr

    return run


def test_all_that_a_record_has(run: Run, topic: str) -> None:
    run("produce", topic, "-v", "21.5", "-k", "kitchen", "-H", "unit=C", "-H", "by=me",
        "--timestamp", "2026-01-01T00:00:00Z", "--partition", "0")  # fmt: skip
    run("produce", topic, "-v", "later", "-k", "attic", "--timestamp", "1780000000000")
    whole = r"%t/%p/%o %k %v %h %d\n"
    assert run("consume", topic, "--format", whole, "-n", "1") == (
        f"{topic}/0/0 kitchen 21.5 unit=C,by=me 1767225600000\n"
    )
    assert run("consume", topic, "--key", "attic") == "later\n"
    assert run("consume", topic, "--header", "unit=C", "--timestamp") == (
        "2026-01-01T00:00:00.000\t21.5\n"
    )
    assert run("consume", topic, "--header", "unit=F") == ""
    assert run("consume", topic, "--from-time", "2026-02-01") == "later\n"
    assert run("consume", topic, "--partition", "1", code=4).startswith("lakemq: ")
    assert "'%x' has no meaning" in run("consume", topic, "--format", "%x", code=2)
    assert "milliseconds since 1970" in run("consume", topic, "--from-time", "soon", code=2)
    assert "takes NAME=VALUE" in run("produce", topic, "-v", "a", "-H", "unit", code=2)


def test_files_of_lines_json_and_bytes(run: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"a=1\nb=2\n")
    run("produce", topic, "--file", str(file), "--key-separator", "=")
    printed = run("consume", topic, "--format", "json")
    assert [json.loads(line)["key"] for line in printed.splitlines()] == ["a", "b"]
    run("produce", topic, "--format", "json", "-k", "ignored", stdin=printed.encode())
    again = run("consume", topic, "--from", "2", "--json")
    names = ("key", "value", "timestamp_ms", "headers")
    assert [[json.loads(line)[name] for name in names] for line in again.splitlines()] == [
        [json.loads(line)[name] for name in names] for line in printed.splitlines()
    ]
    file.write_bytes(b"two\nlines\r\n\xff")
    run("produce", topic, "--file", str(file), "--format", "raw", "-k", "raw")
    assert json.loads(run("consume", topic, "--key", "raw", "--json"))["value"] == (
        "two\nlines\r\n\\xff"
    )
    told = run("produce", topic, "--format", "json", stdin=b'{"value": 1}\n{}\n', code=1)
    assert "line 2: 'value' is missing" in told
    assert "No such file" in run("produce", topic, "--file", str(tmp_path / "none"), code=2)
    run("produce", topic, "--format", "raw", "--key-separator", "=", code=2)


@pytest.mark.partitions(3)
def test_a_member_goes_on_where_its_group_is(
    run: Run, topic: str, client: lakemq.SyncClient
) -> None:
    group = unique("group")
    for number in range(3):
        client.send_batch(topic, [lakemq.NewRecord(b"%d" % number)] * 4, partition=number)
    first = run("consume", topic, "--group", group, "--max", "5").split()
    assert len(first) == 5
    assert client.describe_group(group).lag == 12 - 5
    rest = run("consume", topic, "--group", group).split()
    assert sorted(first + rest) == ["0"] * 4 + ["1"] * 4 + ["2"] * 4
    assert client.describe_group(group).lag == 0
    assert run("consume", topic, "--group", group) == ""
    assert "takes neither" in run("consume", topic, "-g", group, "-p", "0", code=2)
    assert "does not exist" in run("consume", unique("none"), "-g", group, code=4)


def test_what_nobody_reads_is_not_committed(
    node: NodeProcess, run: Run, topic: str, client: lakemq.SyncClient
) -> None:
    group = unique("group")
    client.send_batch(topic, [lakemq.NewRecord(b"%d" % number) for number in range(4)])
    assert run("consume", topic, "--group", group, "--max", "1") == "0\n"
    out, into = os.pipe()
    os.close(out)
    with os.fdopen(into, "wb") as closed:
        told = subprocess.run(
            [sys.executable, "-m", "lakemq", "consume", topic, "--group", group],
            stdout=closed,
            stderr=subprocess.PIPE,
            # Unbuffered output, as some test machines have it, would hide what is written too late.
            env={**os.environ, "LAKEMQ_BOOTSTRAP": node.native, "PYTHONUNBUFFERED": ""},
            timeout=100,
            check=False,
        )
    assert (told.returncode, told.stderr) == (128 + signal.SIGPIPE, b"")
    assert client.describe_group(group).lag == 3
    assert run("consume", topic, "--group", group) == "1\n2\n3\n"
