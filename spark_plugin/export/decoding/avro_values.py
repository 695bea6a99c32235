"""Avro values -> columns: each value is one datum, encoded with the schema of `--schema`.

Also the single-object encoding (Avro 1.12, "Single-object encoding": C3 01, the schema's 8-byte
fingerprint, the datum), when the fingerprint is that of the schema. No container files.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from lakemq.spark_plugin.errors import MissingDependency, OptionError
from lakemq.spark_plugin.export.decoding.arrow_types import in_table
from lakemq.spark_plugin.export.decoding.column_types import META, Type
from lakemq.spark_plugin.export.decoding.decoder import Decoded, decode_each, to_columns

if TYPE_CHECKING:
    import pyarrow as pa

_MARK: Final = b"\xc3\x01"
_NUMBERS: Final = ("int", "long", "float", "double")
_TIMES: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}


class AvroDecoder:
    """Decodes values by a writer's schema, whose top must be a record."""

    def __init__(self, text: str) -> None:
        """OptionError for a schema that is none, or has no columns that could hold it."""
        try:
            import fastavro
            from fastavro.schema import (
                SchemaParseException,
                UnknownType,
                expand_schema,
                fingerprint,
            )
        except ImportError:
            raise MissingDependency("fastavro is missing: pip install 'lakemq[spark]'") from None
        import pyarrow as pa

        try:
            given = json.loads(text)
            whole = expand_schema(given)
            self._schema = fastavro.parse_schema(_without_logical_types(given))
            canonical = fastavro.schema.to_parsing_canonical_form(given)
        except (
            SchemaParseException,
            UnknownType,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise OptionError(f"--schema is not a valid Avro schema: {error!r}") from None
        if not isinstance(whole, dict) or whole.get("type") != "record":
            raise OptionError("--schema: the top of an Avro schema must be a record")
        self._read = fastavro.schemaless_reader
        self._mark = _MARK + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
        self._parsed = _arrow_type(whole, "")
        if not self._parsed.num_fields:
            raise OptionError("--schema: the top of the Avro schema has no fields")
        if META in [field.name for field in self._parsed]:
            raise OptionError(f"--schema: {META} is taken by the export's own column")
        self.schema = pa.schema([(each.name, in_table(each.type)) for each in self._parsed])
        self.found: dict[str, Type] = {}

    def has_new_fields(self) -> bool:
        """Always False: the schema that was given fixes the columns, so a value adds none."""
        return False

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`: binary. Every row is either in `rows` or in `bad`."""
        rows, objects, bad = decode_each(values, "not_avro", self._datum)
        return to_columns(objects, rows, bad, self.schema, self._parsed)

    def _datum(self, value: bytes) -> object:
        data = io.BytesIO(value)
        if value.startswith(self._mark):
            data.seek(len(self._mark))
        found = self._read(data, self._schema, None)
        if data.tell() != len(value):
            raise ValueError(f"{len(value) - data.tell()} bytes after the datum")
        return found


def _without_logical_types(schema: Any) -> Any:
    """The schema with plain numbers for times, which Arrow takes by the column; decimals stay."""
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical_types(each)
        if name in ("type", "items", "values", "fields")
        else each
        for name, each in schema.items()
        if name != "logicalType" or each == "decimal"
    }


def _arrow_type(schema: Any, path: str) -> pa.DataType:
    """Arrow's type for an expanded schema, times in the units that the values have."""
    import pyarrow as pa

    if isinstance(schema, list):
        return _union_type(schema, path)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _arrow_type(kind, path)
    if kind == "record":
        return pa.struct(
            [
                (each["name"], _arrow_type(each["type"], f"{path}.{each['name']}"))
                for each in schema["fields"]
            ]
        )
    if kind == "array":
        element = _arrow_type(schema["items"], f"{path}[]")
        if element == pa.struct([]):  # takes no bytes: any number of them fits into a short value
            raise OptionError(f"--schema: {path.lstrip('.')} is an array of empty records")
        return pa.list_(pa.field("element", element))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], f"{path}{{}}"))
    return _scalar_type(schema, kind, path)


def _scalar_type(schema: dict[str, Any], kind: str, path: str) -> pa.DataType:
    import pyarrow as pa

    logical = schema.get("logicalType") or ""
    if logical == "decimal":
        digits, scale = schema.get("precision"), schema.get("scale", 0)
        numbers = type(digits) is int and type(scale) is int
        if not numbers or not digits or not 0 <= scale <= digits <= 38:
            raise OptionError(
                f"--schema: {path.lstrip('.')} has {digits} digits, scale {scale}; 38 is the most"
            )
        return pa.decimal128(digits, scale)
    if logical == "date":
        return pa.date32()
    unit = _TIMES.get(logical.rpartition("-")[2])
    if "timestamp-" in logical and unit is not None:
        return pa.timestamp(unit, tz="UTC")
    types = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "string": pa.string(),
        "fixed": pa.binary(),
        "enum": pa.string(),
    }
    if kind not in types:
        raise OptionError(
            f"--schema: {path.lstrip('.') or 'the top'} is {kind}, which no column can hold"
        )
    return types[kind]


def _union_type(branches: list[Any], path: str) -> pa.DataType:
    """Null and one type, or numbers that one type holds."""
    import pyarrow as pa

    left = [each for each in branches if each != "null"]
    if len(left) == 1:
        return _arrow_type(left[0], path)
    if left and all(each in ("int", "long") for each in left):
        return pa.int64()
    if left and all(each in _NUMBERS for each in left) and "long" not in left:
        return pa.float64()
    raise OptionError(f"--schema: {path.lstrip('.')} is a union that no column can hold")
