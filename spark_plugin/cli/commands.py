"""The `lakemq export` command. Light to import: Spark and the table formats only when it runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.spark_plugin.access import access_of
from lakemq.spark_plugin.cli import table_commands
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
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.options import parse_duration_s, parse_size

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.job.settings import ExportSettings
    from lakemq.spark_plugin.export.target import Target

export_app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Land a topic in Delta Lake, Iceberg or Parquet, each record exactly once.",
)
dlq_app = typer.Typer(no_args_is_help=True)
export_app.command("audit")(table_commands.audit_table)
export_app.command("vacuum")(table_commands.vacuum_table)
dlq_app.command("replay")(table_commands.replay_dead_letters)

Trigger = Annotated[
    str, typer.Option(help="available-now: up to what is there and stop; 30s: go on for ever.")
]
TopicsPattern = Annotated[
    str, typer.Option(help="All topics that match, also later ones, each into a table of its own.")
]
FromOffset = Annotated[
    str, typer.Option(help="Where a new export begins: earliest, latest, an offset or JSON.")
]
AsOfOffset = Annotated[
    str, typer.Option(help='End before this offset: a number, or {"0": 1000, "1": 40}.')
]
Metrics = Annotated[str, typer.Option(help="host:port of a page with metrics for Prometheus.")]
Infer = Annotated[
    bool, typer.Option("--infer", help="Take the columns of json or csv from the first records.")
]
EvolveOption = Annotated[
    str,
    typer.Option(
        help="Fields without a column: strict leaves them out, add makes columns, widen also lets "
        "types grow."
    ),
]
CommitBytes = Annotated[str, typer.Option(help="Most journal bytes of a commit.")]
CommitRows = Annotated[int, typer.Option(min=0, help="Most records of a commit; 0: any.")]
FileBytes = Annotated[str, typer.Option(help="Size of a data file, about.")]
CompactFiles = Annotated[
    int, typer.Option(min=0, help="Put small files together when there are more; 0: never.")
]
AcceptRecreated = Annotated[
    bool, typer.Option(help="Append a topic that was deleted and created anew.")
]
FailOnDataLoss = Annotated[
    bool, typer.Option(help="Stop when records are gone before they were exported.")
]
RetryTimeout = Annotated[str, typer.Option(help="How long to wait for a lost broker.")]


@dlq_app.callback()
def dead_letters() -> None:
    """Dead letters of exports."""


def commands() -> Iterable[tuple[str, typer.Typer]]:
    """What the front door adds to `lakemq`."""
    return [("export", export_app), ("dlq", dlq_app)]


@export_app.callback()
def export(
    context: typer.Context,
    topic: Topic = "",
    topics_pattern: TopicsPattern = "",
    to: To = "",
    path: TablePath = "",
    table: TableName = "",
    catalog_name: CatalogName = "default",
    catalog_uri: CatalogUri = "",
    warehouse: Warehouse = "",
    bootstrap: Bootstrap = "127.0.0.1:9700",
    trigger: Trigger = "available-now",
    export_id: ExportId = "",
    from_offset: FromOffset = "earliest",
    as_of_offset: AsOfOffset = "",
    format: Format = "raw",
    schema: Schema = "",
    infer: Infer = False,
    message: Message = "",
    delimiter: Delimiter = ",",
    evolve: EvolveOption = "strict",
    sql: Sql = "",
    partition_by: PartitionBy = "",
    route_by: RouteBy = "",
    route_default: RouteDefault = "",
    routes_max: RoutesMax = 100,
    dlq: Dlq = "",
    commit_bytes: CommitBytes = "512MB",
    commit_rows: CommitRows = 0,
    file_bytes: FileBytes = "128MB",
    compact_files: CompactFiles = 200,
    accept_recreated: AcceptRecreated = False,
    fail_on_data_loss: FailOnDataLoss = True,
    take_over: TakeOver = False,
    retry_timeout: RetryTimeout = "60s",
    metrics: Metrics = "",
    master: Master = "",
) -> None:
    """Land a topic in a table, each record exactly once. Run it again to go on."""
    if context.invoked_subcommand is None:
        try:
            _run(_settings(**context.params), context.params)
        except Exception as error:
            fail(error)


def _settings(**given: Any) -> ExportSettings:
    """The command's options, checked."""
    from lakemq.spark_plugin.export.decoding.column_types import EVOLVE
    from lakemq.spark_plugin.export.decoding.decoders import FORMATS
    from lakemq.spark_plugin.export.job.settings import ExportSettings
    from lakemq.spark_plugin.export.routing.topics import check_pattern

    place = catalog(given["catalog_name"], given["catalog_uri"], given["warehouse"])
    if not given["topics_pattern"]:
        required("--topic", given["topic"])
    elif given["topic"]:
        raise OptionError("give --topic or --topics-pattern, not both")
    where = target(given["to"], given["path"], given["table"], place)
    if given["topics_pattern"]:
        check_pattern(given["topics_pattern"], where, routed=bool(given["route_by"]))
    given["format"] = choice("--format", given["format"], FORMATS)
    return ExportSettings(
        bootstrap=given["bootstrap"],
        topic=given["topic"],
        target=where,
        export_id=given["export_id"] or given["topic"],
        access=access_of(os.environ),
        start=given["from_offset"],
        as_of=given["as_of_offset"],
        trigger_s=_trigger(given["trigger"]),
        commit_bytes=parse_size("--commit-bytes", given["commit_bytes"]),
        commit_rows=given["commit_rows"] or None,
        file_max_bytes=parse_size("--file-bytes", given["file_bytes"]),
        compact_files=given["compact_files"],
        format=given["format"],
        value_schema=_schema(given, where),
        message=given["message"],
        delimiter=given["delimiter"],
        evolve=choice("--evolve", given["evolve"], EVOLVE),  # type: ignore[arg-type]  # it is checked
        sql=read_sql(given["sql"]),
        partition_by=given["partition_by"],
        dlq=given["dlq"],
        route_by=given["route_by"],
        route_default=given["route_default"],
        routes_max=given["routes_max"],
        accept_recreated=given["accept_recreated"],
        fail_on_data_loss=given["fail_on_data_loss"],
        take_over=given["take_over"],
        retry_timeout_s=parse_duration_s("--retry-timeout", given["retry_timeout"]),
    )


def _schema(given: dict[str, Any], where: Target) -> str:
    """The text of `--schema`, or what `--infer` finds."""
    from lakemq.spark_plugin.export.decoding.given_schema import infer_schema, read_schema

    if given["infer"] and given["topics_pattern"]:
        raise OptionError("--infer is for one topic; with --topics-pattern give --schema")
    if not given["infer"]:
        return read_schema(given["format"], given["schema"])
    if given["schema"]:
        raise OptionError("give --schema or --infer, not both")
    from lakemq.spark_plugin.source.broker_reader import open_client

    with open_client(given["bootstrap"], access_of(os.environ)) as client:
        return infer_schema(
            client, given["topic"], given["format"], given["delimiter"], where,
            given["partition_by"], bool(given["sql"]),
        )  # fmt: skip


def _trigger(text: str) -> float | None:
    return None if text == "available-now" else parse_duration_s("--trigger", text)


def _run(settings: ExportSettings, given: dict[str, Any]) -> None:
    """Export until caught up, or until Ctrl-C or SIGTERM, which let commits under way finish."""
    from rich.console import Console

    from lakemq.spark_plugin.session import check_installed, open_session, parallelism_of

    check_installed(given["master"] or None)  # the next imports need them

    from opentelemetry.metrics import get_meter

    from lakemq.spark_plugin.export.job.metrics import PREFIX, observe, serve_prometheus
    from lakemq.spark_plugin.export.job.run import is_known, open_exporter
    from lakemq.spark_plugin.export.job.runner import Job
    from lakemq.spark_plugin.progress import ExportProgress, progress_bar

    pattern, console = given["topics_pattern"], Console()
    job = Job(
        settings,
        lambda each: open_exporter(spark, each),
        lambda topic: ExportProgress(topic, console, bar),
        pattern,
        is_known=is_known,
    )
    observe(job.metrics, get_meter(PREFIX))
    if given["metrics"]:
        port = serve_prometheus(job.metrics, given["metrics"])
        console.print(f"metrics at port {port}", highlight=False)
    spark = open_session(f"lakemq export {settings.topic or pattern}", given["master"] or None)
    try:
        job.threads = max(1, min(4, parallelism_of(spark))) if pattern else 1
        _stop_on_signals(job.stop)
        with progress_bar(console) as bar:
            job.run()
    finally:
        spark.stop()


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal ends after the commit under way, the second at once."""

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
