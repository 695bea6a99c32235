"""Column types <-> Arrow's, and which types a column may grow to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from lakemq.spark_plugin.export.decoding.column_types import META, REST, Type, decimal_digits

if TYPE_CHECKING:
    import pyarrow as pa

_LEGAL: Final = re.compile(r"[^\s,;{}()=`.<>:]{1,128}")
"""Names that every table format takes."""
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_BROKEN: Final = ("float", "double")


def arrow_type(kind: Type) -> pa.DataType:
    """The type of the table's column."""
    import pyarrow as pa

    if kind.name == "array":
        return pa.list_(pa.field("element", arrow_type(kind.fields[0][1])))
    if kind.name == "struct":
        return pa.struct([(name, arrow_type(child)) for name, child in kind.fields])
    if kind.name.startswith("timestamp"):
        return pa.timestamp("us", tz="UTC")
    digits = decimal_digits(kind.name)
    if digits is not None:
        return pa.decimal128(*digits)
    return {
        "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "tinyint": pa.int8(),
        "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "date": pa.date32(),
    }[kind.name]  # fmt: skip


def type_of_arrow(kind: pa.DataType) -> Type | None:
    """The column type that holds what Arrow inferred; None: nothing is known of it yet."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return struct_of((field.name, type_of_arrow(field.type)) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return array_of(type_of_arrow(kind.value_type))
    names = {
        pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int",
        pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.date32(): "date",
        pa.string(): "string", pa.large_string(): "string", pa.binary(): "binary",
        pa.large_binary(): "binary",
    }  # fmt: skip
    if pa.types.is_timestamp(kind):
        return Type("timestamp" if kind.tz else "string")
    if pa.types.is_decimal(kind):
        return Type(f"decimal({kind.precision},{kind.scale})")
    return Type(names[kind]) if kind in names else None


def struct_of(fields: Iterable[tuple[str, Type | None]]) -> Type | None:
    """A struct of the fields that something is known of."""
    known: dict[str, Type] = {}
    for name, kind in fields:
        if kind is not None and is_new(name, known):
            known[name] = kind
    return Type("struct", tuple(known.items())) if known else None


def array_of(element: Type | None) -> Type | None:
    """An array of the element type; None: the element type is not known yet."""
    return None if element is None else Type("array", (("element", element),))


def is_new(name: str, known: Mapping[str, Type]) -> bool:
    """Whether a column of that name can be made. Formats take names that differ in case alone for
    the same."""
    taken = {each.lower() for each in known} | {META, REST}
    return bool(_LEGAL.fullmatch(name)) and name.lower() not in taken


def widest(one: Type, other: Type) -> Type | None:
    """The smaller scalar type that holds both without loss, if every table format can let a column
    of either grow to it: whole numbers to longer ones, float to double, decimals to more digits
    with the same scale."""
    for chain in (_WHOLE, _BROKEN):
        if one.name in chain and other.name in chain:
            return Type(chain[max(chain.index(one.name), chain.index(other.name))])
    digits, others = decimal_digits(one.name), decimal_digits(other.name)
    if digits and others and digits[1] == others[1]:
        return one if digits[0] >= others[0] else other
    return one if one == other else None


def convert(column: pa.ChunkedArray, kind: Type, wanted: pa.DataType) -> pa.ChunkedArray:
    """A column as it was parsed -> the table's type. ArrowInvalid when a value does not fit."""
    import pyarrow as pa
    from pyarrow import compute

    if kind.name == "float" and compute.any(compute.is_inf(column)).as_py():
        raise pa.ArrowInvalid("a number is too large for float")  # text has no infinity
    if kind.name == "timestamp_ms":
        micros = compute.multiply_checked(column, 1000)
        return micros.cast(wanted)
    if kind.name == "timestamp_s":
        micros = compute.round(compute.multiply(column, 1e6)).cast(pa.int64())
        return micros.cast(wanted)
    return column.cast(wanted)


def in_table(kind: pa.DataType) -> pa.DataType:
    """The column's type: times in µs, at any depth."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, in_table(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, in_table(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", in_table(kind.value_type)))
    return kind
