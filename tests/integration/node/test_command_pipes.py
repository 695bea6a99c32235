"""Goal: `produce` and `consume` at the ends of a live pipe: what is read is sent at once, what was
read is stored when a signal ends it, and exit codes say what has happened.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

import lakemq
from tests.support.node.node import NodeProcess


def command(node: NodeProcess, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lakemq", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LAKEMQ_BOOTSTRAP": node.native},
    )


def wait_for(client: lakemq.SyncClient, topic: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while client.describe_topic(topic).partitions[0].high_watermark < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_lines_are_sent_while_the_pipe_is_open(node: NodeProcess, number: signal.Signals) -> None:
    topic = f"live-{number.name}"
    with lakemq.connect(node.native) as client, command(node, "produce", topic) as process:
        client.create_topic(topic, partitions=1)
        assert process.stdin is not None
        for count in (1, 2):
            process.stdin.write("line\n")
            process.stdin.flush()
            wait_for(client, topic, count)
        process.send_signal(number)
        process.wait(30)
        assert process.returncode == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == "2 record(s) stored, acks=leader\n"
        assert client.describe_topic(topic).partitions[0].high_watermark == 2


def test_what_is_stored_is_told_when_the_rest_is_not(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client, command(node, "produce", "broken") as process:
        client.create_topic("broken", partitions=1)
        assert process.stdin is not None
        process.stdin.write("a\n")
        process.stdin.flush()
        wait_for(client, "broken", 1)
        client.delete_topic("broken")
        _, said = process.communicate("b\n", timeout=60)
    assert process.returncode == 4
    assert re.fullmatch("lakemq: .*\n1 record\\(s\\) stored, acks=leader\n", said)


def test_a_reader_that_is_told_to_end_ends(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        client.create_topic("read", partitions=2)
        client.send("read", b"a")
        with command(node, "consume", "read", "-f") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "a\n"
            process.terminate()
            _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (143, "")


def test_exports_go_where_the_environment_says() -> None:
    environment = {**os.environ, "LAKEMQ_BOOTSTRAP": "no-port:x", "COLUMNS": "200"}
    for arguments in (
        ("export", "--topic", "t", "--to", "parquet", "--path", "p", "--infer", "--format", "json"),
        ("export", "audit", "--to", "parquet", "--path", "p", "--topic", "t"),
        ("export", "status", "--topic", "t"),
        ("dlq", "replay", "--to", "parquet", "--path", "p", "--topic", "t"),
    ):
        run = subprocess.run(
            [sys.executable, "-m", "lakemq", *arguments, "--help"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=True,
        )
        assert "LAKEMQ_BOOTSTRAP" in run.stdout, arguments
