"""Puts an exporter together: table, Spark, tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lakemq.plugins.native.sdk import LakeMQError, NotAuthenticated, NotAuthorized
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import NoTable, OptionError, SparkPluginError, TableError
from lakemq.spark_plugin.export.decoding.column_types import META, Evolve
from lakemq.spark_plugin.export.decoding.rows import dead_letter_schema
from lakemq.spark_plugin.export.job.evolving import decoded_schema
from lakemq.spark_plugin.export.job.exporter import Exporter, RunTasks, describe_topic, pause
from lakemq.spark_plugin.export.job.landing import Landing, OneTable
from lakemq.spark_plugin.export.job.ledger import ledger_schema, read_state
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.spark_tasks import run_tasks
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.audit import PartitionAudit, audit, offset_columns
from lakemq.spark_plugin.export.maintenance.replay import Replayed
from lakemq.spark_plugin.export.maintenance.status import ExportStatus, partition_statuses
from lakemq.spark_plugin.export.routing.routes import Routes
from lakemq.spark_plugin.export.routing.rules import check_route_column
from lakemq.spark_plugin.export.routing.sql_query import SqlQuery
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.partitioning import check_partitioning, parse_partition_by
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable
from lakemq.spark_plugin.export.tables.target import LEDGER, Target
from lakemq.spark_plugin.export.upserting.key import check_key
from lakemq.spark_plugin.export.upserting.upsert_table import UpsertTable
from lakemq.spark_plugin.lazy_session import LazySpark
from lakemq.spark_plugin.session import parallelism_of, session_of
from lakemq.spark_plugin.source.broker_reader import client_of, read_arrow, view_of
from lakemq.spark_plugin.source.broker_reader import open_client as connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakemq.spark_plugin.session import Spark


_ANONYMOUS = Access()


def open_exporter(spark: Spark | LazySpark, settings: ExportSettings) -> Exporter:
    """An exporter whose tasks run in Spark's executors. A lazy session starts with the first of
    them, after one record was read here."""
    # Before a table is opened, which creates it: without a broker nothing is left behind.
    describe_topic(settings)
    if not isinstance(spark, LazySpark):
        run = partial(run_tasks, spark, settings.access)
        return make_exporter(settings, run, parallelism_of(spark), _query(spark, settings))
    query = _query(spark.get(), settings) if settings.sql else None

    def run_lazily(tasks: Sequence[WriteTask]) -> list[TaskResult]:
        if not spark.is_started:
            check_readable(settings, tasks)
        return run_tasks(spark.get(), settings.access, tasks)

    return make_exporter(settings, run_lazily, lambda: parallelism_of(spark.get()), query)


def check_readable(settings: ExportSettings, tasks: Sequence[WriteTask]) -> None:
    """Raises NotAuthorized or NotAuthenticated where the topic may not be read. All else that can
    be wrong with records is for the tasks."""
    client = client_of(settings.bootstrap, settings.access)
    with contextlib.suppress(SparkPluginError):
        try:
            first = read_arrow(
                client, tasks[0].offsets, columns=("offset",), fetch_bytes=1, retry_timeout_s=1.0
            )
            next(first, None)
        except LakeMQError as error:
            if isinstance(error, NotAuthorized | NotAuthenticated):
                raise


def _query(spark: Spark, settings: ExportSettings) -> SqlQuery | None:
    if not settings.sql:
        return None
    return SqlQuery(
        session_of(spark).newSession(),
        settings.sql,
        decoded_schema(settings),
        settings.target.storage,
    )


def make_exporter(
    settings: ExportSettings,
    run: RunTasks,
    parallelism: int | Callable[[], int] = 2,
    query: SqlQuery | None = None,
) -> Exporter:
    """An exporter with its tables open, created if absent."""
    schema = query.schema if query is not None else decoded_schema(settings)
    if settings.route_by:
        return _make_routed(settings, run, schema, parallelism)
    if settings.upsert_key:
        check_key(settings.upsert_key, schema)
    fields = parse_partition_by(settings.partition_by)
    table = open_table(settings.target, schema, fields, evolve=settings.evolve)
    dlq = None
    if settings.format != "raw":
        dlq = open_table(settings.target.dead_letters(settings.dlq), dead_letter_schema())
    landing: Landing = OneTable(settings, table, pause, query)
    if settings.upsert_key:
        landing = UpsertTable(settings, table, pause)
    return Exporter(settings, landing, run, parallelism=parallelism, dlq=dlq)


def _make_routed(
    settings: ExportSettings,
    run: RunTasks,
    schema: pa.Schema,
    parallelism: int | Callable[[], int],
) -> Exporter:
    """Tables of routes are opened as they come."""
    check_route_column(settings.route_by, schema)
    check_partitioning(parse_partition_by(settings.partition_by), schema)
    ledger = open_table(settings.target.of_route(LEDGER), ledger_schema())
    dlq = open_table(settings.target.dead_letters(settings.dlq), dead_letter_schema())
    landing = Routes(settings, ledger, schema, pause)
    return Exporter(settings, landing, run, parallelism=parallelism, dlq=dlq)


def audit_target(
    bootstrap: str,
    topic: str,
    target: Target,
    export_id: str,
    dlq: str,
    *,
    by_key: bool,
    access: Access = _ANONYMOUS,
) -> list[PartitionAudit]:
    """Compare a topic with the table that it was exported to, and with its dead letters."""
    with connect(bootstrap, access) as client:
        view = view_of([client.describe_topic(topic)])[topic]
        key = ExportKey(export_id, topic, view.topic_id, tuple(sorted(view.partitions)))
        routed = target.is_routed
        ledger = open_table(target.of_route(LEDGER) if routed else target, None)
        if ledger.progress(key).upsert_mark:
            raise OptionError(
                f"export {export_id} of topic {topic} is an upsert, whose table has only the last "
                "record of each key: an audit compares every offset"
            )
        tables = _tables_of(target, ledger, key) if routed else [ledger]
        dead = None
        try:
            dead = open_table(target.dead_letters(dlq), None)
        except NoTable:
            if dlq:
                raise
        return audit(client, key, view, ledger, dead, tables=tables, by_key=by_key)


def status_target(
    bootstrap: str, topic: str, target: Target, export_id: str, access: Access = _ANONYMOUS
) -> ExportStatus:
    """How far the table is behind the topic. NoTable, or TableError: it has no such export."""
    with connect(bootstrap, access) as client:
        view = view_of([client.describe_topic(topic)])[topic]
    key = ExportKey(export_id, topic, view.topic_id, tuple(sorted(view.partitions)))
    table = open_table(target.of_route(LEDGER) if target.is_routed else target, None)
    progress = table.progress(key)
    if not progress.epoch:
        raise TableError(f"table {table.location} has no export {export_id!r} of topic {topic}")
    partitions = partition_statuses(progress, view.partitions)
    return ExportStatus(
        export_id, topic, target.table or target.path, target.format, progress.attempt,
        sum(each.lag for each in partitions), partitions,
    )  # fmt: skip


def _tables_of(target: Target, ledger: LakeTable, key: ExportKey) -> list[LakeTable]:
    """The tables of all routes; one that a crash kept from being made has no rows."""
    found = []
    for route in read_state(ledger, key.export_id, key.topic).routes:
        with contextlib.suppress(NoTable):
            found.append(open_table(target.of_route(route), None))
    return found


def is_known(settings: ExportSettings) -> bool:
    """Whether the table, if there is one, was written by this export of this topic."""
    first = settings.target.of_route(LEDGER) if settings.route_by else settings.target
    try:
        key = ExportKey(settings.export_id, settings.topic, 32 * "0", ())
        return open_table(first, None).progress(key).epoch > 0
    except SparkPluginError:
        return False


def all_targets(target: Target) -> list[Target]:
    """The target itself, or every table of a routed one: routes, ledger and dead letters."""
    if not target.is_routed:
        return [target]
    ledger = target.of_route(LEDGER)
    routes = read_state(open_table(ledger, None)).routes
    return [*(target.of_route(route) for route in routes), ledger, target.dead_letters("")]


def replay_target(
    settings: ExportSettings, spark: SparkSession | None = None, evolve: Evolve = "strict"
) -> Replayed:
    """Land the dead letters that decode by now, in this process; only a query needs Spark. The
    partitioning, unless it is given, is the table's. `evolve`: which columns may be made."""
    first = settings.target.of_route(LEDGER) if settings.route_by else settings.target
    table = open_table(first, None)  # NoTable rather than an empty new one
    if table.progress(ExportKey(settings.export_id, settings.topic, 32 * "0", ())).upsert_mark:
        raise OptionError(
            "dead letters of an upsert are not replayed, for a later record of the same key may be "
            "in the table: send the record to the topic again"
        )
    if not settings.partition_by:
        settings = replace(settings, partition_by=_partition_by(settings, table))
    query = None
    if settings.sql:
        assert spark is not None
        query = _query(spark, settings)
        offset_columns(table)
    elif not settings.route_by and META not in table.arrow_schema().names:
        raise OptionError(f"the table {table.location} was made by a query: give it as --sql")
    exporter = make_exporter(settings, _no_tasks, query=query)
    try:
        exporter.start()
        return exporter.replay(evolve)
    finally:
        exporter.close()


def _partition_by(settings: ExportSettings, table: LakeTable) -> str:
    """That of the table, or of the tables of all routes, which have the same."""
    if not settings.route_by:
        return table.partition_by()
    for route in read_state(table, settings.export_id, settings.topic).routes:
        with contextlib.suppress(NoTable):
            return open_table(settings.target.of_route(route), None).partition_by()
    return ""


def _no_tasks(tasks: Sequence[WriteTask]) -> list[TaskResult]:
    raise AssertionError(f"a replay runs no tasks, not {len(tasks)}")
