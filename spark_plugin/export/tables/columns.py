"""Whether a table can take what an export writes, and how it has to change for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakemq.spark_plugin.errors import TableError
from lakemq.spark_plugin.export.decoding.arrow_types import arrow_type, type_of_arrow, widest
from lakemq.spark_plugin.export.decoding.column_types import Evolve
from lakemq.spark_plugin.export.tables.partitioning import PartitionField

if TYPE_CHECKING:
    import pyarrow as pa


def fitting(
    location: str, has: pa.Schema, wanted: pa.Schema, evolve: Evolve = "strict"
) -> pa.Schema | None:
    """The columns that the table needs to take rows of `wanted`; None: it takes them as it is.

    TableError if `evolve` does not allow the change. `strict`: exactly the columns of `wanted`;
    `add`: columns and fields of structs may be added, and the table may have further ones; `widen`:
    types may grow too. A column that is wider already always fits.
    """
    import pyarrow as pa

    missing = [name for name in wanted.names if name not in has.names]
    surplus = [name for name in has.names if name not in wanted.names]
    if evolve == "strict" and (missing or surplus):
        raise TableError(
            f"table {location} was made with other columns: "
            + "; ".join(
                f"{what} {', '.join(names)}"
                for what, names in (("it lacks", missing), ("it also has", surplus))
                if names
            )
        )
    fields = []
    for field in has:
        if field.name not in wanted.names:
            fields.append(field)
            continue
        try:
            kind = _merged(field.name, field.type, wanted.field(field.name).type, evolve)
        except TableError as error:
            raise TableError(f"table {location}: {error}") from None
        fields.append(field.with_type(kind))
    fields += [wanted.field(name) for name in missing]
    changed = missing or any(a.type != b.type for a, b in zip(has, fields, strict=False))
    return pa.schema(fields) if changed else None


def _merged(path: str, has: pa.DataType, wanted: pa.DataType, evolve: Evolve) -> pa.DataType:
    """The type that a column must have; `has` itself if it holds all values of `wanted`."""
    import pyarrow as pa

    if pa.types.is_struct(has) and pa.types.is_struct(wanted):
        return _merged_struct(path, has, wanted, evolve)
    if _is_list(has) and _is_list(wanted):
        inner = _merged(f"{path}[]", has.value_type, wanted.value_type, evolve)
        return has if inner == has.value_type else pa.list_(has.value_field.with_type(inner))
    if pa.types.is_map(has) and pa.types.is_map(wanted):
        inner = _merged(f"{path}{{}}", has.item_type, wanted.item_type, evolve)
        return has if inner == has.item_type else pa.map_(has.key_type, inner)
    times = pa.types.is_timestamp(has) or pa.types.is_timestamp(wanted)
    one, other = (None, None) if times else (type_of_arrow(has), type_of_arrow(wanted))
    if one is not None and other is not None:
        both = widest(one, other)
        if both == one:
            return has
        if both is not None and evolve == "widen":
            return arrow_type(both)
        grows = "; --evolve widen lets it grow" if both is not None else ""
        raise TableError(f"column {path} is {one.name}, the export writes {other.name}{grows}")
    if has != wanted:
        raise TableError(f"column {path} is {has}, the export writes {wanted}")
    return has


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _merged_struct(
    path: str, has: pa.StructType, wanted: pa.StructType, evolve: Evolve
) -> pa.DataType:
    import pyarrow as pa

    there = {field.name: field for field in has}
    fields = dict(there)
    for field in wanted:
        if field.name not in there:
            if evolve == "strict":
                raise TableError(f"column {path} lacks field {field.name}")
            fields[field.name] = field
            continue
        kind = _merged(f"{path}.{field.name}", there[field.name].type, field.type, evolve)
        fields[field.name] = there[field.name].with_type(kind)
    same = len(fields) == len(there) and all(
        fields[name].type == each.type for name, each in there.items()
    )
    return has if same else pa.struct(list(fields.values()))


def check_partitioned(location: str, has: Sequence[str], wanted: Sequence[PartitionField]) -> None:
    """TableError unless the table is partitioned by the fields, in their order."""
    names = [field.name for field in wanted]
    if list(has) != names:
        raise TableError(
            f"table {location} is partitioned by {', '.join(has) or 'nothing'}, not by "
            f"{', '.join(names) or 'nothing'}: --partition-by has to say what it said when the "
            "table was made"
        )
