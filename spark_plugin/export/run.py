"""Puts an exporter together: table, Spark, tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_plugin.access import Access
from spark_plugin.errors import NoTable
from spark_plugin.export.audit import PartitionAudit, audit
from spark_plugin.export.evolving import decoded_schema
from spark_plugin.export.exporter import Exporter, RunTasks
from spark_plugin.export.fused_source import run_tasks
from spark_plugin.export.open_table import open_table
from spark_plugin.export.partitioning import parse_partition_by
from spark_plugin.export.replay import Replayed
from spark_plugin.export.rows import dead_letter_schema
from spark_plugin.export.settings import ExportSettings, Target
from spark_plugin.export.sql_query import SqlQuery
from spark_plugin.export.table import ExportKey, TaskResult
from spark_plugin.export.write_task import WriteTask
from spark_plugin.journal import open_client as connect
from spark_plugin.journal import view_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ANYBODY = Access()


def open_exporter(spark: SparkSession, settings: ExportSettings) -> Exporter:
    """An exporter whose tasks run in Spark's executors."""
    query = (
        SqlQuery(spark.newSession(), settings.sql, decoded_schema(settings))
        if settings.sql
        else None
    )
    run = partial(run_tasks, spark, settings.access)
    return make_exporter(settings, run, spark.sparkContext.defaultParallelism, query)


def make_exporter(
    settings: ExportSettings, run: RunTasks, parallelism: int = 2, query: SqlQuery | None = None
) -> Exporter:
    """An exporter with its tables open, created if absent."""
    schema = query.schema if query is not None else decoded_schema(settings)
    fields = parse_partition_by(settings.partition_by)
    table = open_table(
        settings.target, schema, fields, evolve=settings.evolve
    )  # fmt: skip
    dlq = None
    if settings.format != "raw":
        dlq = open_table(settings.target.dead_letters(settings.dlq), dead_letter_schema())
    return Exporter(settings, table, run, parallelism=parallelism, dlq=dlq, query=query)


def audit_target(
    bootstrap: str,
    topic: str,
    target: Target,
    export_id: str,
    dlq: str,
    *,
    by_key: bool,
    access: Access = _ANYBODY,
) -> list[PartitionAudit]:
    """Compare a topic with the table that it was exported to, and with its dead letters."""
    with connect(bootstrap, access) as client:
        view = view_of([client.describe_topic(topic)])[topic]
        key = ExportKey(export_id, topic, view.topic_id, tuple(sorted(view.partitions)))
        table = open_table(target, None)
        dead = None
        try:
            dead = open_table(target.dead_letters(dlq), None)
        except NoTable:
            if dlq:
                raise
        return audit(client, key, view, table, dead, by_key=by_key)


def replay_target(settings: ExportSettings) -> Replayed:
    """Land the dead letters that decode by now, in this process."""
    open_table(settings.target, None)  # NoTable rather than an empty new one
    exporter = make_exporter(settings, _no_tasks)
    try:
        exporter.start()
        return exporter.replay()
    finally:
        exporter.close()


def _no_tasks(tasks: Sequence[WriteTask]) -> list[TaskResult]:
    raise AssertionError(f"a replay runs no tasks, not {len(tasks)}")
