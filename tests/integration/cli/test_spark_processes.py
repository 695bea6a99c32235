"""Goal: a task waits for no delayed acknowledgement, and the JVM starts safely beside gRPC."""

from __future__ import annotations

import os
import pickle  # as Spark sends objects
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lakemq.spark_plugin.worker_process import SentToWorker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")
FORKS = 60
FORKING = """
import contextlib, subprocess, sys
from lakemq.cli.main import main
bootstrap, count = sys.argv[1:]
sys.argv = ["lakemq", "version"]
with contextlib.suppress(SystemExit):
    main()
from lakemq.spark_plugin.source.broker_reader import open_client
ends = []
with open_client(bootstrap) as client:
    for _ in range(int(count)):
        client.topics()
        for batch in client.fetch_batches("forks", 0, 0, 50):
            break
        # As pyspark starts its JVM: with a function to call in the child.
        ends.append(subprocess.call(["true"], preexec_fn=lambda: None))
print(sum(map(bool, ends)))
"""


class Sent(SentToWorker):
    def __init__(self, word: str) -> None:
        self.word = word


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_sent_to_a_worker_has_its_sockets_acknowledge_at_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0],
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    ):
        # As it is while a process answers what it receives: acknowledgements wait for the answer.
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert not ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        before = open_files()
        sent = pickle.loads(pickle.dumps(Sent("task")))  # noqa: S301 - its own bytes
        assert sent.word == "task"
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        assert open_files() == before


def test_programs_start_beside_a_client(node, client, tmp_path: Path) -> None:
    client.create_topic("forks")
    client.send("forks", b"x")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # The tests' own processes have it set.
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)
    run = subprocess.run(
        [sys.executable, "-c", FORKING, node.native, str(FORKS)],
        capture_output=True, text=True, check=True, env=environment, cwd=tmp_path, timeout=240,
    )  # fmt: skip
    assert run.stdout.splitlines()[-1] == "0", run.stderr[-1000:]
