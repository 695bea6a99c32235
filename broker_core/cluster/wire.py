"""The wire format of protobuf, for messages that hold record batches: their bytes are neither
copied into a message object when it is built nor out of it when it is parsed.

Source: https://protobuf.dev/programming-guides/encoding/. Fields that a reader does not know are
skipped, of a field that comes twice the last one counts; groups, which proto3 has not, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_VARINT_MAX_BITS: Final = 64
ENTRY_FIELDS_MAX: Final = 64
"""Of one entry of a message: those that are known, and room for later ones."""


class BadFrame(InvalidRequest):
    """Bytes of another node that are not the message they should be."""


def varint(value: int) -> bytes:
    """A whole number; negative ones as 64 bits in two's complement, like protobuf's int64."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= (1 << _VARINT_MAX_BITS) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(field: int, value: int) -> bytes:
    """A field that holds a number; nothing for 0, as proto3 has it. `field`: 1 to 15."""
    return bytes((field << 3 | _VARINT,)) + varint(value) if value else b""


def length_head(field: int, size_bytes: int) -> bytes:
    """What stands before the content of a field of `size_bytes` bytes. `field`: 1 to 15."""
    return bytes((field << 3 | _LENGTH,)) + varint(size_bytes)


def bytes_field(field: int, content: bytes) -> bytes:
    """A field that holds bytes; nothing for no bytes. `field`: 1 to 15."""
    return length_head(field, len(content)) + content if content else b""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number without sign, and where it ends. Raises BadFrame."""
    value = shift = 0
    end = len(data)
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> _VARINT_MAX_BITS:
                break
            return value, at
        shift += 7
        if shift >= _VARINT_MAX_BITS + 6:
            break
    raise BadFrame("a number has no end, or more than 64 bits")


def fields(data: memoryview, count_max: int) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of each field in order: a number without sign, or a part of `data` that
    is not copied. Raises BadFrame, also for more than `count_max`, known or not: each takes the
    event loop some time, and the smallest has two bytes."""
    at, end, count = 0, len(data), 0
    while at < end:
        count += 1
        if count > count_max:
            raise BadFrame(f"a message of more than {count_max} fields")
        tag, at = read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        if not field:
            raise BadFrame("a field has number 0")
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield field, value
        elif kind == _LENGTH:
            size, at = read_varint(data, at)
            if size > end - at:
                raise BadFrame(f"field {field} of {size} bytes in {end - at} bytes")
            yield field, data[at : at + size]
            at += size
        elif kind in (_FIXED32, _FIXED64):  # of a field that these messages have not
            at += 4 if kind == _FIXED32 else 8
            if at > end:
                raise BadFrame(f"field {field} is cut short")
        else:
            raise BadFrame(f"field {field} has wire type {kind}")


def as_number(value: int | memoryview, maximum: int) -> int:
    """A field's value as a number from 0 to `maximum`. Raises BadFrame."""
    if not isinstance(value, int) or value > maximum:
        raise BadFrame(f"a number is not from 0 to {maximum}")
    return value


def as_signed(value: int | memoryview) -> int:
    """A field's value as an int64. Raises BadFrame."""
    if not isinstance(value, int):
        raise BadFrame("a field holds bytes in place of a number")
    return value - (1 << _VARINT_MAX_BITS) if value >> (_VARINT_MAX_BITS - 1) else value


def as_bytes(value: int | memoryview, size_max_bytes: int) -> memoryview:
    """A field's value as bytes. Raises BadFrame."""
    if isinstance(value, int) or len(value) > size_max_bytes:
        raise BadFrame(f"a field does not hold up to {size_max_bytes} bytes")
    return value


def as_text(value: int | memoryview, size_max_bytes: int) -> str:
    """A field's value as text of that many bytes at most. Raises BadFrame."""
    try:
        return str(as_bytes(value, size_max_bytes), "utf-8")
    except UnicodeDecodeError:
        raise BadFrame("a field is not UTF-8") from None
