"""The columns that an export decodes to, as its table evolves. Edge: changes the table."""

from __future__ import annotations

from collections.abc import Sequence

from spark_plugin.export.decode import JsonDecoder
from spark_plugin.export.evolution import columns_of_table, evolve, merge_found, schema_text
from spark_plugin.export.json_schema import Type, parse_schema
from spark_plugin.export.partitioning import parse_partition_by
from spark_plugin.export.settings import ExportSettings
from spark_plugin.export.table import LakeTable, TaskResult
from spark_plugin.export.write_task import schema_to_text


class EvolvingColumns:
    """What tasks are told of columns. For raw exports the columns never change."""

    def __init__(self, settings: ExportSettings, table: LakeTable) -> None:
        self._table = table
        self._given = parse_schema(settings.json_schema) if settings.json_schema else ()
        self._without = [field.name for field in parse_partition_by(settings.partition_by)
                         if field.transform != "identity"]  # fmt: skip
        self.find_new = settings.evolve == "add"
        """Whether tasks look for fields without a column."""
        self.refresh()

    def refresh(self) -> None:
        """Take the columns that the table has now."""
        schema = self._table.arrow_schema()
        self.table_schema = schema_to_text(schema)
        """Arrow schema of data files, as tasks get it."""
        self._columns = self._given
        if self.find_new:
            self._columns = columns_of_table(schema, self._given, self._without)
        self.json_schema = schema_text(self._columns)
        """Column list to decode values by; empty: records as they are."""

    def decoder(self) -> JsonDecoder:
        return JsonDecoder(self._columns)

    def extend(self, results: Sequence[TaskResult]) -> bool:
        """Give the table columns for the fields that tasks told of; False if they told of none."""
        found: dict[str, Type] = {}
        for result in sorted(results, key=lambda each: (each.partition, each.start)):
            if result.kind == "fields":
                found = merge_found(found, dict(parse_schema(result.file.footer.decode())))
        if not found:
            return False
        self._table.add_columns(JsonDecoder(evolve(self._columns, found)).schema)
        self.refresh()
        return True
