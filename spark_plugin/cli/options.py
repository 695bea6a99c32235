"""Groups of options that the export commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from lakemq.broker_core.api.command_line import BrokerOptions, fail, words
from lakemq.spark_plugin.cli.broker_access import access_of
from lakemq.spark_plugin.cli.completion import topic_names
from lakemq.spark_plugin.errors import OptionError, SparkPluginError, TableError
from lakemq.spark_plugin.source.options import nearest

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.decoding.decoders import RecordFormat
    from lakemq.spark_plugin.export.job.settings import ExportSettings
    from lakemq.spark_plugin.export.tables.target import Target

T = TypeVar("T", bound=str)
Topic = Annotated[
    str, typer.Option(help="Topic to export.", show_default=False, autocompletion=topic_names)
]
Format = Annotated[
    str,
    typer.Option(
        help="raw: records as stored; json, csv, avro, protobuf, sparkplug: values decoded.",
        autocompletion=words("raw", "json", "csv", "avro", "protobuf", "sparkplug"),
    ),
]


@dataclass(frozen=True)
class TableOptions:
    """Which table."""

    to: Annotated[
        str,
        typer.Option(
            help="delta, iceberg or parquet.",
            show_default=False,
            autocompletion=words("delta", "iceberg", "parquet"),
        ),
    ] = ""
    path: Annotated[str, typer.Option(help="Table folder or URI (delta, parquet).")] = ""
    table: Annotated[str, typer.Option(help="namespace.table (iceberg).")] = ""
    catalog_name: Annotated[str, typer.Option(help="Name of the Iceberg catalog.")] = "default"
    catalog_uri: Annotated[
        str, typer.Option(help="Iceberg catalog, such as sqlite:////data/cat.db.")
    ] = ""
    warehouse: Annotated[
        str, typer.Option(help="Folder or URI of the Iceberg catalog's tables.")
    ] = ""

    catalog_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VAL",
            help="Property of the Iceberg catalog, such as type=glue; may be repeated.",
        ),
    ] = None
    storage_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VAL",
            help="Option of the object store, such as endpoint=http://host:9000; may be repeated. "
            "Secrets are better in AWS_SECRET_ACCESS_KEY and the like.",
        ),
    ] = None

    def target(self) -> Target:
        """The table. OptionError if the options do not fit together."""
        from lakemq.spark_plugin.export.tables.target import TableFormat, Target

        kind: TableFormat = choice("--to", required("--to", self.to), get_args(TableFormat))
        if kind != "iceberg" and (self.catalog_uri or self.warehouse or self.catalog_property):
            raise OptionError(
                "--catalog-uri, --warehouse and --catalog-property are for --to iceberg"
            )
        return Target(
            kind,
            self.path,
            self.table,
            self._catalog(),
            pairs("--storage-option", self.storage_option or ()),
        )

    def _catalog(self) -> dict[str, str]:
        """Properties of the Iceberg catalog; the others come from pyiceberg's configuration."""
        properties = {
            "name": self.catalog_name,
            "uri": self.catalog_uri,
            "warehouse": self.warehouse,
        }
        if self.catalog_uri:
            properties["type"] = "rest" if self.catalog_uri.startswith("http") else "sql"
        given = pairs("--catalog-property", self.catalog_property or ())
        return {key: value for key, value in properties.items() if value} | given


@dataclass(frozen=True)
class ExportIdOptions:
    """Which export, and where its dead letters are."""

    export_id: Annotated[
        str,
        typer.Option(help="Name of the export in the table; else the topic."),
    ] = ""
    dlq: Annotated[
        str, typer.Option(help="Dead-letter table: path or name; else one beside the table.")
    ] = ""


@dataclass(frozen=True)
class RecordOptions:
    """How records become rows of which tables."""

    schema: Annotated[
        str,
        typer.Option(
            help="Columns of json or csv, such as 'time timestamp, value double', or a file: with "
            "them, an Avro schema, Protobuf descriptors or a .proto."
        ),
    ] = ""
    message: Annotated[str, typer.Option(help="Full name of the Protobuf message.")] = ""
    delimiter: Annotated[str, typer.Option(help="Field delimiter of csv.")] = ","
    sql: Annotated[
        str,
        typer.Option(help="Spark SQL over the view `records`, or a file; its result is written."),
    ] = ""
    partition_by: Annotated[
        str, typer.Option(help="day(column), hour(column), month(column) or column, ...")
    ] = ""
    route_by: Annotated[
        str,
        typer.Option(help="key, header:NAME or a column: its value takes the place of {route}."),
    ] = ""
    route_default: Annotated[
        str, typer.Option(help="Route of records whose value names no table; else dead letters.")
    ] = ""
    routes_max: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of tables of a routed export.")
    ] = 100
    take_over: Annotated[
        bool, typer.Option(help="Start although another process seems to run this export.")
    ] = False
    master: Annotated[
        str, typer.Option(help="Spark master, or sc://host:15002; else spark-submit's or local.")
    ] = ""


def export_settings(
    topic: str,
    format: RecordFormat,
    table: TableOptions,
    ids: ExportIdOptions,
    records: RecordOptions,
    broker: BrokerOptions,
    **more: Any,
) -> ExportSettings:
    """Settings out of the groups; `more`: what one command alone has."""
    from lakemq.spark_plugin.export.job.settings import ExportSettings

    target = table.target()
    return ExportSettings(
        bootstrap=broker.bootstrap,
        topic=topic,
        target=target,
        export_id=ids.export_id or topic,
        dlq=ids.dlq,
        access=replace(access_of(broker), storage=tuple(target.storage.items())),
        format=format,
        message=records.message,
        delimiter=records.delimiter,
        sql=read_sql(records.sql),
        partition_by=records.partition_by,
        route_by=records.route_by,
        route_default=records.route_default,
        routes_max=records.routes_max,
        take_over=records.take_over,
        **more,
    )


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE options as a dict. OptionError, which does not repeat values."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(f"{option} takes NAME=VALUE" + (f", not {name!r}" if name else ""))
        if name in found:
            raise OptionError(f"{option} {name} is given twice")
        found[name] = value
    return found


def required(option: str, value: str) -> str:
    """The value. OptionError if it is empty."""
    if not value:
        raise OptionError(f"{option} is missing")
    return value


def read_sql(text: str) -> str:
    """The query of `--sql`, or the content of the file of that name."""
    return Path(text).read_text() if text.endswith(".sql") and Path(text).is_file() else text


def record_format(value: str) -> RecordFormat:
    """The value of `--format`. OptionError if there is no such format."""
    from lakemq.spark_plugin.export.decoding.decoders import FORMATS

    found: RecordFormat = choice("--format", value, FORMATS)
    return found


def choice(option: str, value: str, choices: tuple[T, ...]) -> T:
    """The choice that the value names. OptionError if it is none of them."""
    for each in choices:
        if each == value:
            return each
    raise OptionError(
        f"{option} is {value!r}; it takes {', '.join(choices)}{nearest(value, choices)}"
    )


@contextmanager
def user_errors() -> Iterator[None]:
    """What a user can act on becomes one line; a fault of ours keeps its traceback."""
    try:
        yield
    except Exception as error:
        from lakemq.plugins.native.sdk import LakeMQError

        if isinstance(error, SparkPluginError | LakeMQError):
            fail(error)
        from lakemq.spark_plugin.export.tables.storage import is_of_store, one_line

        if is_of_store(error):
            fail(TableError(f"the table's store or catalog: {one_line(error)}"))
        raise
