"""Schema evolution: what becomes of JSON fields that the table has no column for. Pure.

With `--evolve add` a field that is not known becomes a column of the type that its first values
have: text, boolean, bigint, double, arrays and structs of them; text that looks like a time stays
text. Fields of structs are added the same way. What a column's type can't hold is a bad row, as
always.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_plugin.export.json_schema import META, SCALARS, Type

if TYPE_CHECKING:
    import pyarrow as pa

Columns = tuple[tuple[str, Type], ...]
COLUMNS_MAX: Final = 1000
"""No table gets more columns than this by evolution; further fields are left out."""
_LEGAL: Final = re.compile(r"[^\s,;{}()=`.<>:]{1,128}")
"""Names that every table format takes."""


def type_of_arrow(kind: pa.DataType) -> Type | None:
    """The column type that holds what Arrow inferred; None: nothing is known of it yet."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _struct((field.name, type_of_arrow(field.type)) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _array(type_of_arrow(kind.value_type))
    names = {
        pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int",
        pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.date32(): "date",
        pa.string(): "string", pa.large_string(): "string",
    }  # fmt: skip
    if pa.types.is_timestamp(kind):
        return Type("timestamp" if kind.tz else "string")
    return Type(names[kind]) if kind in names else None


def type_of_value(value: Any) -> Type | None:
    """The column type that holds a JSON value; None: nothing is known from it."""
    if isinstance(value, dict):
        return _struct((name, type_of_value(each)) for name, each in value.items())
    if isinstance(value, list):
        found: Type | None = None
        for each in value:
            found = _joined(found, type_of_value(each))
        return _array(found)
    if isinstance(value, bool):
        return Type("boolean")
    if isinstance(value, int):
        return Type("bigint") if -(1 << 63) <= value < 1 << 63 else Type("double")
    names: dict[type, str] = {float: "double", str: "string"}
    return Type(names[type(value)]) if type(value) in names else None


def _struct(fields: Iterable[tuple[str, Type | None]]) -> Type | None:
    known: dict[str, Type] = {}
    for name, kind in fields:
        if kind is not None and _is_new(name, known):
            known[name] = kind
    return Type("struct", tuple(known.items())) if known else None


def _array(element: Type | None) -> Type | None:
    return None if element is None else Type("array", (("element", element),))


def _is_new(name: str, known: Mapping[str, Type]) -> bool:
    """Whether a column of that name can be made. Formats take names that differ in case alone for
    the same."""
    taken = {each.lower() for each in known} | {META}
    return bool(_LEGAL.fullmatch(name)) and name.lower() not in taken


def merge_found(known: Mapping[str, Type], new: Mapping[str, Type]) -> dict[str, Type]:
    """Two lots of inferred fields as one: numbers get wider, else the first one's type stays."""
    merged = dict(known)
    for name, kind in new.items():
        if name in merged:
            merged[name] = _joined(merged[name], kind) or kind
        elif _is_new(name, merged):
            merged[name] = kind
    return merged


def _joined(one: Type | None, other: Type | None) -> Type | None:
    if one is None or other is None:
        return one or other
    if {one.name, other.name} == {"bigint", "double"}:
        return Type("double")
    if one.name == other.name == "array":
        return _array(_joined(one.fields[0][1], other.fields[0][1]))
    if one.name == other.name == "struct":
        return Type("struct", tuple(merge_found(dict(one.fields), dict(other.fields)).items()))
    return one


def evolve(columns: Sequence[tuple[str, Type]], found: Mapping[str, Type]) -> Columns:
    """The columns with those that `found` adds, also within structs; the same if there are none."""
    known = dict(columns)
    for name, kind in found.items():
        if name in known:
            known[name] = _with_new_fields(known[name], kind)
        elif _is_new(name, known) and len(known) < COLUMNS_MAX:
            known[name] = kind
    return tuple(known.items())


def _with_new_fields(known: Type, found: Type) -> Type:
    if known.name == found.name == "struct":
        return Type("struct", evolve(known.fields, dict(found.fields)))
    if known.name == found.name == "array":
        element = _with_new_fields(known.fields[0][1], found.fields[0][1])
        return Type("array", (("element", element),))
    return known


def columns_of_table(schema: pa.Schema, given: Columns, without: Sequence[str]) -> Columns:
    """The columns to decode into a table: those given, and what the table has besides them, except
    `_meta` and columns of partition values."""
    found = dict(given)
    for field in schema:
        kind = type_of_arrow(field.type)
        if field.name in found and kind is not None:
            found[field.name] = _with_new_fields(found[field.name], kind)
        elif field.name not in (META, *without) and kind is not None:
            found[field.name] = kind
    return tuple(found.items())


def schema_text(columns: Iterable[tuple[str, Type]]) -> str:
    """Inverse of `json_schema.parse_schema`."""
    return ", ".join(f"`{name}` {_type_text(kind)}" for name, kind in columns)


def _type_text(kind: Type) -> str:
    if kind.name == "array":
        return f"array<{_type_text(kind.fields[0][1])}>"
    if kind.name == "struct":
        return f"struct<{schema_text(kind.fields)}>"
    assert kind.name in SCALARS
    return kind.name
