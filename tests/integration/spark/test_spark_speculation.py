"""Goal: with two live attempts of one task, export and sink land each row once.

Spark never runs both on one host, so two workers are two hosts to it: 127.0.0.2 and 127.0.0.3.
Starts a standalone cluster (six JVMs), so it runs only with LAKEMQ_SPARK_CLUSTER=1.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.node.node import NodeProcess
from tests.support.spark.lake_tables import data_paths, places, read_table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_SPARK_CLUSTER"), reason="set LAKEMQ_SPARK_CLUSTER=1"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="needs loopback addresses beside 127.0.0.1"),
]
COUNT = 1000
"""Records in each of 2 partitions."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    folder = tmp_path_factory.mktemp("standalone")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}

    def start(kind: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        with (folder / f"{kind}-{host}.log").open("w") as log:
            return subprocess.Popen(
                [home / "bin" / "spark-class", main, "--host", host, "--webui-port", "0",
                 *arguments],
                env=environment | {"SPARK_LOCAL_IP": host}, stdout=log, stderr=log,
            )  # fmt: skip

    address = f"spark://127.0.0.1:{port}"
    running = [start("Master", "127.0.0.1", "--port", str(port))]
    for host in ("127.0.0.2", "127.0.0.3"):
        more = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), address)
        running.append(start("Worker", host, *more))
    try:
        deadline = time.monotonic() + 240
        log = folder / "Master-127.0.0.1.log"
        while log.read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        for process in running:
            process.terminate()
            process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        for topic in ("t", "out"):
            client.create_topic(topic, partitions=2)
        for partition in range(2):
            values = [b"%d" % (2 * n + partition) for n in range(COUNT)]
            keys = [b"key-%d" % (n % 2) for n in range(COUNT)]
            client.send_batch("t", lakemq.Columns(values, keys), partition=partition)
        yield node


def run(master: str, marks: Path, *arguments: str) -> set[str]:
    """Run it; tasks that had two attempts, both of which did all of their work."""
    marks.mkdir()
    answer = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.speculated", master, str(marks), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    done = {path.stem for path in marks.glob("*.done")}
    return {name[:-2] for name in done if name.endswith("-1") and f"{name[:-2]}-0" in done}


@pytest.mark.parametrize("routed", [False, True])
def test_an_export_lands_each_record_once(
    master: str, node: NodeProcess, tmp_path: Path, routed: bool
) -> None:
    place = tmp_path / "lake"
    target = Target("delta", str(place / "{route}" if routed else place / "all"))
    settings = {
        "bootstrap": node.native,
        "topic": "t",
        "target": dataclasses.asdict(target),
        "export_id": "e",
        "commit_rows": 1000,
        "route_by": "key" if routed else "",
    }
    twice = run(master, tmp_path / "marks", "export", json.dumps(settings))
    assert twice, "no task had two attempts"
    if routed:
        for odd in range(2):
            rows = read_table(target.of_route(f"key-{odd}"))
            assert places(rows) == [(p, n) for p in range(2) for n in range(odd, COUNT, 2)]
    else:
        assert places(read_table(target)) == [(p, n) for p in range(2) for n in range(COUNT)]
        # What losers wrote before the commit is gone; the last commit's may still be writing.
        from lakemq.spark_plugin.export.tables.open_table import open_table

        named = {Path(each) for each in open_table(target, None).data_files()}
        assert named <= data_paths(target)


def test_a_stream_lands_each_row_once(master: str, node: NodeProcess, tmp_path: Path) -> None:
    where = (node.native, "t", "out", str(tmp_path / "checkpoint"))
    twice = run(master, tmp_path / "marks", "sink", *where)
    assert twice, "no task had two attempts"
    with lakemq.connect(node.native, timeout_s=30) as client:
        values = sorted(int(record.value or b"-1") for record in client.consume("out"))
    assert values == list(range(2 * COUNT))
