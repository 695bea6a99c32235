"""Settings of an export, checked as a whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.decoding.decoders import EXPLODING, RecordFormat
from lakemq.spark_plugin.export.job.bounds import parse_bound
from lakemq.spark_plugin.export.routing.rules import ROUTES_MOST, parse_route_by, route_name
from lakemq.spark_plugin.export.tables.target import ROUTE_PLACEHOLDER, Target
from lakemq.spark_plugin.export.upserting.key import parse_key

_EXPORT_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class ExportSettings:
    """One topic into one table."""

    bootstrap: str
    topic: str
    target: Target
    export_id: str
    trigger_s: float | None = None
    """Seconds between looks for new records; None: stop when caught up (available-now)."""
    commit_bytes: int = 512 << 20
    """Journal bytes that one commit takes at most, about."""
    commit_rows: int | None = None
    """Records that one commit takes at most."""
    file_max_bytes: int = 128 << 20
    compact_files: int = 200
    """Small files are put together when there are more than this; 0: never."""
    format: RecordFormat = "raw"
    value_schema: str = ""
    """What values are decoded by: a column list (JSON, CSV), a schema as JSON (Avro), or base64 of
    a FileDescriptorSet (Protobuf)."""
    message: str = ""
    """Full name of the Protobuf message."""
    delimiter: str = ","
    """Between the fields of CSV."""
    evolve: Evolve = "strict"
    """What happens to fields without a column: ignored, or (`add`) made columns; `widen` also makes
    types wider."""
    sql: str = ""
    """A query over the view `records`, whose result lands; empty: the records as decoded."""
    partition_by: str = ""
    """`day(timestamp), device`."""
    upsert_key: str = ""
    """Keep one row for each key, the last one: `key` or columns (see `parse_key`); empty: rows are
    appended."""
    dlq: str = ""
    route_by: str = ""
    """`key`, `header:NAME` or a column, whose value names the table of each record; empty: there is
    one table."""
    route_default: str = ""
    """Route of records whose value names no table; empty: they are dead letters."""
    routes_max: int = 100
    """How many tables there may be."""
    accept_recreated: bool = False
    """Continue with a topic that was deleted and created again since the last commit."""
    fail_on_data_loss: bool = True
    take_over: bool = False
    """Start although another process seems to run this export; that one is fenced."""
    retry_timeout_s: float = 60.0
    access: Access = Access()
    start: str = "earliest"
    """Where a new export begins: `earliest`, `latest`, or offsets (see `parse_bound`)."""
    as_of: str = ""
    """Offsets that the export ends before; empty: it has no end."""

    def __post_init__(self) -> None:
        if self.export_id and not _EXPORT_ID.fullmatch(self.export_id):
            raise OptionError(
                f"export id {self.export_id!r} must be 1 to 128 letters, digits, '.', '_' or '-'"
            )
        if len(self.delimiter) != 1:
            raise OptionError(f"--delimiter is {self.delimiter!r}; it takes one character")
        if self.start not in ("earliest", "latest"):
            parse_bound("--from-offset", self.start)
        if self.as_of:
            parse_bound("--as-of-offset", self.as_of)
        self._check_schema()
        if self.upsert_key:
            _check_upsert(self)
        if self.route_by:
            _check_routing(self)
        elif self.target.is_routed or self.route_default:
            raise OptionError("{route} and --route-default are for exports with --route-by")

    def _check_schema(self) -> None:
        needs_none = self.format in ("raw", "sparkplug")
        if needs_none and self.value_schema:
            raise OptionError(f"--format {self.format} takes no --schema")
        if self.format == "raw" and self.evolve != "strict" and not self.sql:
            raise OptionError("--schema and --evolve are for formats that decode, not for raw")
        if needs_none or self.value_schema:
            return
        if self.format != "json":
            raise OptionError(f"--format {self.format} needs --schema")
        if self.evolve == "strict" or self.sql:
            raise OptionError(
                "--format json needs --schema, such as --schema 'time timestamp, value double', or "
                "--infer, or without --sql --evolve add, which takes the columns from the records"
            )


def _check_upsert(settings: ExportSettings) -> None:
    """OptionError unless the settings of an upsert go together."""
    parse_key(settings.upsert_key)
    if settings.target.format == "parquet":
        raise OptionError("--mode upsert is for --to delta and --to iceberg")
    if settings.format == "raw" or settings.format in EXPLODING:
        raise OptionError(
            f"--mode upsert makes one row of a record's value: not with --format {settings.format}"
        )
    for option, value in (("--sql", settings.sql), ("--route-by", settings.route_by)):
        if value:
            raise OptionError(f"--mode upsert does not go with {option}")


def _check_routing(settings: ExportSettings) -> None:
    """OptionError unless the settings of a routed export go together."""
    target = settings.target
    by = parse_route_by(settings.route_by)
    if not target.is_routed:
        example = "--table lake." if target.format == "iceberg" else "--path lake/"
        raise OptionError(
            f"--route-by needs a place for the route, such as {example}{ROUTE_PLACEHOLDER}"
        )
    if settings.sql:
        raise OptionError(
            "--route-by does not go with --sql: rows of a result do not say which records they "
            "came from, so a crash between the commits of two tables could not be mended. Run an "
            "export for each table, with an --export-id and a query of its own"
        )
    if by.kind == "column" and settings.format in EXPLODING:
        raise OptionError(
            f"--format {settings.format} makes several rows of a record, which stay together: "
            "route by key or header:NAME"
        )
    if not 1 <= settings.routes_max <= ROUTES_MOST:
        raise OptionError(f"--routes-max is {settings.routes_max}; it takes 1 to {ROUTES_MOST}")
    default = settings.route_default
    if default and route_name(default, target.format) != default:
        raise OptionError(f"--route-default is {default!r}, which is not a valid table name")
