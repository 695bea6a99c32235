"""Messages over a stream socket, each behind its length. Edge, on the event loop."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from lakemq.broker_core.api.errors import Unavailable

LENGTH: Final = struct.Struct("<I")
LAST: Final = 1 << 31
"""Set in the length of a message that ends the stream: it is text, and says why."""
_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Messages that wait to be read; the socket is not read from while there are more."""
_UNSENT_BYTES: Final = 1024 * 1024
"""Bytes that the system has not taken; `write` waits while there are more."""


class Messages(asyncio.Protocol):
    """Implements `ByteStream` at either end of a connection: one reader, one writer at a time."""

    def __init__(
        self, limit: int, on_open: Callable[[Messages], None] = lambda messages: None
    ) -> None:
        """`limit`: bytes of a message at most, checked before any of them is kept."""
        self.limit = limit
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self._partial = bytearray()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = self._is_full = self._is_over = False
        self._reason = ""
        """Why the stream is over, where that was said or is plain."""
        self._arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Take the messages that are whole by now."""
        if self._is_over:
            return
        source: bytes | bytearray = data
        if self._partial:
            self._partial += data
            source = self._partial
        at = self._take(source)
        if source is self._partial:
            del self._partial[:at]
        elif at < len(data):
            self._partial += data[at:]
        if self._waiting_bytes > _AHEAD_BYTES and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()
        _wake(self._arrived)

    def _take(self, source: bytes | bytearray) -> int:
        """How many bytes were taken."""
        at, end = 0, len(source)
        with memoryview(source) as view:
            while at + LENGTH.size <= end:
                (size,) = LENGTH.unpack_from(view, at)
                is_last, size = size & LAST, size & ~LAST
                if size > self.limit:
                    self._over(f"a message of {size} bytes; {self.limit} is the most")
                    return end
                behind = at + LENGTH.size + size
                if behind > end:
                    break
                message = bytes(view[at + LENGTH.size : behind])
                if is_last:
                    self._over(message.decode("utf-8", "replace"))
                    return end
                self._waiting.append(message)
                self._waiting_bytes += size
                at = behind
        return at

    def pause_writing(self) -> None:
        """The system takes no more for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._is_full = False
        _wake(self._drained)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more; what has come can still be read."""
        self._is_over = True
        _wake(self._arrived)
        _wake(self._drained)

    # -- what users call

    async def read(self) -> bytes | None:
        """The next message; None: the other side has ended the stream. Raises Unavailable with what
        it said of that."""
        while not self._waiting:
            if self._is_over:
                if self._reason:
                    raise Unavailable(self._reason)
                return None
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        message = self._waiting.popleft()
        self._waiting_bytes -= len(message)
        if self._is_paused and self._waiting_bytes <= _AHEAD_BYTES // 2 and self._transport:
            self._is_paused = False
            self._transport.resume_reading()
        return message

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. Raises Unavailable: the stream is over."""
        if self._is_over or self._transport is None:
            raise Unavailable(self._reason or "the other process has ended the stream")
        self._transport.write(LENGTH.pack(len(data)) + data)
        while self._is_full and not self._is_over:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def end(self, reason: str) -> None:
        """Say why the stream is over, then close."""
        text = reason.encode()[: self.limit]
        if self._transport is not None and not self._is_over:
            self._transport.write(LENGTH.pack(len(text) | LAST) + text)
        self.close()

    def close(self) -> None:
        """Close when what was written is out."""
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    def _over(self, reason: str) -> None:
        self._reason = reason
        self.close()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
