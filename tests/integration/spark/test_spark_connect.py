"""Goal: source, sink and export through a Spark Connect server, from a client without Java.

Starts a server and takes a minute, so it runs only with LAKEMQ_SPARK_CLUSTER=1, where the client's
packages are (`pip install 'pyspark[connect]'`).
"""

from __future__ import annotations

import importlib.util
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
from tests.support.spark.lake_tables import places, read_table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_SPARK_CLUSTER"), reason="set LAKEMQ_SPARK_CLUSTER=1"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("grpc_status") is None, reason="pip install 'pyspark[connect]'"
    ),
]
ENDS_S = 300
CLIENT = """
import sys
from lakemq.spark_plugin.session import open_session
remote, native, checkpoint = sys.argv[1:]
spark = open_session("client", remote)
def at(kind, **options):
    kind = kind.format("lakemq").option("bootstrap", native)
    for name, value in options.items():
        kind = kind.option(name, value)
    return kind
def count(topic):
    return at(spark.read, subscribe=topic).load().count()
rows = at(spark.read, subscribe="t").load().select("value")
at(rows.write, topic="out").mode("append").save()
print("after the batch", count("out"))
for _ in range(2):
    given = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 90}
    values = at(spark.readStream, **given).load().select("value")
    query = at(values.writeStream, topic="out", checkpointLocation=checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
print("after the stream", count("out"))
try:
    at(spark.read, subscrib="t").load().count()
except Exception as error:
    print("did you mean subscribe?" in str(error))
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server on loopback."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    said = tmp_path_factory.mktemp("connect") / "server.log"
    with said.open("w") as log:
        server = subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                "--master",
                "local[2]",
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
                *(word for item in settings.items() for word in ("--conf", "=".join(item))),
            ],
            env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + ENDS_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, said.read_text()
                time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node") as node, lakemq.connect(node.native) as client:
        client.create_topic("out", partitions=2)
        client.create_topic("t", partitions=2)
        for partition in range(2):
            values = [b'{"n":%d}' % n for n in range(100)]
            client.send_batch("t", lakemq.Columns([*values, b"poison"]), partition=partition)
        yield node


def without_java(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
        env={**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"},
    )


def test_batches_and_streams_each_row_once(remote: str, node: NodeProcess, tmp_path: Path) -> None:
    answer = without_java("-c", CLIENT, remote, node.native, str(tmp_path / "checkpoint"))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split("\n")[:3] == ["after the batch 202", "after the stream 404", "True"]


def test_the_export_lands_each_record_once(remote: str, node: NodeProcess, tmp_path: Path) -> None:
    table = Target("delta", str(tmp_path / "table"))
    common = [
        "-m", "lakemq", "export", "--bootstrap", node.native, "--topic", "t", "--to", "delta",
        "--format", "json", "--schema", "n bigint", "--master", remote,
    ]  # fmt: skip
    for _ in range(2):
        answer = without_java(*common, "--path", table.path, "--commit-rows", "150")
        assert (answer.returncode, answer.stderr) == (0, "")
    assert places(read_table(table)) == [(p, n) for p in range(2) for n in range(100)]
    half = Target("delta", str(tmp_path / "half"))
    sql = ["--sql", "SELECT _meta, n FROM records WHERE n % 2 = 0"]
    answer = without_java(*common, "--path", half.path, *sql)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert places(read_table(half)) == [(p, n) for p in range(2) for n in range(0, 100, 2)]
    answer = without_java(*common, "--path", half.path, "--sql", "SELECT nix FROM records")
    assert answer.returncode == 2
    assert answer.stderr.startswith("lakemq: --sql: ") and answer.stderr.count("\n") == 1
