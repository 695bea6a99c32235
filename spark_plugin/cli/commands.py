"""The `lakemq export` command. Light to import: Spark and the table formats only when it runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    is_json,
    option_groups,
    print_json,
    words,
)
from lakemq.spark_plugin.cli import table_commands
from lakemq.spark_plugin.cli.broker_access import access_of
from lakemq.spark_plugin.cli.options import (
    ExportIdOptions,
    Format,
    RecordOptions,
    TableOptions,
    Topic,
    choice,
    export_settings,
    record_format,
    required,
    user_errors,
)
from lakemq.spark_plugin.cli.status_command import export_status
from lakemq.spark_plugin.errors import ExportError, OptionError
from lakemq.spark_plugin.source.options import parse_duration_s, parse_size

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.decoding.decoders import RecordFormat
    from lakemq.spark_plugin.export.job.settings import ExportSettings

export_app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Write a topic to Delta Lake, Iceberg or Parquet, each record exactly once.",
)
dlq_app = typer.Typer(no_args_is_help=True)
export_app.command("audit")(table_commands.audit_table)
export_app.command("status")(export_status)
export_app.command("vacuum")(table_commands.vacuum_table)
dlq_app.command("replay")(table_commands.replay_dead_letters)


@dataclass(frozen=True)
class RunOptions:
    """What to export, and how often to commit."""

    topics_pattern: Annotated[
        str,
        typer.Option(help="All topics that match, also later ones, each to a table of its own."),
    ] = ""
    trigger: Annotated[
        str,
        typer.Option(
            help="available-now: stop when caught up; 30s: run until stopped.",
            autocompletion=words("available-now"),
        ),
    ] = "available-now"
    from_offset: Annotated[
        str,
        typer.Option(
            help="Start of a new export: earliest, latest, an offset or JSON.",
            autocompletion=words("earliest", "latest"),
        ),
    ] = "earliest"
    as_of_offset: Annotated[
        str, typer.Option(help='End before this offset: a number, or {"0": 1000, "1": 40}.')
    ] = ""
    infer: Annotated[
        bool,
        typer.Option("--infer", help="Infer columns of json or csv from the first records."),
    ] = False
    evolve: Annotated[
        str,
        typer.Option(
            help="Fields without a column: strict ignores them, add makes columns, widen also "
            "makes types wider.",
            autocompletion=words("strict", "add", "widen"),
        ),
    ] = "strict"
    mode: Annotated[
        str,
        typer.Option(help="append: a row for each record; upsert: the last one of each --key."),
    ] = "append"
    key: Annotated[
        str,
        typer.Option(help="Of --mode upsert: key (the record's), or columns, such as 'room, day'."),
    ] = ""
    commit_bytes: Annotated[
        str,
        typer.Option(help="Maximum journal bytes of a commit, about; else 512MB, upsert: 64MB."),
    ] = ""
    commit_rows: Annotated[
        int, typer.Option(min=0, metavar="N", help="Maximum records of a commit; 0: unlimited.")
    ] = 0
    file_bytes: Annotated[str, typer.Option(help="Size of a data file, about.")] = "128MB"
    compact_files: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Compact small files when there are more; 0: never."),
    ] = 200
    accept_recreated: Annotated[
        bool,
        typer.Option(
            "--accept-recreated", help="Append a topic that was deleted and created again."
        ),
    ] = False
    skip_lost: Annotated[
        bool,
        typer.Option("--no-fail-on-data-loss", help="Skip what was deleted before the export."),
    ] = False
    retry_timeout: Annotated[
        str, typer.Option(help="How long to retry while the broker is unavailable.")
    ] = "60s"
    metrics: Annotated[
        str, typer.Option(help="HOST:PORT to serve Prometheus metrics and a status page at.")
    ] = ""


@dlq_app.callback()
def dead_letters() -> None:
    """Dead letters of exports."""


def commands() -> Iterable[tuple[str, typer.Typer]]:
    """The commands that this package adds to `lakemq`."""
    return [("export", export_app), ("dlq", dlq_app)]


@export_app.callback()
@option_groups
def export(
    context: typer.Context,
    topic: Topic = "",
    format: Format = "raw",
    *,
    table: TableOptions,
    ids: ExportIdOptions,
    run: RunOptions,
    records: RecordOptions,
    broker: BrokerOptions,
) -> None:
    """Write a topic to a table, each record exactly once. Run it again to continue."""
    if context.invoked_subcommand is None:
        with user_errors():
            settings = _settings(topic, format, table, ids, run, records, broker)
            _run(settings, run, records.master)


def _settings(
    topic: str,
    format: str,
    table: TableOptions,
    ids: ExportIdOptions,
    run: RunOptions,
    records: RecordOptions,
    broker: BrokerOptions,
) -> ExportSettings:
    """The command's options, checked."""
    from lakemq.spark_plugin.export.decoding.column_types import EVOLVE
    from lakemq.spark_plugin.export.routing.topics import check_pattern

    kind = record_format(format)
    if not run.topics_pattern:
        required("--topic", topic)
    elif topic:
        raise OptionError("give --topic or --topics-pattern, not both")
    if run.topics_pattern:
        check_pattern(run.topics_pattern, table.target(), routed=bool(records.route_by))
    return export_settings(
        topic,
        kind,
        table,
        ids,
        records,
        broker,
        start=run.from_offset,
        as_of=run.as_of_offset,
        trigger_s=_trigger(run.trigger),
        upsert_key=_upsert_key(run),
        commit_bytes=_commit_bytes(run),
        commit_rows=run.commit_rows or None,
        file_max_bytes=parse_size("--file-bytes", run.file_bytes),
        compact_files=run.compact_files,
        value_schema=_schema(topic, kind, table, run, records, broker),
        evolve=choice("--evolve", run.evolve, EVOLVE),
        accept_recreated=run.accept_recreated,
        fail_on_data_loss=not run.skip_lost,
        retry_timeout_s=parse_duration_s("--retry-timeout", run.retry_timeout),
    )


def _schema(
    topic: str,
    format: RecordFormat,
    table: TableOptions,
    run: RunOptions,
    records: RecordOptions,
    broker: BrokerOptions,
) -> str:
    """The text of `--schema`, or what `--infer` finds."""
    from lakemq.spark_plugin.export.decoding.given_schema import infer_schema, read_schema

    if run.infer and run.topics_pattern:
        raise OptionError("--infer is for one topic; with --topics-pattern give --schema")
    if not run.infer:
        return read_schema(format, records.schema)
    if records.schema:
        raise OptionError("give --schema or --infer, not both")
    from lakemq.spark_plugin.source.broker_reader import open_client

    with open_client(broker.bootstrap, access_of(broker)) as client:
        return infer_schema(
            client,
            topic,
            format,
            records.delimiter,
            table.target(),
            records.partition_by,
            bool(records.sql),
        )


def _upsert_key(run: RunOptions) -> str:
    """The key of an upsert; empty: rows are appended."""
    mode = choice("--mode", run.mode, ("append", "upsert"))
    if mode == "append" and run.key:
        raise OptionError("--key is for --mode upsert")
    if mode == "upsert" and not run.key:
        raise OptionError(
            "--mode upsert needs --key: key (the record's key), or columns, such as 'room, day'"
        )
    return run.key


def _commit_bytes(run: RunOptions) -> int:
    """What one commit takes; the driver holds that of an upsert in memory."""
    default = "512MB" if run.mode == "append" else "64MB"
    return parse_size("--commit-bytes", run.commit_bytes or default)


def _trigger(text: str) -> float | None:
    return None if text == "available-now" else parse_duration_s("--trigger", text)


def _run(settings: ExportSettings, run: RunOptions, master: str) -> None:
    """Export until caught up, or until Ctrl-C or SIGTERM, which let running commits finish."""
    from rich.console import Console

    from lakemq.spark_plugin.session import check_installed, open_spark, parallelism_of

    check_installed(master or None)  # the next imports need them

    from opentelemetry.metrics import get_meter

    from lakemq.spark_plugin.broker_reports import BrokerReports
    from lakemq.spark_plugin.export.job.metrics import PREFIX, observe
    from lakemq.spark_plugin.export.job.run import is_known, open_exporter
    from lakemq.spark_plugin.export.job.runner import Job
    from lakemq.spark_plugin.lazy_session import LazySpark
    from lakemq.spark_plugin.progress import ExportProgress, progress_bar, starting_spark
    from lakemq.spark_plugin.service.server import serve

    pattern, console = run.topics_pattern, Console(stderr=is_json())
    shown: list[ExportProgress] = []

    def progress_of(topic: str) -> ExportProgress:
        shown.append(ExportProgress(topic, console, bar))
        return shown[-1]

    job = Job(
        settings,
        lambda each: open_exporter(spark, each),
        progress_of,
        pattern,
        is_known=is_known,
        tell=BrokerReports().committed,
    )
    observe(job.metrics, get_meter(PREFIX))
    if run.metrics:
        port = serve(job.metrics, run.metrics)
        console.print(f"status and metrics at port {port}", highlight=False)
    bar = progress_bar(console)
    name = f"lakemq export {settings.topic or pattern}"
    spark = LazySpark(
        lambda: open_spark(name, master or None, sql=bool(settings.sql)),
        lambda: starting_spark(console, bar),
        job.stop,
    )
    _stop_on_signals(job.stop)
    try:
        with bar:
            # Each thread of an export of many topics is a Spark job of its own.
            job.threads = max(1, min(4, parallelism_of(spark.get()))) if pattern else 1
            job.run()
    except ExportError:
        if not job.stop.is_set() or job.metrics:
            raise
    finally:
        spark.close()
        if is_json():
            print_json([each.totals() for each in shown])


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal stops after the running commit, the second at once."""

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
