"""Whether a table has the columns and the partitioning that an export writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_plugin.errors import TableError
from spark_plugin.export.partitioning import PartitionField

if TYPE_CHECKING:
    import pyarrow as pa


def check_columns(
    location: str, has: pa.Schema, wanted: pa.Schema, more_columns: bool = False
) -> None:
    """TableError unless the table has exactly the columns that the export writes, by name; with
    `more_columns` it may have further ones."""
    missing = [name for name in wanted.names if name not in has.names]
    surplus = [name for name in has.names if name not in wanted.names and not more_columns]
    if missing or surplus:
        raise TableError(
            f"table {location} was made with other columns: "
            + "; ".join(
                f"{what} {', '.join(names)}"
                for what, names in (("it lacks", missing), ("it also has", surplus))
                if names
            )
        )


def check_partitioned(location: str, has: Sequence[str], wanted: Sequence[PartitionField]) -> None:
    """TableError unless the table is partitioned by the fields, in their order."""
    names = [field.name for field in wanted]
    if list(has) != names:
        raise TableError(
            f"table {location} is partitioned by {', '.join(has) or 'nothing'}, not by "
            f"{', '.join(names) or 'nothing'}: --partition-by has to say what it said when the "
            "table was made"
        )
