"""A gRPC client that begins messages and never ends them, over HTTP/2 frames of its own (RFC 9113).

It sends as much as flow control lets it: what a server takes without reading, it takes.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE: Final = 4
"""The setting SETTINGS_INITIAL_WINDOW_SIZE."""
_INITIAL_WINDOW: Final = 65_535
_FRAME_BYTES: Final = 16_384
_FILLER: Final = bytes(_FRAME_BYTES)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(pairs: Iterable[tuple[str, str]]) -> bytes:
    """HPACK literals without indexing (RFC 7541, 6.2.2), each shorter than 127 bytes."""
    block = bytearray()
    for name, value in pairs:
        assert len(name) < 127 and len(value) < 127
        block += bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return bytes(block)


@dataclass
class _Call:
    left: int
    """Of the message that is never finished (bytes)."""
    window: int
    begun: bytes


@dataclass
class UnfinishedCalls:
    """One connection. `pump` moves bytes; nothing blocks."""

    sock: socket.socket
    calls: dict[int, _Call] = field(default_factory=dict)
    sent_bytes: int = 0
    """Of messages."""
    ended: int = 0
    """Calls that the server ended."""
    closed: bool = False
    _window: int = _INITIAL_WINDOW
    _initial: int = _INITIAL_WINDOW
    _next: int = 1
    _in: bytearray = field(default_factory=bytearray)
    _out: bytearray = field(default_factory=bytearray)

    @classmethod
    def connect(cls, address: str, source: str = "127.0.0.1") -> UnfinishedCalls:
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)), 10, source_address=(source, 0))
        sock.setblocking(False)
        self = cls(sock)
        self._out += _PREFACE + _frame(_SETTINGS, 0, 0, b"")
        return self

    def begin(self, path: str, message_bytes: int | None, *metadata: tuple[str, str]) -> None:
        """Open a call and declare a message of that size; `pump` sends all of it but a byte. None:
        the call sends nothing at all."""
        stream, self._next = self._next, self._next + 2
        pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
                 ("te", "trailers"), ("content-type", "application/grpc"), *metadata]  # fmt: skip
        self._out += _frame(_HEADERS, _END_HEADERS, stream, _headers(pairs))
        if message_bytes is None:
            self.calls[stream] = _Call(0, self._initial, b"")
        else:
            begun = struct.pack(">BI", 0, message_bytes)
            self.calls[stream] = _Call(message_bytes - 1, self._initial, begun)

    def pump(self) -> bool:
        """Send and receive what is possible now; whether anything moved."""
        if self.closed:
            return False
        try:
            moved = self._receive()
            self._fill()
            while self._out:
                sent = self.sock.send(self._out)
                del self._out[:sent]
                moved = moved or sent > 0
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            self.closed = True
            return False
        return moved

    def _fill(self) -> None:
        for number, call in list(self.calls.items()):
            while not self._out or len(self._out) < 1 << 20:
                room = min(self._window, call.window, _FRAME_BYTES)
                data = call.begun or _FILLER[: min(room, call.left)]
                if len(data) > room or not data:
                    break
                call.left -= 0 if call.begun else len(data)
                call.begun = b""
                call.window -= len(data)
                self._window -= len(data)
                self.sent_bytes += len(data)
                self._out += _frame(_DATA, 0, number, data)

    def _receive(self) -> bool:
        moved = False
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                break
            if not data:
                self.closed = True
                break
            moved = True
            self._in += data
        while len(self._in) >= 9:
            size = int.from_bytes(self._in[:3], "big")
            if len(self._in) < 9 + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._in, 3)
            payload = bytes(self._in[9 : 9 + size])
            del self._in[: 9 + size]
            self._on_frame(kind, flags, stream & 0x7FFFFFFF, payload)
        return moved

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._on_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._out += _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            elif stream in self.calls:
                self.calls[stream].window += more
        elif kind == _RST or (kind == _HEADERS and flags & 1):
            self.ended += self.calls.pop(stream, None) is not None
        elif kind == _GOAWAY:
            self.closed = True

    def _on_settings(self, payload: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", payload):
            if number == _INITIAL_WINDOW_SIZE:
                for call in self.calls.values():
                    call.window += value - self._initial
                self._initial = value
        self._out += _frame(_SETTINGS, _ACK, 0, b"")

    def close(self) -> None:
        self.closed = True
        self.sock.close()


def pump_all(connections: Sequence[UnfinishedCalls], seconds: float, quiet_s: float = 1.0) -> None:
    """Until nothing moves for `quiet_s`, or for `seconds`."""
    end = time.monotonic() + seconds
    moved_at = time.monotonic()
    while (now := time.monotonic()) < end and now - moved_at < quiet_s:
        if any([each.pump() for each in connections]):
            moved_at = now
        open_ones = [each.sock for each in connections if not each.closed]
        if not open_ones:
            return
        select.select(open_ones, [], [], 0.02)
