"""Goal: source, sink and export log in where the broker asks for it. Needs no Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import audit_target, make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.source import broker_reader as journal
from lakemq.spark_plugin.source.options import parse_options
from lakemq.spark_plugin.source.reader import BatchReader
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.spark.lake_tables import target_in

CONFIG = """
[security]
anonymous = "never"
admins = ["user:spark"]

[[security.authenticators]]
kind = "password_file"
file = "{folder}/users"
"""
LOGIN = {"username": "spark", "password": "spark's password"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("access")
    added = CliRunner().invoke(
        app,
        ["user", "add", "spark", "--file", str(folder / "users"), "--password-stdin"],
        input="spark's password\n",
    )
    assert added.exit_code == 0, added.output
    with NodeProcess(folder, PORTS_FREE + CONFIG.format(folder=folder)) as running:
        with lakemq.connect(running.native, **LOGIN) as client:
            client.create_topic("t")
            client.send_batch("t", lakemq.Columns([b"1", b"2", b"3"]))
        yield running
    for client in journal._clients.values():
        client.close()
    journal._clients.clear()


def reader(node: NodeProcess, **options: str) -> BatchReader:
    given = {"bootstrap": node.native, "subscribe": "t", "retryTimeout": "1s", **options}
    return BatchReader(parse_options(given, streaming=False), ("offset", "value"))


def test_the_source_logs_in(node: NodeProcess) -> None:
    source = reader(node, **LOGIN)
    batches = [batch for part in source.partitions() for batch in source.read(part)]
    assert [row["value"] for batch in batches for row in batch.to_pylist()] == [b"1", b"2", b"3"]
    with pytest.raises(lakemq.NotAuthenticated):
        reader(node).partitions()
    with pytest.raises(lakemq.NotAuthenticated):
        reader(node, username="spark", password="guessed").partitions()


def test_the_sink_logs_in(node: NodeProcess) -> None:
    staging = journal.client_of(node.native, Access(**LOGIN)).staging
    assert staging.open_sink("s").last_batch_id == -1


def test_exports_and_audits_log_in_and_no_task_carries_the_password(
    node: NodeProcess, tmp_path: Path
) -> None:
    access = Access(**LOGIN)
    tasks_seen: list[str] = []

    def run(tasks: list[write_task.WriteTask]) -> list[TaskResult]:
        tasks_seen.extend(task.to_json() for task in tasks)
        return [result for task in tasks for result in write_task.run(task, access)]

    target = target_in(tmp_path, "delta")
    exporter = make_exporter(ExportSettings(node.native, "t", target, "e", access=access), run)
    exporter.start()
    assert [report.rows for report in iter(exporter.step, None)] == [3]
    exporter.close()
    assert tasks_seen and not any("password" in text for text in tasks_seen)
    (found,) = audit_target(node.native, "t", target, "e", "", by_key=False, access=access)
    assert found.complete and found.records == 3
