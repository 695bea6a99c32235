"""A topic as one: the rows that an export has landed in a table, and behind them what only the
journal has yet, each record once.

The table says in the commit of its rows up to which offset it has them (`Progress.offsets`), so
the journal is read from there: no row is in both, and none in neither. pyarrow is optional
(`pip install 'lakemq[spark]'`), so it is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from lakemq.plugins.native.sdk.arrow import COLUMNS
from lakemq.spark_plugin.access import Access, parse_access
from lakemq.spark_plugin.errors import DataLossError, OptionError, TableError
from lakemq.spark_plugin.export.decoding.column_types import META
from lakemq.spark_plugin.export.decoding.decoders import FORMATS, RecordFormat
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable
from lakemq.spark_plugin.export.tables.target import TableFormat, Target
from lakemq.spark_plugin.source.birth_reader import BirthsOf
from lakemq.spark_plugin.source.broker_reader import described, open_client, read_arrow
from lakemq.spark_plugin.source.options import nearest
from lakemq.spark_plugin.source.planning import OffsetRange
from lakemq.spark_plugin.tiered_options import parse_tiered
from lakemq.spark_plugin.union.rows import (
    Values,
    chosen,
    fitted,
    own_columns,
    rows_of_records,
    with_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROWS: Final = 32_768


@dataclass(frozen=True)
class Source:
    """How the broker is reached."""

    bootstrap: str
    access: Access
    options: Mapping[str, str]
    """Of the Spark source, the same access in words."""


def read(
    topic: str,
    *,
    bootstrap: str = "127.0.0.1:9700",
    to: TableFormat = "delta",
    path: str = "",
    table: str = "",
    catalog: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
    export_id: str = "",
    format: RecordFormat = "raw",
    schema: str = "",
    message: str = "",
    delimiter: str = ",",
    columns: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> UnionRead:
    """A topic's history in a table and its newest records in the journal, as one.

    `to`, `path`, `table`, `catalog`, `storage`, `export_id` (default: the topic), `format`,
    `schema`, `message` and `delimiter` as `lakemq export` was given them; `schema` is the table's
    own where it is left out. `columns`: only these. `options`: how to reach the broker (`tls.ca`,
    `token`, ...), as the Spark source has them.

    What is read is fixed now, by `UnionRead.ends`. Raises OptionError, NoTable, TableError (no
    such export has committed there), DataLossError (retention was quicker than the export),
    MissingDependency, and what the SDK raises.
    """
    from lakemq.spark_plugin.export.tables.open_table import open_table

    if format not in FORMATS:
        raise OptionError(f"format {format!r}{nearest(format, FORMATS)}; {', '.join(FORMATS)}")
    target = Target(to, path, table, dict(catalog or {}), dict(storage or {}))
    if target.is_routed:
        raise OptionError("read takes the table of one route, not {route}")
    given = dict(options or {})
    lowered = {name.lower(): value for name, value in given.items()}
    access = replace(parse_access(lowered), tiered=parse_tiered(lowered))
    # Before the topic: what the table has of it is below its high watermarks then.
    opened = open_table(target, None)
    with open_client(bootstrap, access) as client:
        view = described(client, topic)
    name = export_id or topic
    key = ExportKey(name, topic, view.topic_id, tuple(view.partitions))
    progress = opened.progress(key)
    if progress.upsert_mark:
        raise TableError(
            f"export {name} of topic {topic} is an upsert: its table has not all records of the "
            "topic, so the two are not one"
        )
    begins = dict(progress.offsets)
    if not begins:
        raise TableError(f"export {name} of topic {topic} has committed nothing to {path or table}")
    ranges = []
    for number, each in sorted(view.partitions.items()):
        begin = begins.setdefault(number, 0)
        if begin < each.log_start:
            raise DataLossError(
                f"{topic}-{number}: offsets {begin} to {each.log_start - 1} are gone from the "
                f"journal, and export {name} had not reached them"
            )
        ranges.append(
            OffsetRange(topic, view.topic_id, number, begin, max(begin, each.high_watermark))
        )
    values = Values(format, schema, message, delimiter)
    return UnionRead(opened, ranges, values, columns, Source(bootstrap, access, given))


class UnionRead:
    """Made by `lakemq.read`. It has Arrow's PyCapsule interface (`__arrow_c_stream__`): DuckDB,
    Polars, pandas and pyarrow take it as it is, and each of them gets the same rows."""

    def __init__(
        self,
        table: LakeTable,
        ranges: Sequence[OffsetRange],
        values: Values,
        columns: Sequence[str],
        source: Source,
    ) -> None:
        self.topic = ranges[0].topic
        self.begins = {each.partition: each.start for each in ranges}
        """Partition -> offset from which on records come from the journal."""
        self.ends = {each.partition: each.end for each in ranges}
        """Partition -> the first offset that is not read."""
        self.table_version = table.version()
        """The state of the table, as its format calls it."""
        self._table, self._ranges = table, [each for each in ranges if each.start < each.end]
        self._source = source
        self._whole = own_columns(table, values)
        self._values = with_schema(values, self._whole)
        self.schema = chosen(self._whole, columns)

    def reader(self) -> pa.RecordBatchReader:
        """Reads all rows once, those of the table first."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_schema__(self) -> object:
        """Arrow's PyCapsule interface: the schema."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule interface: another stream of the same rows."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        journal = f"{self.begins} to {self.ends}"
        return f"<UnionRead of {self.topic}: {self.table_version}, then offsets {journal}>"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        from pyarrow import compute

        place = "topic" if self._values.format == "raw" else META
        needed = list(dict.fromkeys([*self.schema.names, place]))
        for batch in self._table.scan(needed):
            column = batch.column(place)
            topics = column if place == "topic" else compute.struct_field(column, "topic")
            rows = batch.filter(compute.equal(topics, self.topic))
            if rows.num_rows:
                yield fitted(rows, self.schema)
        to_rows = partial(rows_of_records, self._values, self._whole)
        access = self._source.access
        with open_client(self._source.bootstrap, access) as client:
            for each in self._ranges:
                records = read_arrow(
                    client, each, columns=COLUMNS, batch_rows=_ROWS, tiered=access.tiered
                )
                births = BirthsOf([each], access, client)
                for batch in to_rows(records, births):
                    yield fitted(batch, self.schema)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """The same rows as a DataFrame; executors read the table's files and the broker. TableError
        where rows were deleted from files, which Spark's reader of Parquet would not see."""
        from lakemq.spark_plugin.union.frame import frame_of

        return frame_of(
            spark, self._table, self._ranges, self._values, self.schema, self._whole,
            self._source.bootstrap, self._source.options, self._source.access, self.topic,
        )  # fmt: skip
