"""Values of stored records, each checked as it is read: what comes out has the
types and bounds that the rest of the broker relies on.

Every function returns its value or raises BadSnapshot, so that a record is refused as a whole where
it is read, and nothing fails later because of it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, PacketType, Properties
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES
from lakemq.plugins.mqtt.wire.properties import RULES, WILL, Kind
from lakemq.plugins.mqtt.wire.reasons import MqttError
from lakemq.plugins.mqtt.wire.topics import check_topic_name

VERSION: Final = 1
LONG_MAX: Final = 2**63 - 1
U32_MAX: Final = 2**32 - 1
_SIZES: Final = {Kind.BYTE: 0xFF, Kind.TWO_BYTES: 0xFFFF, Kind.FOUR_BYTES: U32_MAX}
_PUBLISHED: Final = {
    rule.attribute: rule
    for rule in RULES.values()
    if rule.packets & {WILL, PacketType.PUBLISH} and rule.kind is not Kind.VARIABLE
}
"""Properties that a will or a delayed publish may have."""


class BadSnapshot(ValueError):
    """The bytes are no snapshot that this build reads."""


def unpacked(data: bytes) -> Mapping[str, Any]:
    """The map that a record's value is, of a version that this build reads."""
    value = unpacked_map(data)
    if value.get("v") != VERSION:
        raise BadSnapshot(f"not a snapshot of version {VERSION}")
    return value


def unpacked_map(data: bytes) -> Mapping[str, Any]:
    """The map that a record's value is, of any version."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadSnapshot(f"no msgpack: {error}") from None
    if not isinstance(value, dict):
        raise BadSnapshot(f"{_shown(value)} is no map")
    return value


def number(value: Any, low: int = 0, high: int = LONG_MAX) -> int:
    """A whole number from `low` to `high`."""
    # Not `isinstance`: True is an int, too.
    if type(value) is not int or not low <= value <= high:
        raise BadSnapshot(f"{_shown(value)} is no whole number from {low} to {high}")
    return value


def number_or_none(value: Any, low: int = 0, high: int = LONG_MAX) -> int | None:
    """A whole number from `low` to `high`, or None."""
    return None if value is None else number(value, low, high)


def text(value: Any, bytes_max: int = STRING_MAX_BYTES) -> str:
    """A text without U+0000 that fits a packet."""
    if type(value) is not str or "\0" in value or len(value.encode()) > bytes_max:
        raise BadSnapshot(f"{_shown(value)} is no text of at most {bytes_max} bytes")
    return value


def binary(value: Any) -> bytes:
    """Bytes of any length."""
    if type(value) is not bytes:
        raise BadSnapshot(f"{_shown(value)} is no bytes")
    return value


def flag(value: Any) -> bool:
    """A boolean."""
    if type(value) is not bool:
        raise BadSnapshot(f"{_shown(value)} is neither true nor false")
    return value


def items(value: Any, *sizes: int) -> list[Any]:
    """A list, of one of these sizes where any are given."""
    if type(value) is not list or (sizes and len(value) not in sizes):
        raise BadSnapshot(f"{_shown(value)} is no list" + (f" of {sizes}" if sizes else ""))
    return value


def any_text(value: Any) -> str:
    """A text that never goes into a packet."""
    if type(value) is not str:
        raise BadSnapshot(f"{_shown(value)} is no text")
    return value


def texts_by_text(value: Any) -> dict[str, str]:
    """A map of texts that never goes into a packet."""
    if type(value) is not dict:
        raise BadSnapshot(f"{_shown(value)} is no map")
    return {any_text(name): any_text(said) for name, said in value.items()}


def topic_name(value: Any) -> str:
    """A topic name as clients publish to it."""
    try:
        return check_topic_name(text(value))
    except MqttError as error:
        raise BadSnapshot(f"{_shown(value)}: {error}") from None


def properties(value: Any) -> Properties:
    """Properties of a will or a publish, by their names."""
    if type(value) is not dict:
        raise BadSnapshot(f"{_shown(value)} is no map of properties")
    if not value:
        return NO_PROPERTIES
    return Properties(**{str(name): _property(name, each) for name, each in value.items()})


def _property(name: Any, value: Any) -> Any:
    rule = _PUBLISHED.get(name) if type(name) is str else None
    if rule is None:
        raise BadSnapshot(f"{_shown(name)} is no property of a publish")
    if rule.kind is Kind.PAIR:
        pairs = [items(each, 2) for each in items(value)]
        return tuple((text(key), text(said)) for key, said in pairs)
    if rule.kind is Kind.BINARY:
        if len(binary(value)) > STRING_MAX_BYTES:
            raise BadSnapshot(f"{name} of {len(value)} bytes")
        return value
    if rule.kind is Kind.STRING:
        return topic_name(value) if name == "response_topic" else text(value)
    return number(value, int(rule.positive), 1 if rule.flag else _SIZES[rule.kind])


def _shown(value: Any) -> str:
    return reprlib.repr(value)
