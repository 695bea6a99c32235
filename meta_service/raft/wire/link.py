"""The way to one other member. A thread connects, and again when the connection is lost; what is
sent goes from the Raft thread straight into the socket."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Final, Protocol

from lakemq.meta_service.raft.wire.connection import Connection
from lakemq.meta_service.raft.wire.frames import (
    HELLO_MAX_BYTES,
    FrameReader,
    Hello,
    Refusal,
    decode_hello,
    encode_hello,
)
from lakemq.meta_service.raft.wire.sockets import check_name, host_and_port, refuses, set_options
from lakemq.meta_service.raft.wire_format import BadMessage

_CONNECT_S: Final = 1.0
_HELLO_S: Final = 5.0
"""For TLS and the answer of a member that is busy."""
_PAUSE_S: Final = 0.1


class Owner(Protocol):
    """What a link's thread tells; all may be called from any thread."""

    @property
    def client_context(self) -> ssl.SSLContext | None:
        """For connections that are opened; None: plain text."""

    def hello(self) -> Hello:
        """What this member says of itself."""

    def link_connected(self, link: Link, hello: Hello) -> None:
        """The other member has accepted, and said this; the Raft thread calls `take_socket`."""

    def note_failure(self, peer: str, error: Exception) -> None:
        """It cannot be reached, and why."""

    def refused(self, peer: str) -> None:
        """The connection is lost, and no process listens there."""


class Link:
    """Made, sent on and stopped in the Raft thread."""

    def __init__(self, wire: Owner, peer: str, address: str) -> None:
        self._wire, self.peer, self.address = wire, peer, address
        self.connection: Connection | None = None
        self._broke_off = False
        """It was connected, and is not known to be dead since."""
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"meta-raft-{peer}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ its thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                hello = self._connect()
            except (OSError, ValueError, BadMessage, Refusal) as error:
                if not self._stopping.is_set():
                    self._wire.note_failure(self.peer, error)
                self._close_socket()
            else:
                self._ended.clear()
                if not self._stopping.is_set():  # `stop` sets both, this one first
                    self._wire.link_connected(self, hello)
                    self._ended.wait()
                self._broke_off = True
            self._look_if_dead()
            self._stopping.wait(_PAUSE_S)
        self._close_socket()

    def _connect(self) -> Hello:
        """Raises OSError, ValueError (of an address), BadMessage, Refusal."""
        connected = socket.create_connection(host_and_port(self.address), _CONNECT_S)
        self._socket = connected
        set_options(connected)
        connected.settimeout(_HELLO_S)
        context = self._wire.client_context
        if context is not None:
            secure = context.wrap_socket(connected, do_handshake_on_connect=False)
            connected = self._socket = secure
            secure.do_handshake()
            check_name(secure, self.peer)
        connected.sendall(encode_hello(self._wire.hello()))
        # The other side answers that it knows and accepts this member. Only then is anything sent:
        # before, a message would be queued for a member that may refuse it.
        hello = decode_hello(self._first_frame(connected))
        if hello.member_id != self.peer:
            raise Refusal(f"{hello.member_id!r} is there in its place")
        return hello

    def _first_frame(self, connected: socket.socket) -> bytes:
        reader = FrameReader(HELLO_MAX_BYTES)
        deadline = time.monotonic() + _HELLO_S
        while time.monotonic() < deadline:
            data = connected.recv(HELLO_MAX_BYTES)
            if not data:
                raise ConnectionResetError("the member has closed the connection")
            for each in reader.take(data):
                return each
        raise TimeoutError

    def _look_if_dead(self) -> None:
        """Once for each link that broke off: whether no process listens there any more."""
        if self._broke_off and not self._stopping.is_set() and refuses(self.address, _PAUSE_S):
            self._broke_off = False
            self._wire.refused(self.peer)

    def _close_socket(self) -> None:
        taken, self._socket = self._socket, None
        if taken is not None:
            taken.close()

    # ------------------------------------------------------------ the Raft thread

    def take_socket(self) -> socket.socket | None:
        """The connected socket; None: the link is stopped."""
        if self._stopping.is_set():
            return None
        taken, self._socket = self._socket, None
        return taken

    def end(self) -> None:
        """The connection is lost: the thread connects again, unless the link is stopped."""
        self.connection = None
        self._ended.set()

    def stop(self) -> None:
        """The thread ends soon; `join` waits for it."""
        self._stopping.set()
        if self.connection is not None:
            self.connection.close()
        connecting = self._socket
        if connecting is not None:
            # Ends what the thread waits for. Of the plain socket: TLS belongs to its thread.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connecting, socket.SHUT_RDWR)
        self.end()

    def join(self) -> None:
        self._thread.join()
