"""Accepts other members: one thread for all TLS handshakes and first frames, so that a caller that
is no member, or stands still, holds up neither the Raft thread nor other callers."""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from lakemq.meta_service.raft.wire.frames import (
    HELLO_MAX_BYTES,
    FrameReader,
    Hello,
    Refusal,
    decode_hello,
    encode_hello,
    encode_refusal,
)
from lakemq.meta_service.raft.wire.sockets import AGAIN, set_options
from lakemq.meta_service.raft.wire_format import BadMessage

LOG: Final = logging.getLogger(__name__)
CALLERS_MAX: Final = 256
"""Callers that are not known yet; one more drops the oldest, for a member is known within
milliseconds."""
HOST_CALLERS_MAX: Final = 32
"""The same of one host, so that it does not push out members that call from others."""
CALLER_S: Final = 10.0
"""A caller that is not known by then is dropped."""
_TURN_S: Final = 1.0
_RECORD_BYTES: Final = 16 * 1024
"""The largest record of TLS: nothing is left behind in it, where no selector would see it."""


class _Caller:
    """A connection whose other end is not known yet."""

    def __init__(self, connected: socket.socket, host: str) -> None:
        self.socket = connected
        self.host = host
        self.deadline = time.monotonic() + CALLER_S
        self.reader = FrameReader(HELLO_MAX_BYTES)
        self.is_shaken = not isinstance(connected, ssl.SSLSocket)

    def hello(self) -> Hello | None:
        """None: more has to come first. Raises OSError, BadMessage, Refusal."""
        if isinstance(self.socket, ssl.SSLSocket) and not self.is_shaken:
            self.socket.do_handshake()
            self.is_shaken = True
        data = self.socket.recv(_RECORD_BYTES)
        if not data:
            raise ConnectionResetError
        frames = self.reader.take(data)
        if not frames:
            return None
        if len(frames) > 1 or not self.reader.is_between_frames:
            raise BadMessage("messages before the answer to the hello")
        return decode_hello(frames[0])


class Listener:
    """`admit(hello, socket)` gives the answer or raises Refusal, `adopt(member, socket)` gets who
    was admitted; both are called in the listener's thread."""

    def __init__(
        self,
        server: socket.socket,
        context: ssl.SSLContext | None,
        admit: Callable[[Hello, socket.socket], Hello],
        adopt: Callable[[str, socket.socket], None],
    ) -> None:
        self._server, self._context = server, context
        self._admit, self._adopt = admit, adopt
        self._callers: dict[socket.socket, _Caller] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        server.setblocking(False)
        for each in (server, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="meta-raft-in", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(_TURN_S if self._callers else None):
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj in self._callers:  # else one before it has dropped this one
                    self._turn(key.data)
            now = time.monotonic()
            for caller in [each for each in self._callers.values() if each.deadline < now]:
                self._drop(caller)

    def _accept(self) -> None:
        try:
            connected, (host, *_) = self._server.accept()
        except OSError:  # the caller is gone again, or too many files are open
            time.sleep(0.01)
            return
        try:
            connected.setblocking(False)
            set_options(connected)
            if self._context is not None:
                connected = self._context.wrap_socket(
                    connected, server_side=True, do_handshake_on_connect=False
                )
        except OSError:
            connected.close()
            return
        others = list(self._callers.values())
        same = [each for each in others if each.host == host]
        if len(same) >= HOST_CALLERS_MAX:
            self._drop(same[0])
        elif len(others) >= CALLERS_MAX:
            self._drop(others[0])
        caller = self._callers[connected] = _Caller(connected, host)
        self._selector.register(connected, selectors.EVENT_READ, caller)
        self._turn(caller)

    def _turn(self, caller: _Caller) -> None:
        connected = caller.socket
        try:
            hello = caller.hello()
            if hello is None:
                raise BlockingIOError
            # It has room in the buffer of a new connection.
            connected.send(encode_hello(self._admit(hello, connected)))
        except ssl.SSLWantWriteError:
            self._selector.modify(connected, selectors.EVENT_WRITE, caller)
        except AGAIN:
            self._selector.modify(connected, selectors.EVENT_READ, caller)
        except Refusal as refusal:
            self._refuse(caller, refusal)
        except (OSError, BadMessage) as error:
            LOG.debug("a caller was dropped: %s", error)
            self._drop(caller)
        else:
            self._forget(caller)
            self._adopt(hello.member_id, connected)

    def _refuse(self, caller: _Caller, refusal: Refusal) -> None:
        try:
            caller.socket.send(encode_refusal(refusal))
        except OSError as error:
            LOG.debug("a refusal was not sent: %s", error)
        self._drop(caller)

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.socket)
        del self._callers[caller.socket]

    def _drop(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.socket.close()

    def close(self) -> None:
        """Blocks until the thread has ended."""
        self._waker.send(b"\0")
        self._thread.join()
        self._selector.close()
        for each in (self._server, self._woken, self._waker, *self._callers):
            each.close()
