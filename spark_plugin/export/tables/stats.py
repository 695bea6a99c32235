"""Parquet footers -> the statistics that table formats keep for skipping files."""

from __future__ import annotations

import datetime
import io
from typing import TYPE_CHECKING, Any

from lakemq.spark_plugin.export.tables.table import WrittenFile

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData


def read_footer(file: WrittenFile) -> FileMetaData:
    """The footer of a written file, out of what its writer sent."""
    from pyarrow import parquet

    return parquet.read_metadata(io.BytesIO(file.footer))


def delta_stats(file: WrittenFile) -> dict[str, Any]:
    """Delta's `stats` of an add action: record count, and min, max and null count of whole numbers,
    times and booleans (Delta protocol, "Per-file Statistics"). Text is omitted: its bounds
    would need cutting, and offsets and times are what files are skipped by.
    """
    footer = read_footer(file)
    bounds: dict[str, tuple[Any, Any, int]] = {}
    for index in range(footer.num_columns):
        path = footer.schema.column(index).path
        bound = _column_bounds(footer, index)
        if bound is not None and ".list." not in path:
            bounds[path] = bound
    stats: dict[str, Any] = {
        "numRecords": footer.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    for path, (low, high, nulls) in bounds.items():
        _put(stats["nullCount"], path, nulls)
        low, high = _delta_value(low, up=False), _delta_value(high, up=True)
        if low is not None and high is not None:
            _put(stats["minValues"], path, low)
            _put(stats["maxValues"], path, high)
    return stats


def _column_bounds(footer: FileMetaData, index: int) -> tuple[Any, Any, int] | None:
    """(min, max, null count) over all row groups; None if a row group does not say."""
    lows, highs, nulls = [], [], 0
    for group in range(footer.num_row_groups):
        found = footer.row_group(group).column(index).statistics
        if found is None or not found.has_null_count:
            return None
        nulls += found.null_count
        if found.has_min_max:
            lows.append(found.min)
            highs.append(found.max)
        elif found.num_values:
            return None
    return (min(lows), max(highs), nulls) if lows else (None, None, nulls)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def _delta_value(value: Any, *, up: bool) -> Any:
    """A bound as Delta writes it; None: not written. Times are cut to ms, the upper bound upwards,
    so that no reader skips a file that it needs. Floats have none: Parquet's bounds leave NaN out,
    which Spark takes for the greatest value.
    """
    if isinstance(value, bool | int):
        return value
    if isinstance(value, datetime.datetime):
        if up and value.microsecond % 1000:
            value += datetime.timedelta(milliseconds=1)
        cut = value.replace(microsecond=value.microsecond // 1000 * 1000)
        text = cut.isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None
