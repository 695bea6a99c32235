"""The column `_rest`: JSON text of the fields of a record that no column can hold.

A table takes no column whose name is empty, longer than 128 characters or has a blank, dot, colon,
quote, bracket, comma, semicolon or equals sign in it, whose name differs from another one only in
case, that is called like a column of the export itself, or that would be one too many. Such fields
keep their place and names within `_rest`: `{"in": {"p q": 1}}` is field `p q` of column `in`. In a
list the elements keep their places; those with nothing to tell are null. What is null, an empty
object or an empty list tells nothing. Of a record with such a field twice, `_rest` is all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.export.decoding.column_types import REST, Type

if TYPE_CHECKING:
    import pyarrow as pa

NAMES_MAX: Final = 100
"""How many fields are named at most."""
_NAME_CHARS_MAX: Final = 200
_LOOKED_AT_ROWS_MAX: Final = 1000


def has_rest(known: Type, seen: pa.DataType) -> bool:
    """Whether values of the type that Arrow inferred have something that a column of `known` has no
    place for."""
    import pyarrow as pa

    if known.name == "struct" and pa.types.is_struct(seen):
        fields = dict(known.fields)
        return any(
            has_rest(fields[each.name], each.type) if each.name in fields else _tells(each.type)
            for each in seen
        )
    if known.name == "array" and _is_list(seen):
        return has_rest(known.fields[0][1], seen.value_type)
    return False


def _tells(seen: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(seen):
        return any(_tells(each.type) for each in seen)
    return _tells(seen.value_type) if _is_list(seen) else not pa.types.is_null(seen)


def _is_list(seen: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(seen) or pa.types.is_large_list(seen))


def rest_of(known: Type, value: Any) -> Any:
    """What of a JSON value a column of `known` has no place for; None: nothing."""
    if known.name == "struct" and isinstance(value, dict):
        fields = dict(known.fields)
        found = {
            name: rest_of(fields[name], each) if name in fields else _told(each)
            for name, each in value.items()
        }
        return {name: each for name, each in found.items() if each is not None} or None
    if known.name == "array" and isinstance(value, list):
        inner = [rest_of(known.fields[0][1], each) for each in value]
        return inner if any(each is not None for each in inner) else None
    return None


def _told(value: Any) -> Any:
    """The value; None if it tells nothing."""
    if isinstance(value, dict):
        return value if any(_told(each) is not None for each in value.values()) else None
    if isinstance(value, list):
        return value if any(_told(each) is not None for each in value) else None
    return value


def rest_texts(columns: Iterable[tuple[str, Type]], lines: Iterable[str]) -> list[str | None]:
    """`_rest` of each record (a JSON object, as text)."""
    known = Type("struct", tuple(columns))
    return [_rest_text(known, line) for line in lines]


def _rest_text(known: Type, line: str) -> str | None:
    try:
        found = rest_of(known, json.loads(line, object_pairs_hook=_object))
    except (ValueError, RecursionError):
        return line  # Arrow could read it, so it is JSON all the same
    return None if found is None else json.dumps(found, separators=(",", ":"))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """ValueError for a name that is there twice: a dict would keep its last value alone."""
    found = dict(pairs)
    # The raw line is kept instead.
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


class RestCounter:
    """How many rows have something in `_rest`, and which fields that is."""

    def __init__(self) -> None:
        self.rows = 0
        self.names: dict[str, None] = {}

    def see(self, table: pa.Table) -> None:
        """Count rows that are written. Fields are named as far as the first rows have them."""
        if REST not in table.column_names:
            return
        column = table.column(REST)
        count = len(column) - column.null_count
        self.rows += count
        if count and len(self.names) < NAMES_MAX:
            texts = column.drop_null().slice(0, _LOOKED_AT_ROWS_MAX).to_pylist()
            for text in texts:
                self.names |= dict.fromkeys(_names(text))
                if len(self.names) >= NAMES_MAX:
                    break


def _names(text: str) -> Iterator[str]:
    try:
        for name in names_in(json.loads(text)):
            yield name[:_NAME_CHARS_MAX]
    except (ValueError, RecursionError):
        return


def names_in(rest: Any, prefix: str = "") -> Iterator[str]:
    """`in.p q` for each value."""
    if isinstance(rest, Mapping):
        for name, each in rest.items():
            yield from names_in(each, f"{prefix}.{name}" if prefix else name)
    elif isinstance(rest, list) and any(isinstance(each, Mapping) for each in rest):
        for each in rest:
            if each is not None:
                yield from names_in(each, f"{prefix}[]")
    else:
        yield prefix
