"""Accepting connections: no more than the listener may have, and what the process has descriptors
for. Edge.

At a bound of the whole listener connections are left in the system's queue for a moment rather than
refused: a storm of devices is served in turns. So are they when there are no descriptors left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from lakemq.broker_core.api.limits.connection_limits import AdmittedConnection

log = logging.getLogger(__name__)

BACKLOG: Final = 4096
ACCEPTS_PER_TURN: Final = 64
"""Connections accepted before others get their turn of the event loop."""
NO_ROOM_S: Final = 0.02
"""How long nothing is accepted while too many connections have not authenticated."""
NO_DESCRIPTORS_S: Final = 0.25
"""The same while the process or the system has no descriptors or memory for another socket."""
LINK_BYTES: Final = 8 * 1024
TLS_LINK_BYTES: Final = 56 * 1024
ASYNCIO_TLS_LINK_BYTES: Final = 320 * 1024
"""Memory that a connection takes which has said nothing yet, as measured; asyncio's own TLS has a
buffer of 256 KiB for each."""
_SAID_EVERY_S: Final = 60.0
_LACKING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Admission(Protocol):
    """What a listener decides about those who come."""

    name: str

    @property
    def full(self) -> bool:
        """Whether accepting is paused."""

    def admit(self, host: str) -> AdmittedConnection | None:
        """None: connections of this peer are refused."""

    def link(self, admitted: AdmittedConnection) -> asyncio.Protocol:
        """What serves the connection; tells `admitted` when it is closed."""

    def tls(self) -> ssl.SSLContext | None:
        """As of now; None: without TLS."""


def link_bytes(loop: asyncio.AbstractEventLoop, *, tls: bool) -> int:
    """What to reckon with for each connection."""
    if not tls:
        return LINK_BYTES
    uvloop = type(loop).__module__.startswith("uvloop")
    return TLS_LINK_BYTES if uvloop else ASYNCIO_TLS_LINK_BYTES


async def listening_sockets(
    loop: asyncio.AbstractEventLoop, host: str, port: int, *, shared: bool = False
) -> list[socket.socket]:
    """One for each address of the host. `shared`: other processes of this user may listen there
    too, and the system spreads connections over them. Raises OSError."""
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # The host's IPv4 address has a socket of its own, which would find the port taken.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            _listen(sock)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def unix_socket(path: str, mode: int) -> socket.socket:
    """At a path, in place of one that is left there. Raises OSError."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        # Nothing can connect before `listen`, so the mode holds from the first connection on.
        os.chmod(path, mode)
        _listen(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.listen(BACKLOG)


class Acceptor:
    """Accepts what comes to a listener's sockets, until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        admission: Admission,
        handshake_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._admission = admission
        self._handshake_timeout_s = handshake_timeout_s
        self._opening: set[asyncio.Task[None]] = set()
        """Those with TLS."""
        self._plain: set[Coroutine[Any, Any, None]] = set()
        """Those without, that wait for `connection_made`."""
        self._said_s: float | None = None
        self.sockets = list(sockets)
        for sock in self.sockets:
            loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Accept no more; who is in the middle of a TLS handshake is dropped."""
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for task in self._opening:
            task.cancel()
        plain, self._plain = self._plain, set()
        for opening in plain:
            opening.close()

    def _pause(self, sock: socket.socket, delay_s: float) -> None:
        self._loop.remove_reader(sock)
        self._loop.call_later(delay_s, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        if sock in self.sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._admission.full:
                self._pause(sock, NO_ROOM_S)
                return
            try:
                accepted, address = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _LACKING:
                    self._say(error)
                    self._pause(sock, NO_DESCRIPTORS_S)
                    return
                continue  # that one went away again
            self._take(accepted, address)

    def _say(self, error: OSError) -> None:
        """Now and then; it may go on for long."""
        now_s = self._loop.time()
        if self._said_s is None or now_s - self._said_s >= _SAID_EVERY_S:
            self._said_s = now_s
            log.warning("%s: no connections are accepted: %s", self._admission.name, error)

    def _take(self, accepted: socket.socket, address: object) -> None:
        host = str(address[0]) if isinstance(address, tuple) else "unix"
        admitted = self._admission.admit(host)
        if admitted is None:
            accepted.close()
            return
        context = self._admission.tls()
        opening = self._open(accepted, admitted, context)
        if context is None:
            self._step(opening)
            return
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, accepted, admitted))

    def _step(self, opening: Coroutine[Any, Any, None]) -> None:
        """Open a connection without a task, which would cost more than the two steps: up to
        `connection_made`, and behind it."""
        try:
            made = opening.send(None)
        except StopIteration:
            return
        self._plain.add(opening)
        made.add_done_callback(partial(self._step_on, opening))

    def _step_on(self, opening: Coroutine[Any, Any, None], made: asyncio.Future[Any]) -> None:
        if opening in self._plain:
            self._plain.remove(opening)
            self._step(opening)

    def _opened(
        self, accepted: socket.socket, admitted: AdmittedConnection, task: asyncio.Task[None]
    ) -> None:
        self._opening.discard(task)
        # One that is cancelled before its first step has cleaned up nothing.
        if task.cancelled():
            admitted.close()
            accepted.close()

    async def _open(
        self,
        accepted: socket.socket,
        admitted: AdmittedConnection,
        context: ssl.SSLContext | None,
    ) -> None:
        """Make a link of it; with TLS, once that is negotiated."""
        timeout_s = self._handshake_timeout_s if context is not None else None
        link: Callable[[], asyncio.Protocol] = lambda: self._admission.link(admitted)  # noqa: E731
        try:
            await self._loop.connect_accepted_socket(
                link, accepted, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except BaseException as error:
            admitted.close()
            accepted.close()
            # A handshake that fails is the client's affair; what else is raised is a fault here.
            if not isinstance(error, OSError | TimeoutError | asyncio.CancelledError):
                raise
