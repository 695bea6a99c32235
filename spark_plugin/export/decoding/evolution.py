"""Schema evolution: what becomes of JSON fields that the table has no column for.

With `--evolve add` a field that is not known becomes a column of the type that its first values
have: text, boolean, bigint, double, arrays and structs of them; text that looks like a time stays
text. Fields of structs are added the same way. What a column's type can't hold is a bad row, as
always; with `--evolve widen` the column grows where a wider type of its kind holds the value. What
can't be a column goes to the column `_rest` (`rest`), which is made when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.export.decoding.arrow_types import (
    array_of,
    is_new,
    struct_of,
    type_of_arrow,
    widest,
)
from lakemq.spark_plugin.export.decoding.column_types import (
    META,
    REST,
    SCALARS,
    Type,
    decimal_digits,
)

if TYPE_CHECKING:
    import pyarrow as pa

Columns = tuple[tuple[str, Type], ...]
COLUMNS_MAX: Final = 1000
"""No table gets more columns than this by evolution; further fields go to `_rest`."""
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_FLOAT_MAX: Final = 3.4028234e38


def type_of_value(value: Any) -> Type | None:
    """The column type that holds a JSON value; None: nothing is known from it."""
    if isinstance(value, dict):
        return struct_of((name, type_of_value(each)) for name, each in value.items())
    if isinstance(value, list):
        found: Type | None = None
        for each in value:
            found = _joined(found, type_of_value(each))
        return array_of(found)
    if isinstance(value, bool):
        return Type("boolean")
    if isinstance(value, int):
        return Type("bigint") if -(1 << 63) <= value < 1 << 63 else Type("double")
    names: dict[type, str] = {float: "double", str: "string"}
    return Type(names[type(value)]) if type(value) in names else None


def merge_found(known: Mapping[str, Type], new: Mapping[str, Type]) -> dict[str, Type]:
    """Two lots of inferred fields as one: numbers get wider, else the first one's type stays.

    Names that differ in case alone stay side by side: which of them the table knows is seen in
    `evolve`.
    """
    merged = dict(known)
    for name, kind in new.items():
        if name in merged:
            merged[name] = _joined(merged[name], kind) or kind
        elif name == REST or is_new(name, {}):
            merged[name] = kind
    return merged


def _distinct(kind: Type) -> Type:
    """Of fields whose names differ in case alone, the first."""
    if kind.name == "array":
        return Type("array", (("element", _distinct(kind.fields[0][1])),))
    if kind.name == "struct":
        return struct_of((name, _distinct(of)) for name, of in kind.fields) or kind
    return kind


def _joined(one: Type | None, other: Type | None) -> Type | None:
    if one is None or other is None:
        return one or other
    # JSON has one kind of number: 1 and 1.5 are the same field.
    if {one.name, other.name} == {"bigint", "double"}:
        return Type("double")
    if one.name == other.name == "array":
        return array_of(_joined(one.fields[0][1], other.fields[0][1]))
    if one.name == other.name == "struct":
        return Type("struct", tuple(merge_found(dict(one.fields), dict(other.fields)).items()))
    return widest(one, other) or one


def evolve(
    columns: Sequence[tuple[str, Type]], found: Mapping[str, Type], *, widen: bool = False
) -> Columns:
    """The columns with those that `found` adds, also within structs, and with `widen` grown to the
    types that `found` has; the same if there is nothing to do."""
    known = dict(columns)
    for name, kind in found.items():
        if name in known:
            known[name] = _grown(known[name], kind, widen)
        elif name == REST or (is_new(name, known) and len(known) < COLUMNS_MAX):
            # `_rest` does not count: without it further fields would be lost.
            known[name] = _distinct(kind)
    return tuple(known.items())


def _grown(known: Type, found: Type, widen: bool) -> Type:
    if known.name == found.name == "struct":
        return Type("struct", evolve(known.fields, dict(found.fields), widen=widen))
    if known.name == found.name == "array":
        element = _grown(known.fields[0][1], found.fields[0][1], widen)
        return Type("array", (("element", element),))
    return (widest(known, found) or known) if widen else known


def unknown_part(known: Type, found: Type | None) -> Type | None:
    """What `found` has besides `known`: fields of structs, at any depth."""
    if found is None or known.name != found.name:
        return None
    if known.name == "array":
        return array_of(unknown_part(known.fields[0][1], found.fields[0][1]))
    fields = dict(known.fields)
    return struct_of(
        (name, unknown_part(fields[name], kind) if name in fields else kind)
        for name, kind in found.fields
    )


def needed_type(kind: Type, value: Any) -> Type | None:
    """The type that a column of `kind` must grow to for a JSON value, as far as growing helps;
    None: it holds the value, or no wider type would. Of structs only the fields that must grow."""
    if kind.name == "struct" and isinstance(value, dict):
        return struct_of((name, needed_type(of, value.get(name))) for name, of in kind.fields)
    if kind.name == "array" and isinstance(value, list):
        found: Type | None = None
        for each in value:
            found = _joined(found, needed_type(kind.fields[0][1], each))
        return array_of(found)
    digits = decimal_digits(kind.name)
    if digits is not None:
        return _needed_decimal(digits, value)
    if kind.name in _BITS and type(value) is int:
        wanted = next((n for n, b in _BITS.items() if -(1 << (b - 1)) <= value < 1 << (b - 1)), "")
        return Type(wanted) if wanted and _BITS[wanted] > _BITS[kind.name] else None
    if kind.name == "float" and type(value) in (int, float) and abs(value) > _FLOAT_MAX:
        return Type("double")
    return None


def _needed_decimal(digits: tuple[int, int], value: Any) -> Type | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    whole, scale = max(0, number.adjusted() + 1) if number.is_finite() else 99, digits[1]
    grows = digits[0] < whole + scale <= 38
    return Type(f"decimal({whole + scale},{scale})") if grows else None


def columns_of_table(
    schema: pa.Schema, given: Columns, without: Sequence[str], *, widen: bool = False
) -> Columns:
    """The columns to decode into a table: those given, and what the table has besides them, except
    `_meta` and columns of partition values."""
    found = dict(given)
    for field in schema:
        kind = type_of_arrow(field.type)
        if field.name in found and kind is not None:
            found[field.name] = _grown(found[field.name], kind, widen)
        elif field.name not in (META, *without) and kind is not None:
            found[field.name] = kind
    return tuple(found.items())


def schema_text(columns: Iterable[tuple[str, Type]]) -> str:
    """Inverse of `column_types.parse_schema`."""
    return ", ".join(f"`{name}` {_type_text(kind)}" for name, kind in columns)


def _type_text(kind: Type) -> str:
    if kind.name == "array":
        return f"array<{_type_text(kind.fields[0][1])}>"
    if kind.name == "struct":
        return f"struct<{schema_text(kind.fields)}>"
    assert kind.name in SCALARS or decimal_digits(kind.name)
    return kind.name
