"""Options that the commands share, what they mean, and how a command fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lakemq.spark_plugin.errors import OptionError, SparkPluginError
from lakemq.spark_plugin.source.options import nearest

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.target import Target

Topic = Annotated[str, typer.Option(help="Topic to export.", show_default=False)]
To = Annotated[str, typer.Option(help="delta, iceberg or parquet.", show_default=False)]
TablePath = Annotated[str, typer.Option(help="Table folder or URI (delta, parquet).")]
TableName = Annotated[str, typer.Option(help="namespace.table (iceberg).")]
CatalogUri = Annotated[str, typer.Option(help="Iceberg catalog, such as sqlite:////data/cat.db.")]
Warehouse = Annotated[str, typer.Option(help="Folder or URI of the Iceberg catalog's tables.")]
CatalogName = Annotated[str, typer.Option(help="Name of the Iceberg catalog.")]
Bootstrap = Annotated[
    str,
    typer.Option(envvar="LAKEMQ_BOOTSTRAP", help="host:port of a broker's native protocol."),
]
ExportId = Annotated[
    str, typer.Option(help="Name under which the table remembers this export; else the topic.")
]
Dlq = Annotated[str, typer.Option(help="Where bad rows go; else beside the table.")]
Format = Annotated[
    str,
    typer.Option(help="raw: records as they are; json, csv, avro, protobuf, sparkplug: decoded."),
]
Schema = Annotated[
    str,
    typer.Option(
        help="Columns of json or csv, such as 'time timestamp, value double', or a file: with "
        "them, an Avro schema, Protobuf descriptors or a .proto."
    ),
]
Sql = Annotated[
    str,
    typer.Option(help="Spark SQL over the view `records`, or a file with it; its result lands."),
]
Master = Annotated[
    str, typer.Option(help="Spark master, or sc://host:15002; else spark-submit's or local.")
]
Message = Annotated[str, typer.Option(help="Full name of the Protobuf message.")]
Delimiter = Annotated[str, typer.Option(help="Between the fields of csv.")]
PartitionBy = Annotated[
    str, typer.Option(help="day(column), hour(column), month(column) or column, ...")
]
RouteBy = Annotated[
    str,
    typer.Option(help="key, header:NAME or a column: its value takes the place of {route}."),
]
RouteDefault = Annotated[
    str, typer.Option(help="Route of records whose value names no table; else dead letters.")
]
RoutesMax = Annotated[int, typer.Option(min=1, help="Most tables of a routed export.")]
TakeOver = Annotated[
    bool, typer.Option(help="Start although another process seems to run this export.")
]


def required(option: str, value: str) -> str:
    if not value:
        raise OptionError(f"{option} is missing")
    return value


def read_sql(text: str) -> str:
    """The query of `--sql`, or what is in the file of that name."""
    return Path(text).read_text() if text.endswith(".sql") and Path(text).is_file() else text


def choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise OptionError(
            f"{option} is {value!r}; it takes {', '.join(choices)}{nearest(value, choices)}"
        )
    return value


def catalog(name: str, uri: str, warehouse: str) -> dict[str, str]:
    """Properties of an Iceberg catalog; those not given come from pyiceberg's own configuration."""
    properties = {"name": name, "uri": uri, "warehouse": warehouse}
    if uri:
        properties["type"] = "rest" if uri.startswith("http") else "sql"
    return {key: value for key, value in properties.items() if value}


def target(to: str, path: str, table: str, catalog: dict[str, str]) -> Target:
    from lakemq.spark_plugin.export.target import Target

    kind = choice("--to", required("--to", to), ("delta", "iceberg", "parquet"))
    if kind != "iceberg" and ("uri" in catalog or "warehouse" in catalog):
        raise OptionError("--catalog-uri and --warehouse are for --to iceberg")
    return Target(kind, path, table, catalog)  # type: ignore[arg-type]  # kind is checked


def fail(error: Exception) -> NoReturn:
    """One sentence for what a user can act on; the whole trace for a fault of ours."""
    from lakemq.plugins.native.sdk import LakeMQError

    if isinstance(error, SparkPluginError | LakeMQError):
        typer.echo(f"lakemq export: {error}", err=True)
        raise typer.Exit(1) from None
    raise error
