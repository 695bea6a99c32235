"""Commands on tables that exports wrote: audit, vacuum, replay of dead letters. Only a replay
through a query needs Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.spark_plugin.access import access_of
from lakemq.spark_plugin.cli.options import (
    Bootstrap,
    CatalogName,
    CatalogUri,
    Delimiter,
    Dlq,
    ExportId,
    Format,
    Master,
    Message,
    PartitionBy,
    RouteBy,
    RouteDefault,
    RoutesMax,
    Schema,
    Sql,
    TableName,
    TablePath,
    TakeOver,
    To,
    Topic,
    Warehouse,
    catalog,
    choice,
    fail,
    read_sql,
    required,
    target,
)
from lakemq.spark_plugin.source.options import parse_duration_s

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.decoding.column_types import Evolve
    from lakemq.spark_plugin.export.job.settings import ExportSettings
    from lakemq.spark_plugin.export.maintenance.replay import Replayed


ReplayEvolve = Annotated[
    str,
    typer.Option(
        help="Fields without a column: strict leaves them out; add makes columns (json); widen "
        "also lets types grow."
    ),
]


def audit_table(
    topic: Topic = "",
    to: To = "",
    path: TablePath = "",
    table: TableName = "",
    catalog_name: CatalogName = "default",
    catalog_uri: CatalogUri = "",
    warehouse: Warehouse = "",
    bootstrap: Bootstrap = "127.0.0.1:9700",
    export_id: ExportId = "",
    dlq: Dlq = "",
    keys: Annotated[bool, typer.Option("--keys", help="Compare counts of every key too.")] = False,
) -> None:
    """Compare journal and table offset by offset. Exit code 1 if a record is missing or twice."""
    try:
        from lakemq.spark_plugin.export.job.run import audit_target
        from lakemq.spark_plugin.export.maintenance.audit import all_complete

        where = target(to, path, table, catalog(catalog_name, catalog_uri, warehouse))
        topic = required("--topic", topic)
        found = audit_target(
            bootstrap,
            topic,
            where,
            export_id or topic,
            dlq,
            by_key=keys,
            access=access_of(os.environ),
        )
        for each in found:
            typer.echo(each.sentence(topic))
        if not all_complete(found):
            raise typer.Exit(1)
    except typer.Exit:
        raise
    except Exception as error:
        fail(error)


def vacuum_table(
    to: To = "",
    path: TablePath = "",
    table: TableName = "",
    catalog_name: CatalogName = "default",
    catalog_uri: CatalogUri = "",
    warehouse: Warehouse = "",
    retention: Annotated[
        str,
        typer.Option(
            help="Younger files stay: commits under way and readers need them. At least 1ms."
        ),
    ] = "7d",
) -> None:
    """Expire old states of a table, and delete data files that no state names."""
    try:
        from lakemq.spark_plugin.export.job.run import all_targets
        from lakemq.spark_plugin.export.maintenance.vacuum import vacuum
        from lakemq.spark_plugin.export.tables.open_table import open_table

        where = target(to, path, table, catalog(catalog_name, catalog_uri, warehouse))
        retention_s = parse_duration_s("--retention", retention)
        done = [vacuum(open_table(each, None), retention_s) for each in all_targets(where)]
        expired, deleted = sum(each.expired for each in done), sum(each.deleted for each in done)
        typer.echo(f"{expired:,} states expired, {deleted:,} files deleted")
    except Exception as error:
        fail(error)


def replay_dead_letters(
    topic: Topic = "",
    to: To = "",
    path: TablePath = "",
    table: TableName = "",
    catalog_name: CatalogName = "default",
    catalog_uri: CatalogUri = "",
    warehouse: Warehouse = "",
    bootstrap: Bootstrap = "127.0.0.1:9700",
    export_id: ExportId = "",
    format: Format = "json",
    schema: Schema = "",
    message: Message = "",
    delimiter: Delimiter = ",",
    sql: Sql = "",
    partition_by: PartitionBy = "",
    route_by: RouteBy = "",
    route_default: RouteDefault = "",
    routes_max: RoutesMax = 100,
    evolve: ReplayEvolve = "strict",
    dlq: Dlq = "",
    take_over: TakeOver = False,
    master: Master = "",
) -> None:
    """Land the dead letters of an export that decode by now, each once. The table says how it is
    partitioned."""
    try:
        from lakemq.spark_plugin.export.decoding.column_types import EVOLVE
        from lakemq.spark_plugin.export.decoding.decoders import FORMATS
        from lakemq.spark_plugin.export.decoding.given_schema import read_schema
        from lakemq.spark_plugin.export.job.settings import ExportSettings

        changes = choice("--evolve", evolve, EVOLVE)
        opens = "add" if changes == "strict" else changes  # it may have more than --schema names
        settings = ExportSettings(
            bootstrap=bootstrap,
            topic=required("--topic", topic),
            target=target(to, path, table, catalog(catalog_name, catalog_uri, warehouse)),
            export_id=export_id or topic,
            format=choice("--format", format, FORMATS),  # type: ignore[arg-type]  # it is checked
            value_schema=read_schema(format, schema),  # type: ignore[arg-type]  # as above
            message=message,
            delimiter=delimiter,
            evolve="strict" if format == "raw" else opens,  # type: ignore[arg-type]  # as above
            sql=read_sql(sql),
            partition_by=partition_by,
            dlq=dlq,
            route_by=route_by,
            route_default=route_default,
            routes_max=routes_max,
            access=access_of(os.environ),
            take_over=take_over,
        )
        done = _replayed(settings, changes, master)  # type: ignore[arg-type]  # as above
        left_out = f", {done.left_out:,} are left out by the query" if done.left_out else ""
        typer.echo(
            f"{topic}: {done.landed:,} dead letters landed, {done.before:,} had landed before, "
            f"{done.still_bad:,} still do not decode{left_out}"
        )
    except Exception as error:
        fail(error)


def _replayed(settings: ExportSettings, evolve: Evolve, master: str) -> Replayed:
    from lakemq.spark_plugin.export.job.run import replay_target
    from lakemq.spark_plugin.session import open_session

    if not settings.sql:
        return replay_target(settings, evolve=evolve)
    spark = open_session(f"lakemq dlq replay {settings.topic}", master or None)
    try:
        return replay_target(settings, spark)
    finally:
        spark.stop()
