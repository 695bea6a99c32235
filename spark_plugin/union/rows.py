"""The rows of a union: the table's columns, also of records that only the journal has. pyarrow is
optional, so it is imported inside the functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakemq.plugins.native.sdk.arrow import COLUMNS
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.arrow_types import type_of_arrow
from lakemq.spark_plugin.export.decoding.column_types import META
from lakemq.spark_plugin.export.decoding.decoder import decode_batch
from lakemq.spark_plugin.export.decoding.decoders import EXPLODING, RecordFormat, open_decoder
from lakemq.spark_plugin.export.decoding.evolution import schema_text
from lakemq.spark_plugin.export.decoding.rows import with_meta_column
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.table import LakeTable
from lakemq.spark_plugin.source.options import nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.spark_plugin.export.decoding.sparkplug_values import FindBirths


@dataclass(frozen=True)
class Values:
    """How the journal's values become the table's columns, as the export was told."""

    format: RecordFormat = "raw"
    schema: str = ""
    message: str = ""
    delimiter: str = ","


def own_columns(table: LakeTable, values: Values) -> pa.Schema:
    """The table's columns without those that are only there to partition it by. OptionError where
    the table holds something else than `values` says."""
    import pyarrow as pa

    derived = {
        each.name for each in parse_partition_by(table.partition_by())
        if each.transform != "identity"
    }  # fmt: skip
    fields = [each.remove_metadata() for each in table.full_schema() if each.name not in derived]
    names = [each.name for each in fields]
    if values.format == "raw" and set(names) != set(COLUMNS):
        raise OptionError(
            f"table {table.location} has not the columns of an export of raw records: give the "
            "format that it was made with"
        )
    if values.format != "raw" and META not in names:
        raise OptionError(
            f"table {table.location} has no {META}: no {values.format} export made it"
        )
    return pa.schema(fields)


def with_schema(values: Values, whole: pa.Schema) -> Values:
    """With the table's own columns where the user named none."""
    if values.schema or values.format not in ("json", "csv"):
        return values
    kinds = [(each.name, type_of_arrow(each.type)) for each in whole if each.name != META]
    known = [(name, kind) for name, kind in kinds if kind is not None]
    return Values(values.format, schema_text(known), values.message, values.delimiter)


def chosen(whole: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Those columns, all if none are named. OptionError for one that there is not."""
    import pyarrow as pa

    for name in columns:
        if name not in whole.names:
            near = nearest(name, tuple(whole.names))
            raise OptionError(f"columns: {name!r}{near}; there are {', '.join(whole.names)}")
    return pa.schema([whole.field(name) for name in columns]) if columns else whole


def rows_of_records(
    values: Values,
    whole: pa.Schema,
    records: Iterable[pa.RecordBatch],
    find_births: FindBirths | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of one partition with the journal's columns -> the table's. What can't be decoded is
    left out, as an export leaves it to the dead letters. `find_births`: for Sparkplug B."""
    if values.format == "raw":
        yield from records
        return
    decoder = open_decoder(
        values.format, values.schema, message=values.message, delimiter=values.delimiter,
        find_births=find_births,
    )  # fmt: skip
    for batch in records:
        decoded = decode_batch(decoder, batch)
        table = with_meta_column(decoded, batch, values.format in EXPLODING)
        for rows in table.to_batches():
            yield fitted(rows, whole)


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, null where there is none of that name."""
    import pyarrow as pa

    def column(field: pa.Field) -> Any:
        at = rows.schema.get_field_index(field.name)
        return pa.nulls(rows.num_rows, field.type) if at < 0 else rows.column(at).cast(field.type)

    return pa.RecordBatch.from_arrays([column(each) for each in schema], schema=schema)
