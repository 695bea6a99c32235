"""The columns that an export decodes to, as its table evolves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakemq.spark_plugin.export.decoding.arrow_types import arrow_type
from lakemq.spark_plugin.export.decoding.column_types import Type, parse_schema
from lakemq.spark_plugin.export.decoding.decoders import EXPLODING, open_decoder
from lakemq.spark_plugin.export.decoding.evolution import (
    Columns,
    columns_of_table,
    evolve,
    merge_found,
    schema_text,
)
from lakemq.spark_plugin.export.decoding.rows import with_meta
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import NewFields, TaskResult
from lakemq.spark_plugin.export.job.write_task import schema_to_text
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa


def decoded_schema(settings: ExportSettings) -> pa.Schema:
    """Columns of the rows that an export's records are decoded to: the journal's, or those of the
    decoder and `_meta`."""
    from lakemq.plugins.native.sdk.arrow import arrow_schema

    if settings.format == "raw":
        return arrow_schema()
    decoder = open_decoder(
        settings.format,
        settings.value_schema,
        message=settings.message,
        delimiter=settings.delimiter,
    )
    return with_meta(decoder.schema, parts=settings.format in EXPLODING)


class EvolvingColumns:
    """The columns that tasks write. Only those of JSON change while an export runs."""

    def __init__(self, settings: ExportSettings, table: LakeTable) -> None:
        self._table = table
        self._settings = settings
        self.value_schema = settings.value_schema
        """What tasks decode values by."""
        self._changes = settings.format == "json" and not settings.sql
        self._widen = settings.evolve == "widen"
        self._given: Columns = ()
        if self._changes and settings.value_schema:
            self._given = parse_schema(settings.value_schema)
        self._without = [
            field.name
            for field in parse_partition_by(settings.partition_by)
            if field.transform != "identity"
        ]
        self._looks = self._changes and settings.evolve != "strict"
        self.refresh()

    def refresh(self) -> None:
        """Take the columns that the table has now."""
        settings = self._settings
        if settings.sql:  # tasks write what the query reads, not what the table holds
            self.table_schema = schema_to_text(decoded_schema(settings))
            return
        schema = self._table.arrow_schema()
        self.table_schema = schema_to_text(schema)
        """Arrow schema of data files, as tasks get it."""
        self._columns = self._given
        if self._looks:
            self._columns = columns_of_table(schema, self._given, self._without, widen=self._widen)
            self.value_schema = schema_text(self._columns)

    def extend(self, results: Sequence[TaskResult]) -> bool:
        """Add the columns and types to the table that tasks asked for; False: none."""
        import pyarrow as pa

        found: dict[str, Type] = {}
        found_fields = [each for each in results if isinstance(each, NewFields)]
        # In a fixed order: the columns then come out the same however the tasks were scheduled.
        for each in sorted(found_fields, key=lambda each: (each.partition, each.start)):
            found = merge_found(found, dict(parse_schema(each.columns)))
        if not found:
            return False
        columns = evolve(self._columns, found, widen=self._widen)
        self._table.add_columns(pa.schema([(name, arrow_type(kind)) for name, kind in columns]))
        self.refresh()
        return True
