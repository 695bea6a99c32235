"""Sparkplug B payloads: a row for each metric.

Source: Eclipse Sparkplug 3.0.0, chapter 6 ("Payloads"), field numbers and data types; topics:
chapter 4, `spBv1.0/<group>/<message type>/<edge node>[/<device>]`, which is the record's key.
A payload without metrics makes one row. Data sets and templates stay as their bytes. What follows a
birth message may leave out names, for aliases, and data types: `Birth` has what it told of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DATA_TYPES: Final = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float",
    "Double", "Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File",
    "Template", "PropertySet", "PropertySetList", "Int8Array", "Int16Array", "Int32Array",
    "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array", "FloatArray",
    "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
_SIGNED_BITS: Final = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_PAYLOAD: Final = (
    ("timestamp", 1, "uint64"),
    ("metrics", 2, "Metric"),
    ("seq", 3, "uint64"),
    ("uuid", 4, "string"),
    ("body", 5, "bytes"),
)
_METRIC: Final = (
    ("name", 1, "string"), ("alias", 2, "uint64"), ("timestamp", 3, "uint64"),
    ("datatype", 4, "uint32"), ("is_historical", 5, "bool"), ("is_transient", 6, "bool"),
    ("is_null", 7, "bool"), ("int_value", 10, "uint32"), ("long_value", 11, "uint64"),
    ("float_value", 12, "float"), ("double_value", 13, "double"), ("boolean_value", 14, "bool"),
    ("string_value", 15, "string"), ("bytes_value", 16, "bytes"), ("dataset_value", 17, "bytes"),
    ("template_value", 18, "bytes"),
)  # fmt: skip
_VALUES: Final = tuple(name for name, _, _ in _METRIC[7:])
_COMPRESSED: Final = "SPBV1.0_COMPRESSED"
INFLATED_MAX_BYTES: Final = 64 << 20
_PREFIX: Final = "spBv1.0/"


def _payload_class() -> Any:
    """The class of Sparkplug's Payload. Nested messages that are kept as bytes are declared so,
    which Protobuf encodes alike."""
    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package="lakemq.sparkplug")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in (("Metric", _METRIC), ("Payload", _PAYLOAD)):
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label = kinds.LABEL_REPEATED if kind == "Metric" else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind == "Metric":
                added.type, added.type_name = kinds.TYPE_MESSAGE, ".lakemq.sparkplug.Metric"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lakemq.sparkplug.Payload"))


Payload: Final = _payload_class()


def place_of(key: bytes | None) -> dict[str, Any]:
    """`group_id`, `message_type`, `edge_node_id`, `device_id` out of the MQTT topic name; empty if
    it is not a Sparkplug topic."""
    topic = (key or b"").decode(errors="replace")
    parts = topic.removeprefix(_PREFIX).split("/")
    if not topic.startswith(_PREFIX):
        return {}
    if parts[0] == "STATE":  # of a host application: no group, and JSON for its payload
        return {"message_type": "STATE", "device_id": "/".join(parts[1:])}
    names = ("group_id", "message_type", "edge_node_id", "device_id")
    return dict(zip(names, parts, strict=False))


class Birth(NamedTuple):
    """What a birth message tells of the metrics that come after it."""

    names: Mapping[int, str]
    """By alias."""
    datatypes: Mapping[str, int]
    """By name."""


UNBORN: Final = Birth({}, {})


def birth_of(payload: Any) -> Birth:
    """What a payload tells if it is a birth's."""
    return Birth(
        {each.alias: each.name for each in payload.metrics if each.HasField("alias")},
        {each.name: each.datatype for each in payload.metrics if each.HasField("datatype")},
    )


def needs_birth(payload: Any) -> bool:
    """Whether a metric leaves out what its birth has told."""
    return any(
        not (each.HasField("name") and each.HasField("datatype")) for each in payload.metrics
    )


def rows_of(
    address: dict[str, Any], value: bytes, inflated_max: int = INFLATED_MAX_BYTES
) -> list[dict[str, Any]]:
    """One row for each metric, or one without. `address`: of `place_of`. `inflated_max`: bytes of a
    compressed payload. Raises ValueError, DecodeError, zlib.error: it is no Sparkplug B."""
    if address.get("message_type") == "STATE":
        return [{**address, "string_value": value.decode()}]
    return rows_of_payload(address, payload_of(value, inflated_max))


def payload_of(value: bytes, inflated_max: int = INFLATED_MAX_BYTES) -> Any:
    """The payload, inflated if it is compressed. Raises as `rows_of`."""
    payload = Payload.FromString(value)
    if payload.uuid == _COMPRESSED:
        seq = payload.seq
        # Sparkplug 3.0: a payload with this uuid carries another one in its body, compressed.
        payload = Payload.FromString(_inflate(payload.body, inflated_max))
        payload.seq = payload.seq or seq
    return payload


def rows_of_payload(
    address: dict[str, Any], payload: Any, birth: Birth = UNBORN
) -> list[dict[str, Any]]:
    """One row for each metric, or one without; `birth` has what metrics leave out."""
    shared = {
        **address,
        "seq": payload.seq if payload.HasField("seq") else None,
        "payload_time": payload.timestamp if payload.HasField("timestamp") else None,
    }
    return [{**shared, **_metric(each, birth)} for each in payload.metrics] or [shared]


def _inflate(body: bytes, most: int) -> bytes:
    """GZIP or DEFLATE, which zlib tells apart. ValueError when it gets too large."""
    stream = zlib.decompressobj(wbits=47)
    found = stream.decompress(body, most)
    # The limit stops a small message from taking all memory.
    if not stream.eof:
        raise ValueError(f"compressed payload is cut off, or above {most} bytes")
    return found


def _metric(metric: Any, birth: Birth) -> dict[str, Any]:
    name = metric.name if metric.HasField("name") else None
    if name is None and metric.HasField("alias"):
        name = birth.names.get(metric.alias)
    number = metric.datatype
    if name is not None and not metric.HasField("datatype"):
        number = birth.datatypes.get(name, 0)
    datatype = DATA_TYPES[number] if number < len(DATA_TYPES) else "Unknown"
    row = {
        "metric": name,
        "alias": _signed(metric.alias, 64) if metric.HasField("alias") else None,
        "metric_time": metric.timestamp if metric.HasField("timestamp") else None,
        "datatype": datatype,
        "is_historical": metric.is_historical,
        "is_transient": metric.is_transient,
        "is_null": metric.is_null,
    }
    there = next((name for name in _VALUES if metric.HasField(name)), None)
    if there is not None and not metric.is_null:
        row |= _value(there, getattr(metric, there), datatype)
    return row


def _value(field: str, value: Any, datatype: str) -> dict[str, Any]:
    if field in ("int_value", "long_value"):
        if datatype == "DateTime":
            return {"time_value": value, "long_value": value}
        bits = _SIGNED_BITS.get(datatype)
        if bits is not None:
            return {"long_value": _signed(value, bits)}
        # UInt64 has values that no signed column holds.
        if value >= 1 << 63:  # no bigint: its digits
            return {"string_value": str(value)}
        return {"long_value": value}
    if field in ("float_value", "double_value"):
        return {"double_value": value}
    if field in ("dataset_value", "template_value"):
        return {"bytes_value": value}
    return {field: value}


def _signed(value: int, bits: int) -> int:
    """Two's complement: Sparkplug sends signed numbers in unsigned fields."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
