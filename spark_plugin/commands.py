"""The `lakemq export` command. Light to import: Spark and the table formats only when it runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from spark_plugin.errors import OptionError, SparkPluginError
from spark_plugin.options import nearest, parse_duration_s, parse_size

if TYPE_CHECKING:
    from spark_plugin.export.exporter import Exporter
    from spark_plugin.export.settings import ExportSettings, Target
    from spark_plugin.progress import ExportProgress

export_app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Land a topic in Delta Lake, Iceberg or Parquet, each record exactly once.",
)


def commands() -> Iterable[tuple[str, typer.Typer]]:
    """What the front door adds to `lakemq`."""
    return [("export", export_app)]


Topic = Annotated[str, typer.Option(help="Topic to export.", show_default=False)]
To = Annotated[str, typer.Option(help="delta, iceberg or parquet.", show_default=False)]
Path_ = Annotated[str, typer.Option(help="Table folder or URI (delta, parquet).")]
Table_ = Annotated[str, typer.Option(help="namespace.table (iceberg).")]
CatalogUri = Annotated[str, typer.Option(help="Iceberg catalog, such as sqlite:////data/cat.db.")]
Warehouse = Annotated[str, typer.Option(help="Folder or URI of the Iceberg catalog's tables.")]
CatalogName = Annotated[str, typer.Option(help="Name of the Iceberg catalog.")]
Bootstrap = Annotated[str, typer.Option(help="host:port of a broker's native protocol.")]
Trigger = Annotated[
    str, typer.Option(help="available-now: up to what is there and stop; 30s: go on for ever.")
]
ExportId = Annotated[
    str, typer.Option(help="Name under which the table remembers this export; else the topic.")
]


@export_app.callback()
def export(
    context: typer.Context,
    topic: Topic = "",
    to: To = "",
    path: Path_ = "",
    table: Table_ = "",
    catalog_name: CatalogName = "default",
    catalog_uri: CatalogUri = "",
    warehouse: Warehouse = "",
    bootstrap: Bootstrap = "127.0.0.1:9700",
    trigger: Trigger = "available-now",
    export_id: ExportId = "",
    format: Annotated[str, typer.Option(help="raw: records as they are; json: decoded.")] = "raw",
    schema: Annotated[
        str, typer.Option(help="Columns of json, such as 'time timestamp, value double'.")
    ] = "",
    dlq: Annotated[str, typer.Option(help="Where bad rows go; else beside the table.")] = "",
    commit_bytes: Annotated[str, typer.Option(help="Most journal bytes of a commit.")] = "512MB",
    commit_rows: Annotated[int, typer.Option(min=0, help="Most records of a commit; 0: any.")] = 0,
    file_bytes: Annotated[str, typer.Option(help="Size of a data file, about.")] = "128MB",
    compact_files: Annotated[
        int, typer.Option(min=0, help="Put small files together when there are more; 0: never.")
    ] = 200,
    accept_recreated: Annotated[
        bool, typer.Option(help="Append a topic that was deleted and created anew.")
    ] = False,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="Stop when records are gone before they were exported.")
    ] = True,
    take_over: Annotated[
        bool, typer.Option(help="Start although another process seems to run this export.")
    ] = False,
    retry_timeout: Annotated[str, typer.Option(help="How long to wait for a lost broker.")] = "60s",
    master: Annotated[str, typer.Option(help="Spark master; else spark-submit's or local.")] = "",
) -> None:
    """Land a topic in a table, each record exactly once. Run it again to go on."""
    if context.invoked_subcommand is not None:
        return
    try:
        from spark_plugin.export.settings import ExportSettings

        settings = ExportSettings(
            bootstrap=bootstrap,
            topic=_required("--topic", topic),
            target=_target(to, path, table, _catalog(catalog_name, catalog_uri, warehouse)),
            export_id=export_id or topic,
            trigger_s=_trigger(trigger),
            commit_bytes=parse_size("--commit-bytes", commit_bytes),
            commit_rows=commit_rows or None,
            file_bytes_max=parse_size("--file-bytes", file_bytes),
            compact_files=compact_files,
            format=_choice("--format", format, ("raw", "json")),  # type: ignore[arg-type]  # checked
            json_schema=schema,
            dlq=dlq,
            accept_recreated=accept_recreated,
            fail_on_data_loss=fail_on_data_loss,
            take_over=take_over,
            retry_timeout_s=parse_duration_s("--retry-timeout", retry_timeout),
        )
        _run(settings, master or None)
    except Exception as error:
        _fail(error)


@export_app.command("audit")
def audit_table(
    topic: Topic = "",
    to: To = "",
    path: Path_ = "",
    table: Table_ = "",
    catalog_name: CatalogName = "default",
    catalog_uri: CatalogUri = "",
    warehouse: Warehouse = "",
    bootstrap: Bootstrap = "127.0.0.1:9700",
    export_id: ExportId = "",
    dlq: Annotated[str, typer.Option(help="Where bad rows went; else beside the table.")] = "",
    keys: Annotated[bool, typer.Option("--keys", help="Compare counts of every key too.")] = False,
) -> None:
    """Compare journal and table offset by offset. Exit code 1 if a record is missing or twice."""
    try:
        from spark_plugin.export.audit import all_complete
        from spark_plugin.export.run import audit_target

        target = _target(to, path, table, _catalog(catalog_name, catalog_uri, warehouse))
        topic = _required("--topic", topic)
        found = audit_target(bootstrap, topic, target, export_id or topic, dlq, by_key=keys)
        for each in found:
            typer.echo(each.sentence(topic))
        if not all_complete(found):
            raise typer.Exit(1)
    except typer.Exit:
        raise
    except Exception as error:
        _fail(error)


def _required(option: str, value: str) -> str:
    if not value:
        raise OptionError(f"{option} is missing")
    return value


def _choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise OptionError(
            f"{option} is {value!r}; it takes {', '.join(choices)}{nearest(value, choices)}"
        )
    return value


def _trigger(text: str) -> float | None:
    return None if text == "available-now" else parse_duration_s("--trigger", text)


def _catalog(name: str, uri: str, warehouse: str) -> dict[str, str]:
    """Properties of an Iceberg catalog; those not given come from pyiceberg's own configuration."""
    properties = {"name": name, "uri": uri, "warehouse": warehouse}
    if uri:
        properties["type"] = "rest" if uri.startswith("http") else "sql"
    return {key: value for key, value in properties.items() if value}


def _target(to: str, path: str, table: str, catalog: dict[str, str]) -> Target:
    from spark_plugin.export.settings import Target

    kind = _choice("--to", _required("--to", to), ("delta", "iceberg", "parquet"))
    if kind != "iceberg" and ("uri" in catalog or "warehouse" in catalog):
        raise OptionError("--catalog-uri and --warehouse are for --to iceberg")
    return Target(kind, path, table, catalog)  # type: ignore[arg-type]  # kind is checked


def _run(settings: ExportSettings, master: str | None) -> None:
    """Export until caught up, or until Ctrl-C or SIGTERM, which let the commit under way finish."""
    from rich.console import Console

    from spark_plugin.session import check_installed, open_session

    check_installed()  # the next imports need them

    from spark_plugin.export.run import open_exporter
    from spark_plugin.progress import ExportProgress

    stop = threading.Event()
    spark = open_session(f"lakemq export {settings.topic}", master)
    try:
        exporter = open_exporter(spark, settings)
        _stop_on_signals(stop)
        console = Console()
        try:
            for name in exporter.start():
                console.print(f"{settings.topic}: deleted what attempt {name} left behind")
            with ExportProgress(settings.topic, console) as progress:
                _loop(exporter, settings, progress, stop)
        finally:
            exporter.close()
    finally:
        spark.stop()


def _loop(
    exporter: Exporter, settings: ExportSettings, progress: ExportProgress, stop: threading.Event
) -> None:
    while not stop.is_set():
        report = exporter.step()
        if report is not None:
            progress.committed(report)
            if compacted := exporter.compact():
                progress.compacted(compacted)
        elif settings.trigger_s is None:
            progress.finished()
            return
        if settings.trigger_s is not None and (report is None or not report.more):
            stop.wait(settings.trigger_s)


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal ends after the commit under way, the second at once."""

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def _fail(error: Exception) -> NoReturn:
    """One sentence for what a user can act on; the whole trace for a fault of ours."""
    from plugins.native.sdk import LakeMQError

    if isinstance(error, SparkPluginError | LakeMQError):
        typer.echo(f"lakemq export: {error}", err=True)
        raise typer.Exit(1) from None
    raise error
