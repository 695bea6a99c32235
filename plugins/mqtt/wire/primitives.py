"""Data types of the MQTT wire: a bounded reader over bytes, and writers.

Source: MQTT 5.0 section 1.5 (data representation); 3.1.1 section 1.5 is a subset.
"""

from __future__ import annotations

from typing import Final

from lakemq.plugins.mqtt.wire.reasons import MalformedPacket

STRING_MAX_BYTES: Final = 65_535
VARIABLE_MAX: Final = 268_435_455
"""Largest variable byte integer, and so the largest remaining length (bytes)."""


def text_of(raw: bytes) -> str:
    """Strict UTF-8 [MQTT-1.5.4-1]: no surrogates, no overlong form, and no U+0000
    [MQTT-1.5.4-2]. A leading U+FEFF stays [MQTT-1.5.4-3]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(f"string is not UTF-8: {error.reason}") from None
    if "\0" in text:
        raise MalformedPacket("string holds U+0000")
    return text


class Reader:
    """Reads values out of `data[position:end]`; MalformedPacket when they do not fit."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self.end - self.position

    def take(self, size: int) -> bytes:
        """The next `size` bytes. Raises MalformedPacket when fewer are left."""
        start = self.position
        self.position = stop = start + size
        if stop > self.end:
            raise MalformedPacket(f"{size} bytes wanted, {self.end - start} left in the packet")
        return self.data[start:stop]

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(self.end - self.position)

    def part(self, size: int) -> Reader:
        """A reader over the next `size` bytes, which this one steps over."""
        start = self.position
        self.position = start + size
        if self.position > self.end:
            raise MalformedPacket(f"{size} bytes wanted, {self.end - start} left in the packet")
        return Reader(self.data, start, self.position)

    def byte(self) -> int:
        """One byte as a number. Raises MalformedPacket as `take` does."""
        at = self.position
        if at >= self.end:
            self.take(1)
        self.position = at + 1
        return self.data[at]

    def two_bytes(self) -> int:
        """Two Byte Integer, big-endian (1.5.2). Raises MalformedPacket as `take` does."""
        at = self.position
        if at + 2 > self.end:
            self.take(2)
        self.position = at + 2
        return self.data[at] << 8 | self.data[at + 1]

    def four_bytes(self) -> int:
        """Four Byte Integer, big-endian (1.5.3)."""
        return int.from_bytes(self.take(4), "big")

    def variable(self) -> int:
        """Variable byte integer in its shortest form [MQTT-1.5.5-1]."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 21:
                raise MalformedPacket("variable byte integer longer than 4 bytes")
        if shift and not byte:
            raise MalformedPacket("variable byte integer not in its shortest form")
        return value

    def binary(self) -> bytes:
        """Binary Data: two bytes of length, then the bytes (1.5.6)."""
        return self.take(self.two_bytes())

    def string(self) -> str:
        """UTF-8 Encoded String (1.5.4). Raises MalformedPacket as `text_of` does."""
        return text_of(self.binary())

    def packet_id(self) -> int:
        """Packet identifier, never 0 [MQTT-2.2.1-3]."""
        value = self.two_bytes()
        if not value:
            raise MalformedPacket("packet identifier is 0")
        return value

    def finish(self) -> None:
        """Raises MalformedPacket unless everything was read."""
        if self.position != self.end:
            raise MalformedPacket(f"{self.end - self.position} bytes too many in the packet")


def variable_bytes(value: int) -> bytes:
    """Variable byte integer, shortest form. ValueError above `VARIABLE_MAX`."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value > VARIABLE_MAX:
        raise ValueError(f"{value} does not fit a variable byte integer")
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def binary_bytes(value: bytes) -> bytes:
    """Two bytes of length and the bytes. ValueError above `STRING_MAX_BYTES`."""
    if len(value) > STRING_MAX_BYTES:
        raise ValueError(f"{len(value)} bytes; {STRING_MAX_BYTES} is the most")
    return len(value).to_bytes(2, "big") + value


def string_bytes(value: str) -> bytes:
    """UTF-8 Encoded String (1.5.4). ValueError above `STRING_MAX_BYTES`."""
    return binary_bytes(value.encode())
