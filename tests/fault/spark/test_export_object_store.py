"""Goal: tables in an S3 bucket are as exact as on a disk: kill -9 at any step loses and repeats no
row, for each format. The server is moto's, on 127.0.0.1."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import lakemq
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import audit_target, make_exporter, open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.vacuum import vacuum
from lakemq.spark_plugin.export.tables.files import Folder
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.lazy_session import LazySpark
from tests.support.cluster.load import until
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_port
from tests.support.spark.killed_export import POINTS, ends, start
from tests.support.spark.lake_tables import FORMATS

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ALL = bool(os.environ.get("LAKEMQ_EXPORT_KILLS"))
"""Every kill for every format; else the two worst of the format whose commit is ours."""
KILLS = [(point, 1) for point in POINTS] + [("before_commit", 1), ("after_commit", 2)]
"""Ten: where the export dies, and at which commit of the process."""
SECRETS = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The endpoint of a server that has the bucket `lake`. A process of its own: delta-rs holds the
    interpreter's lock in some calls, and a thread of ours could not answer them."""
    pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    port = free_port()
    program = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        until(lambda: answers(port))
        boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1",
            aws_access_key_id="a", aws_secret_access_key="b",
        ).create_bucket(Bucket="lake")  # fmt: skip
        yield endpoint
    finally:
        server.kill()
        server.wait()


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def target_in(folder: Path, kind: str, name: str, storage: dict[str, str]) -> Target:
    if kind == "iceberg":
        uri = f"sqlite:///{folder}/{name}.db"
        catalog = {"type": "sql", "uri": uri, "warehouse": f"s3://lake/{name}"}
        return Target("iceberg", table="lake.t", catalog=catalog, storage=storage)
    return Target(kind, path=f"s3://lake/{name}", storage=storage)  # type: ignore[arg-type]


def settings(node: NodeProcess, topic: str, target: Target, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap": node.native, "topic": topic, "target": target, "export_id": "e",
        "format": "json", "value_schema": "n bigint", "commit_rows": 200, **more,
    }  # fmt: skip


def send(client: lakemq.SyncClient, topic: str, first: int, count: int) -> None:
    """Every ninth is a dead letter."""
    values = [b"bad" if n % 9 == 4 else b'{"n":%d}' % n for n in range(first, first + count)]
    client.send_batch(topic, lakemq.Columns(values))


def checked(node: NodeProcess, topic: str, target: Target, records: int) -> str:
    """What the audit says; journal and table are equal, offset by offset."""
    [found] = audit_target(node.native, topic, target, "e", "", by_key=False)
    assert found.complete and found.records == records, found.sentence(topic)
    assert found.dead_letters > 0
    return found.sentence(topic)


def export_here(given: dict[str, Any]) -> None:
    """Tasks get the store's options as executors do: with the access, not with the task."""
    storage = tuple(given["target"].storage.items())

    def run(tasks: list[WriteTask]) -> list[Any]:
        texts = [task.to_json() for task in tasks]
        assert not any("secret" in text for text in texts)
        access = Access.from_json(Access(storage=storage).to_json())
        return [each for t in texts for each in write_task.run(WriteTask.from_json(t), access)]

    exporter = make_exporter(ExportSettings(**given), run)
    exporter.start()
    while exporter.step():
        pass
    exporter.close()


@pytest.mark.parametrize("kind", FORMATS if ALL else ["delta"])
def test_options_alone_reach_the_store(
    kind: str, bucket: str, node: NodeProcess, tmp_path: Path
) -> None:
    """Also compaction, later columns, and a vacuum."""
    topic = f"options-{kind}"
    target = target_in(tmp_path, kind, topic, {"endpoint": bucket, **SECRETS})
    with lakemq.connect(node.native) as client:
        client.create_topic(topic, partitions=1)
        for number in range(3):
            send(client, topic, 100 * number, 100)
            more = {"evolve": "add", "value_schema": "n bigint, m string"} if number == 2 else {}
            export_here(settings(node, topic, target, compact_files=1, **more))
    checked(node, topic, target, 300)
    table = open_table(target, None)
    assert "m" in table.arrow_schema().names
    vacuum(table, 0)
    checked(node, topic, target, 300)
    assert "b" not in repr(target).split("secret")[1:], "secrets are not shown"


@pytest.mark.parametrize("kind", FORMATS if ALL else ("parquet",))
def test_killed_in_turn(
    kind: str, bucket: str, node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variables that tiering, delta-rs and others look at."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket)
    for name, value in SECRETS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    topic = f"killed-{kind}"
    target = target_in(tmp_path, kind, topic, {})
    given = dataclasses.asdict(ExportSettings(**settings(node, topic, target)))
    given = settings(node, topic, target) | {"target": given["target"]}
    kills = KILLS if ALL else [("in_task", 1), ("after_commit", 1)]
    with lakemq.connect(node.native) as client:
        client.create_topic(topic, partitions=1)
        for number, (point, step) in enumerate(kills):
            send(client, topic, 300 * number, 300)  # two commits
            if point == "in_orphans":  # needs a folder to delete
                assert ends(start(given, "in_task")) == -signal.SIGKILL
            assert ends(start(given, point, step)) == -signal.SIGKILL, (point, step)
        assert ends(start(given)) == 0
    said = checked(node, topic, target, 300 * len(kills))
    print(f"{kind}: killed at {len(kills)} steps. {said}")


def test_a_manifest_is_created_once(bucket: str) -> None:
    folder = Folder("s3://lake/once", {"endpoint": bucket, **SECRETS})
    folder.create_exclusively("_manifest/1.json", b"first")
    with pytest.raises(FileExistsError):
        folder.create_exclusively("_manifest/1.json", b"second")
    assert folder.read("_manifest/1.json") == b"first"


def test_without_a_broker_no_table_is_made(tmp_path: Path) -> None:
    target = Target("delta", path=str(tmp_path / "table"))
    given = ExportSettings("127.0.0.1:9", "t", target, "e", retry_timeout_s=0.1)
    spark = LazySpark(lambda: pytest.fail("not needed"), lambda: nullcontext(), Event())
    with pytest.raises(lakemq.Unavailable):
        open_exporter(spark, given)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_store_that_is_not_there_is_one_sentence(kind: str, tmp_path: Path) -> None:
    storage = {"endpoint": "http://127.0.0.1:9", **SECRETS}
    with pytest.raises(TableError) as caught:
        import pyarrow as pa

        open_table(target_in(tmp_path, kind, "away", storage), pa.schema([("n", pa.int64())]))
    assert "\n" not in str(caught.value) and "127.0.0.1" in str(caught.value)
