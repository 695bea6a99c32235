"""Protobuf values -> columns, field by field over a block of messages.

Types follow the field's: unsigned 32-bit numbers are bigint, unsigned 64-bit ones decimal(20,0),
enums their names, maps maps. Of the well-known types, Timestamp is a timestamp, Duration bigint
(µs), the wrappers are their nullable value, Struct, Value and ListValue are JSON text. A field that
can tell presence is null when it is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.column_types import META, Type
from lakemq.spark_plugin.export.decoding.decoder import (
    ERROR_CHARS_MAX,
    FRAME_BYTES,
    BadRow,
    Decoded,
    decode_each,
)

if TYPE_CHECKING:
    import pyarrow as pa

_WRAPPERS: Final = (
    "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value",
    "BoolValue", "StringValue", "BytesValue",
)  # fmt: skip
_JSON: Final = ("Struct", "Value", "ListValue")
_MICROS: Final = 1_000_000
_INCONVERTIBLE: Final = (ValueError, TypeError, OverflowError, RecursionError, json_format.Error)
"""What a value outside of a column's range raises, such as a time in the year 300,000; Arrow's own
errors are among them."""


class _Column(NamedTuple):
    """A column and how it is built of cells (None: null)."""

    type: pa.DataType
    build: Callable[[Sequence[Any]], pa.Array]


class ProtobufDecoder:
    """Decodes values by one message of a set of descriptors."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """`descriptors`: a FileDescriptorSet with all imports, as `protoc --include_imports
        --descriptor_set_out` writes it. `message`: full name; may be empty if there is only one."""
        import pyarrow as pa

        descriptor = find_message(descriptors, message)
        self._class = message_factory.GetMessageClass(descriptor)
        self._fields = [
            (each, _column(each, (descriptor.full_name,))) for each in descriptor.fields
        ]
        if META in [each.name for each, _ in self._fields]:
            raise OptionError(f"--schema: {META} is taken by the export's own column")
        self.schema = pa.schema([(each.name, column.type) for each, column in self._fields])
        self.found: dict[str, Type] = {}

    def has_new_fields(self) -> bool:
        """Always False: the schema that was given fixes the columns, so a value adds none."""
        return False

    def decode(self, values: pa.Array, keys: pa.Array | None = None) -> Decoded:
        """`values`: binary. Every row is either in `rows` or in `bad`."""
        import pyarrow as pa

        rows, messages, bad = decode_each(values, "not_protobuf", self._message)
        try:
            table = self._table(messages)
        except _INCONVERTIBLE:
            kept = []
            for row, message in zip(rows, messages, strict=True):
                try:
                    # Once more one by one: Arrow does not say which message did not fit.
                    self._table([message])
                    kept.append((row, message))
                except _INCONVERTIBLE as error:
                    bad.append(BadRow(row, "wrong_type", str(error)[:ERROR_CHARS_MAX]))
            rows = [row for row, _ in kept]
            table = self._table([message for _, message in kept])
        return Decoded(pa.array(rows, pa.int64()), table, sorted(bad))

    def _message(self, value: bytes) -> object:
        """Without the frame of a schema registry, whose message index 0 is the first message: a
        message never begins with 0, which is no number of a field."""
        framed = value[:1] == b"\0" and value[FRAME_BYTES : FRAME_BYTES + 1] == b"\0"
        return self._class.FromString(value[FRAME_BYTES + 1 :] if framed else value)

    def _table(self, messages: Sequence[object]) -> pa.Table:
        """Raises what `_INCONVERTIBLE` names for a message that its columns can't hold."""
        import pyarrow as pa

        columns = [column.build(_cells(each, messages)) for each, column in self._fields]
        return pa.Table.from_arrays(columns, schema=self.schema)


def find_message(descriptors: bytes, name: str) -> Descriptor:
    """OptionError, with what there is, if the message is not among the descriptors."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for each in files:
            pool.AddSerializedFile(each.SerializeToString())
    except Exception as error:  # protobuf's implementations differ in what they raise
        raise OptionError(f"--schema holds no descriptors: {error}") from None
    there = [
        f"{each.package}.{message.name}".lstrip(".")
        for each in files
        if not each.package.startswith("google.protobuf")
        for message in each.message_type
    ]
    if not name and len(there) == 1:
        name = there[0]
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise OptionError(
            f"--message {name or 'is missing'}: --schema has {', '.join(there) or 'no message'}"
        ) from None


def _cells(field: FieldDescriptor, messages: Sequence[Any]) -> list[Any]:
    """The field of every message, None where a message is None or has none."""
    name = field.name
    # Without presence (proto3 scalars) the default can't be told from absence, so the default it
    # is.
    if field.has_presence:
        return [
            getattr(each, name) if each is not None and each.HasField(name) else None
            for each in messages
        ]
    return [None if each is None else getattr(each, name) for each in messages]


def _column(field: FieldDescriptor, above: tuple[str, ...]) -> _Column:
    """`above`: names of the messages that contain the field."""
    import pyarrow as pa

    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        keys = _single(message.fields_by_name["key"], above)
        items = _single(message.fields_by_name["value"], above)
        return _Column(pa.map_(keys.type, items.type), lambda cells: _maps(cells, keys, items))
    one = _single(field, above)
    if field.is_repeated:
        kind = pa.list_(pa.field("element", one.type))
        return _Column(kind, lambda cells: _lists(cells, one, kind))
    return one


def _lists(cells: Sequence[Any], one: _Column, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    flat = one.build([each for cell in cells if cell is not None for each in cell])
    return pa.ListArray.from_arrays(_offsets(cells), flat, type=kind)


def _maps(cells: Sequence[Any], keys: _Column, items: _Column) -> pa.Array:
    import pyarrow as pa

    pairs = [pair for cell in cells if cell is not None for pair in cell.items()]
    return pa.MapArray.from_arrays(
        _offsets(cells),
        keys.build([key for key, _ in pairs]),
        items.build([item for _, item in pairs]),
    )


def _offsets(cells: Sequence[Any]) -> pa.Array:
    """Arrow's list offsets; a null offset makes the list null."""
    import pyarrow as pa

    offsets: list[int | None] = []
    end = 0
    for cell in cells:
        offsets.append(None if cell is None else end)
        end += 0 if cell is None else len(cell)
    return pa.array([*offsets, end], pa.int32())


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> _Column:
    """The column of one value of the field."""
    import pyarrow as pa

    if field.message_type is not None:
        return _message(field, field.message_type, above)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return _Column(
            pa.string(),
            lambda cells: pa.array(
                [None if each is None else names.get(each, str(each)) for each in cells],
                pa.string(),
            ),
        )
    kind = _scalar_type(field.cpp_type, field.type == FieldDescriptor.TYPE_BYTES)
    return _Column(kind, lambda cells: pa.array(cells, kind))


def _scalar_type(cpp_type: int, is_bytes: bool) -> pa.DataType:
    import pyarrow as pa

    if is_bytes:
        return pa.binary()
    return {
        FieldDescriptor.CPPTYPE_INT32: pa.int32(),
        FieldDescriptor.CPPTYPE_INT64: pa.int64(),
        # Delta and Iceberg have no unsigned types: the next wider signed one, or a decimal, holds
        # all values.
        FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
        FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
        FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
        FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
        FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
        FieldDescriptor.CPPTYPE_STRING: pa.string(),
    }[cpp_type]


def _message(field: FieldDescriptor, message: Descriptor, above: tuple[str, ...]) -> _Column:
    import pyarrow as pa

    package, _, name = message.full_name.rpartition(".")
    if package == "google.protobuf":
        known = _well_known(message, name)
        if known is not None:
            return known
    # A recursive message would make columns without end.
    if message.full_name in above:
        raise OptionError(
            f"--schema: field {field.full_name} is a {message.full_name} within itself, which no "
            "column can hold"
        )
    if not message.fields:
        raise OptionError(f"--schema: field {field.full_name} is a message without fields")
    inner = [(each, _column(each, (*above, message.full_name))) for each in message.fields]
    fields = [pa.field(each.name, column.type) for each, column in inner]

    def build(cells: Sequence[Any]) -> pa.Array:
        absent = pa.array([cell is None for cell in cells], pa.bool_())
        arrays = [column.build(_cells(each, cells)) for each, column in inner]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=absent)

    return _Column(pa.struct(fields), build)


def _well_known(message: Descriptor, name: str) -> _Column | None:
    import pyarrow as pa

    if name in ("Timestamp", "Duration"):
        kind = pa.timestamp("us", tz="UTC") if name == "Timestamp" else pa.int64()
        return _Column(kind, lambda cells: pa.array([_micros(each) for each in cells], kind))
    if name in _WRAPPERS:
        value = message.fields_by_name["value"]
        inner = _single(value, ())
        return _Column(
            inner.type,
            lambda cells: inner.build([None if each is None else each.value for each in cells]),
        )
    if name in _JSON:
        return _Column(
            pa.string(), lambda cells: pa.array([_json(each) for each in cells], pa.string())
        )
    return None


def _micros(time: Any) -> int | None:
    return None if time is None else time.seconds * _MICROS + time.nanos // 1000


def _json(value: Any) -> str | None:
    if value is None:
        return None
    return json_format.MessageToJson(value, indent=None, ensure_ascii=False)
