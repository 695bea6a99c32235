"""A connection to another member once both know each other: the Raft thread reads and writes it.

No thread stands between Raft and the socket: each hand-over would cost a message more than all that
is done with it.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Final

from lakemq.meta_service.raft.thread_queue import ThreadQueue
from lakemq.meta_service.raft.wire.frames import FrameReader, frame
from lakemq.meta_service.raft.wire.sockets import AGAIN
from lakemq.meta_service.raft.wire_format import MESSAGE_MAX_BYTES, BadMessage

UNSENT_MAX_BYTES: Final = 64 * 1024 * 1024
"""Kept for a member that does not take it; what is more is dropped."""
_PART_BYTES: Final = 64 * 1024
_RECORD_BYTES: Final = 16 * 1024
_PARTS_MAX: Final = 32
"""Read in one tick, so that heartbeats are never late."""


class Connection:
    """Raft thread only."""

    def __init__(
        self,
        connected: socket.socket,
        thread_queue: ThreadQueue,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_frame` may raise BadMessage, which ends the connection. `on_lost(reason)` is called
        once, between two ticks, unless `close` comes first."""
        self._socket = connected
        self._thread_queue = thread_queue
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reader = FrameReader(MESSAGE_MAX_BYTES)
        self._unsent = bytearray()
        self._is_open = True
        connected.setblocking(False)
        self._watch()

    def _watch(self) -> None:
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._thread_queue.watch(self._socket.fileno(), events, self._turn)

    # ------------------------------------------------------------ sending

    def send(self, data: bytes) -> bool:
        """False: it was dropped. Never blocks."""
        framed = frame(data)
        # Dropped, not awaited: the Raft thread must never block on a slow member.
        if not self._is_open or len(self._unsent) + len(framed) > UNSENT_MAX_BYTES:
            return False
        if self._unsent:
            self._unsent += framed
            return True
        try:
            sent = self._write(framed)
        except OSError as error:
            # Not from here: the caller is in the middle of something.
            self._is_open = False
            reason = str(error)
            self._thread_queue.post(lambda: self._lose(reason))
            return False
        if sent < len(framed):
            self._unsent += framed[sent:]
            self._watch()
        return True

    def _write(self, data: bytes | bytearray) -> int:
        """How many bytes were taken. Raises OSError."""
        sent = 0
        while sent < len(data):
            try:
                # After a refusal TLS wants the same bytes, or those and more: the caller keeps
                # them.
                sent += self._socket.send(data[sent : sent + _PART_BYTES])
            except AGAIN:
                break
        return sent

    # ------------------------------------------------------------ receiving

    def _turn(self) -> None:
        """The socket can be read or written, or has failed."""
        if not self._is_open:  # `_lose` is on its way
            return
        for _ in range(_PARTS_MAX):
            data = self._transfer()
            try:
                for each in self._reader.take(data):
                    self._on_frame(each)
            except BadMessage as error:
                self._lose(f"a bad message: {error}")
                return
            # TLS gives whole records, of 16 KiB at most. Behind a shorter one there is mostly
            # nothing, and what there is wakes the thread again.
            if len(data) < _RECORD_BYTES:
                return

    def _transfer(self) -> bytes:
        """Send what waits, and return what has come; empty: nothing, or the connection is lost."""
        try:
            if self._unsent:
                del self._unsent[: self._write(self._unsent)]
                self._watch()
            data = self._socket.recv(_PART_BYTES)
        except AGAIN:
            return b""
        except OSError as error:
            self._lose(str(error))
            return b""
        if not data:
            self._lose("the member has closed the connection")
        return data

    # ------------------------------------------------------------ the end

    def _lose(self, reason: str) -> None:
        if self._socket.fileno() >= 0:
            self.close()
            self._on_lost(reason)

    def close(self) -> None:
        """Nothing more is sent, and no one is told. May be called again."""
        self._is_open = False
        if self._socket.fileno() >= 0:
            self._thread_queue.unwatch(self._socket.fileno())
            self._socket.close()
        self._unsent.clear()
