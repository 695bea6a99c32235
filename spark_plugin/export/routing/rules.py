"""Which table each row of a routed export goes to.

    --route-by   key | header:NAME | COLUMN | column:COLUMN

The value becomes the table's name if it can be one, so it never leads out of the folder or the
namespace: letters, digits, `_`, `-` and `.`, the first of them a letter or digit, 1 to 100 of them
(in Iceberg `-` and `.` become `_`). Names that begin with `_` are the export's own.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lakemq.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

ROUTES_MOST: Final = 400
"""Each task may have a file of every route open."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_COLUMN: Final = re.compile(r"\w+(\.\w+)*")


class RouteBy(NamedTuple):
    """What of a record names its table."""

    kind: Literal["key", "header", "column"]
    name: str = ""
    """Of the header or column; `a.b` for field b of struct a."""


class RouteTarget(NamedTuple):
    """One route's table, as tasks need to know it."""

    name: str
    location: str
    folder: str
    """Attempt folder, relative to `location`."""
    schema: str
    """Arrow schema of data files (base64 of its IPC form)."""
    skip_below: int = 0
    """The table has all rows of the task's partition below this offset."""
    value_schema: str = ""
    """What values of its records are decoded by, if each table has columns of its own."""


class Routing(NamedTuple):
    """How a task routes; travels as JSON."""

    by: str
    default: str
    routes_max: int
    table_format: str
    targets: tuple[RouteTarget, ...] = ()
    own_columns: bool = False
    """Each table evolves by its own records."""

    @classmethod
    def of_json(cls, value: Sequence[Any]) -> Routing:
        """Routing from the list that its JSON form is."""
        routing = cls(*value)
        return routing._replace(targets=tuple(RouteTarget(*each) for each in routing.targets))


def parse_route_by(text: str) -> RouteBy:
    """Text of `--route-by`. OptionError says what is wrong."""
    if text == "key":
        return RouteBy("key")
    kind, colon, name = text.partition(":")
    if colon and kind == "header" and name:
        return RouteBy("header", name)
    column = name if colon and kind == "column" else text
    if not _COLUMN.fullmatch(column):
        raise OptionError(f"--route-by is {text!r}; it takes key, header:NAME or a column")
    return RouteBy("column", column)


def check_route_column(text: str, schema: pa.Schema) -> None:
    """OptionError unless the rows have the column, of a type that names can be made of."""
    import pyarrow as pa

    by = parse_route_by(text)
    if by.kind != "column":
        return
    kind: pa.DataType = pa.struct(list(schema))
    for name in by.name.split("."):
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise OptionError(f"--route-by: unknown column {by.name}")
        kind = kind.field(name).type
    types = pa.types
    fit = (types.is_string, types.is_integer, types.is_boolean, types.is_date32)
    if not any(is_fit(kind) for is_fit in fit):
        raise OptionError(
            f"--route-by: {by.name} is {kind}; text, whole numbers, booleans and dates can name "
            "tables"
        )


def route_name(value: object, table_format: str) -> str | None:
    """The name that a value makes; None if it can be none."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, datetime.date):
        value = value.isoformat()
    text = "" if value is None else str(value)
    if not _NAME.fullmatch(text):
        return None
    return re.sub(r"[.-]", "_", text) if table_format == "iceberg" else text


def route_values(by: RouteBy, batch: pa.RecordBatch, rows: pa.Table, records: pa.Array) -> pa.Array:
    """Of every row, the value that names its table. `records`: the row of `batch`, which holds the
    journal's columns, that each of `rows` was made of."""
    from pyarrow import compute

    if by.kind == "column":
        first, *inner = by.name.split(".")
        column = rows.column(first).combine_chunks()
        for name in inner:
            column = compute.struct_field(column, name)
        return column
    column = batch.column("key") if by.kind == "key" else _header(batch.column("headers"), by.name)
    return column.take(records)


def _header(headers: pa.Array, name: str) -> pa.Array:
    """Of every record, the value of its first header of that name."""
    import pyarrow as pa
    from pyarrow import compute

    entries = headers.flatten()
    parents = compute.list_parent_indices(headers)
    mine = compute.equal(entries.field("key"), name)
    holders, first = np.unique(parents.filter(mine).to_numpy(), return_index=True)
    indexes = np.full(len(headers), -1, dtype=np.int64)
    indexes[holders] = first
    values = entries.field("value").filter(mine)
    return values.take(pa.array(indexes, mask=indexes < 0))


def routes_of(
    values: pa.Array, table_format: str
) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Of every value, the index of its table's name in a list; None among them: no name."""
    coded = values.dictionary_encode()
    names: dict[str | None, int] = {}
    of_value = [
        names.setdefault(route_name(value, table_format), len(names))
        for value in coded.dictionary.to_pylist()
    ]
    of_value.append(names.setdefault(None, len(names)))
    codes = coded.indices.fill_null(len(of_value) - 1).to_numpy(zero_copy_only=False)
    return np.array(of_value, dtype=np.int64)[codes], list(names)
