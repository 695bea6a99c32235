"""Settings -> an open table of the right format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_plugin.errors import MissingDependency
from spark_plugin.export.column_types import Evolve
from spark_plugin.export.partitioning import PartitionField, check_partitioning
from spark_plugin.export.table import LakeTable
from spark_plugin.export.target import Target

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
            from spark_plugin.export.delta_table import DeltaLakeTable

            return DeltaLakeTable(target.path, schema, fields, evolve)
        if target.format == "iceberg":
            from spark_plugin.export.iceberg_table import IcebergTable

            return IcebergTable(target.table, target.catalog, schema, fields, evolve)
        from spark_plugin.export.parquet_table import ParquetTable

        return ParquetTable(target.path, schema, fields, evolve)
    except ImportError as error:
        raise MissingDependency(
            f"{error.name or error} is missing: pip install 'lakemq[spark]'"
        ) from None
