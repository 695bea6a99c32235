"""The source's schema, as Spark sees it. Arrow batches must equal it, type by type."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakemq.spark_plugin.errors import OptionError

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    """Spark's schema of the given columns, in that order."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a user's own schema asks for. OptionError if the source has no such column
    or has it with another type."""
    for column in schema.fields:
        if column.name not in _TYPES:
            raise OptionError(f"the schema names {column.name}; the source has {', '.join(_TYPES)}")
        expected = _TYPES[column.name]
        if column.dataType != expected:
            raise OptionError(
                f"the schema has {column.name} {column.dataType.simpleString()}; the source gives "
                f"{expected.simpleString()}"
            )
    return tuple(schema.names)
