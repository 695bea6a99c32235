"""Settings -> an open table of the right format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakemq.spark_plugin.errors import MissingDependency, TableError
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.tables.partitioning import PartitionField, check_partitioning
from lakemq.spark_plugin.export.tables.storage import is_of_store, one_line
from lakemq.spark_plugin.export.tables.table import LakeTable
from lakemq.spark_plugin.export.tables.target import Target

if TYPE_CHECKING:
    import pyarrow as pa


def open_table(
    target: Target,
    schema: pa.Schema | None,
    fields: Sequence[PartitionField] = (),
    *,
    evolve: Evolve = "strict",
) -> LakeTable:
    """The table, created with `schema` and `fields` if absent; without one, NoTable if it is not.
    TableError if its columns differ in a way that `evolve` does not allow.
    MissingDependency names what to install."""
    if schema is not None:
        check_partitioning(fields, schema)
    try:
        if target.format == "delta":
            from lakemq.spark_plugin.export.tables.delta_table import DeltaLakeTable

            return DeltaLakeTable(target.path, schema, fields, evolve, target.storage)
        if target.format == "iceberg":
            from lakemq.spark_plugin.export.tables.iceberg_table import IcebergTable

            return IcebergTable(
                target.table, target.catalog, schema, fields, evolve, target.storage
            )
        from lakemq.spark_plugin.export.tables.parquet_table import ParquetTable

        return ParquetTable(target.path, schema, fields, evolve, target.storage)
    except ImportError as error:
        raise MissingDependency(
            f"{error.name or error} is missing: pip install 'lakemq[spark]'"
        ) from None
    except Exception as error:
        if not is_of_store(error):
            raise
        name = target.table or target.path
        raise TableError(f"{name} can't be opened: {one_line(error)}") from None
