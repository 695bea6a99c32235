"""Partition fields and values <-> Iceberg's specs and records."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakemq.spark_plugin.export.tables.partitioning import PartitionField, Values

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update.spec import UpdateSpec
    from pyiceberg.typedef import Record

_EPOCH = datetime.date(1970, 1, 1)


def add_fields(update: UpdateSpec, fields: Sequence[PartitionField]) -> None:
    """Put the fields into a spec that is being made."""
    from pyiceberg.transforms import (
        DayTransform,
        HourTransform,
        IdentityTransform,
        MonthTransform,
        Transform,
    )

    transforms: dict[str, Transform[Any, Any]] = {
        "day": DayTransform(),
        "hour": HourTransform(),
        "month": MonthTransform(),
        "identity": IdentityTransform(),
    }
    for field in fields:
        update.add_field(field.source, transforms[field.transform], field.name)


def field_names(table: Table) -> list[str]:
    """Names of the fields of the table's current spec, in order."""
    return [field.name for field in table.spec().fields]


def spec_text(table: Table) -> str:
    """The spec as `--partition-by` has it."""
    found = []
    for field in table.spec().fields:
        source, transform = table.schema().find_column_name(field.source_id), str(field.transform)
        found.append(f"{source}" if transform == "identity" else f"{transform}({source})")
    return ", ".join(found)


def to_record(table: Table, values: Values) -> Record:
    """Values as text -> the record of a data file in the table's spec."""
    from pyiceberg.typedef import Record

    spec, schema = table.spec(), table.schema()
    found: list[Any] = []
    for field, value in zip(spec.fields, values, strict=True):
        kind = str(schema.find_type(field.source_id))
        found.append(None if value is None else _number(str(field.transform), kind, value))
    return Record(*found)


def to_values(table: Table, record: Record) -> Values:
    """Inverse of `to_record`."""
    schema = table.schema()
    found = []
    for index, field in enumerate(table.spec().fields):
        value = record[index]
        kind = str(schema.find_type(field.source_id))
        found.append(None if value is None else _text(str(field.transform), kind, value))
    return tuple(found)


def _number(transform: str, kind: str, value: str) -> Any:
    """Iceberg counts days, hours and months since 1970 (spec, "Partition Transforms")."""
    if transform == "day" or transform == "identity" and kind == "date":
        return (datetime.date.fromisoformat(value) - _EPOCH).days
    if transform == "hour":
        day, hour = value.split(" ")
        return 24 * (datetime.date.fromisoformat(day) - _EPOCH).days + int(hour)
    if transform == "month":
        year, month = value.rsplit("-", 1)
        return 12 * (int(year) - 1970) + int(month) - 1
    return int(value) if kind in ("int", "long") else value


def _text(transform: str, kind: str, value: Any) -> str:
    if transform == "day" or transform == "identity" and kind == "date":
        day = value if isinstance(value, datetime.date) else _EPOCH + datetime.timedelta(value)
        return day.isoformat()
    if transform == "hour":
        day = _EPOCH + datetime.timedelta(value // 24)
        return f"{day.isoformat()} {value % 24:02}"
    if transform == "month":
        return f"{1970 + value // 12:04}-{value % 12 + 1:02}"
    return str(value)
