"""Goal: a streaming query and an export by Spark's own tasks have each record of a topic once,
though the nodes that lead it are killed.

Method: three real nodes, and Spark in a process of its own. It starts a JVM, so it runs only with
LAKEMQ_EXPORT_KILLS=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import lakemq
from lakemq.spark_plugin.errors import NoTable
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import leader, made, until_in_sync
from tests.support.spark import streamed_source
from tests.support.spark.lake_tables import FORMATS, read_table, target_in

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_EXPORT_KILLS"), reason="set LAKEMQ_EXPORT_KILLS=1"
    ),
]
PARTITIONS = 2
STARTS_MAX_S = 200.0
GOES_ON_MAX_S = 100.0
EXPORTED = 200_000
"""Records of each partition."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), links=False) as cluster:
        yield cluster


class Told:
    """What a process says, while it runs and at its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(
            target=lambda: self._lines.extend(process.stdout or ()), daemon=True
        )
        self._reader.start()

    def check_alive(self) -> bool:
        assert self._process.poll() is None, "".join(self._lines)[-8_000:]
        return True

    def check_end(self) -> None:
        code = self._process.wait(400)
        self._reader.join(10)
        assert code == 0, "".join(self._lines)[-8_000:]


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[Told]:
    told = Told(process)
    try:
        yield told
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            told._reader.join(10)
            process.stdout.close()


def filled(cluster: Cluster, name: str, count: int, size: int) -> str:
    made(cluster, name, PARTITIONS)
    with cluster.client(timeout_s=60) as client:
        for partition in range(PARTITIONS):
            for first in range(0, count, 8000):
                numbers = range(first, min(count, first + 8000))
                values = [b"%0*d" % (size, number) for number in numbers]
                client.send_batch(name, lakemq.Columns(values), partition=partition)
    return name


def bootstrap(cluster: Cluster) -> str:
    return ",".join(cluster.bootstrap)


def test_a_stream_has_each_record_once(cluster: Cluster, tmp_path: Path) -> None:
    count = 900
    topic = filled(cluster, "streamed", count, 1)
    with ended(streamed_source.start(bootstrap(cluster), topic, str(tmp_path))) as told:
        for _ in range(2):
            goal = streamed_source.batches(tmp_path) + 2
            until(
                lambda: told.check_alive() and streamed_source.batches(tmp_path) >= goal,  # noqa: B023
                STARTS_MAX_S,
            )
            name = leader(cluster, topic)
            cluster.kill(name)
            goal = streamed_source.batches(tmp_path) + 2
            until(
                lambda: told.check_alive() and streamed_source.batches(tmp_path) >= goal,  # noqa: B023
                GOES_ON_MAX_S,
            )
            cluster.start_node(name)
            until_in_sync(cluster, topic)
        told.check_end()
    expected = [(at, number, b"%d" % number) for at in range(PARTITIONS) for number in range(count)]
    assert streamed_source.rows(tmp_path) == expected


def written(target: Target) -> int:
    """Data files that the table names."""
    with suppress(NoTable):
        return len(open_table(target, None).data_files())
    return 0


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_has_each_record_once(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    topic = filled(cluster, f"exported-{kind}", EXPORTED, 100)
    target = target_in(tmp_path / "lake", kind)
    where = ["--path", target.path]
    if kind == "iceberg":
        where = ["--table", target.table, "--catalog-uri", target.catalog["uri"]]
        where += ["--warehouse", target.catalog["warehouse"]]
    process = subprocess.Popen(
        [sys.executable, "-m", "lakemq", "export", "--bootstrap", bootstrap(cluster), "--topic",
         topic, "--to", kind, *where, "--commit-rows", "50000", "--master", "local[2,4]"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with ended(process) as told:
        until(lambda: told.check_alive() and written(target) > 0, STARTS_MAX_S)
        name = leader(cluster, topic)
        cluster.kill(name)
        told.check_end()
    cluster.start_node(name)
    until_in_sync(cluster, topic)
    rows = read_table(target).select(["partition", "offset", "value"]).to_pylist()
    assert sorted((row["partition"], row["offset"], int(row["value"])) for row in rows) == [
        (at, number, number) for at in range(PARTITIONS) for number in range(EXPORTED)
    ]
