"""Raft messages between members over TCP, with mutual TLS.

Own sockets, read and written by the Raft thread, not by the event loop: a busy broker must not hold
back heartbeats. Each member opens one connection to each other member and sends on it; what it
receives comes on the connections that the others opened. Messages are dropped rather than queued
without bound: Raft repairs what is lost.

With TLS a member is who its certificate names (subject alternative name = member id). Plain text
is for loopback only, where a member is who it says it is.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from lakemq.meta_service.raft.state import Message
from lakemq.meta_service.raft.thread_queue import ThreadQueue
from lakemq.meta_service.raft.wire.connection import Connection
from lakemq.meta_service.raft.wire.frames import Hello, Refusal
from lakemq.meta_service.raft.wire.link import Link
from lakemq.meta_service.raft.wire.listener import Listener
from lakemq.meta_service.raft.wire.sockets import Pem, check_name, listen, tls_context
from lakemq.meta_service.raft.wire_format import BadMessage, decode_message, encode_message

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a member says of itself when it connects to others."""

    member_id: str
    api_address: Callable[[], str]
    """Where its clients reach it."""
    cluster_id: Callable[[], str]
    """Empty while it has none: it may join any cluster that lets it."""
    feature_level: int = 1
    """Highest feature level that its code knows."""


class SocketWire:
    """Implements `Wire`. `on_message` and the others run in the Raft thread."""

    def __init__(
        self,
        identity: Identity,
        peers: Mapping[str, str],
        thread_queue: ThreadQueue,
        pem: Pem | None,
    ) -> None:
        """Raises StartupFailed."""
        self._identity = identity
        self._thread_queue = thread_queue
        self.client_context = tls_context(pem, is_server=False) if pem is not None else None
        self._server_context = tls_context(pem, is_server=True) if pem is not None else None
        self._addresses = dict(peers)
        self._links: dict[str, Link] = {}
        self._incoming: dict[str, Connection] = {}
        self._reported: dict[str, str] = {}
        self.unknown_to: set[str] = set()
        """Members that said, when they were last reached, that this is not one of them."""
        self._api_addresses: dict[str, str] = {}
        self._feature_levels: dict[str, int] = {}
        self.on_message: Callable[[str, Message], None]
        self.on_connected: Callable[[str], None]
        self.on_disconnected: Callable[[str], None]
        self.on_refused: Callable[[str], None]
        self.dropped = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self._server: socket.socket | None = None
        self._listener: Listener | None = None
        self._admitted: set[socket.socket] = set()
        """Sockets on their way to the Raft thread."""

    # ------------------------------------------------------------ starting

    def bind(self, host: str, port: int) -> int:
        """Listen; callers wait until `start`. Returns the port. Raises StartupFailed."""
        self._server = listen(host, port)
        return int(self._server.getsockname()[1])

    def start(self) -> None:
        """Accept callers and begin to connect; `hello` is right by now."""
        assert self._server is not None
        self._listener = Listener(self._server, self._server_context, self._admit, self._adopt)
        self._open_links()

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """Raft thread: who the other members are from now on."""
        if dict(addresses) != self._addresses:
            self._addresses = dict(addresses)
            if self._listener is not None:
                self._open_links()

    def _open_links(self) -> None:
        for peer, link in list(self._links.items()):
            if self._addresses.get(peer) != link.address:
                self._links.pop(peer).stop()
                # Not from here: Raft is in the middle of something.
                self._thread_queue.post(partial(self.on_disconnected, peer))
        for peer, address in self._addresses.items():
            if peer not in self._links:
                self._links[peer] = Link(self, peer, address)

    def hello(self) -> Hello:
        """What this member says of itself at the start of a connection."""
        own = self._identity
        return Hello(own.member_id, own.api_address(), own.cluster_id(), own.feature_level)

    def api_address(self, peer: str) -> str:
        """Where clients reach a member; empty while it is unknown."""
        return self._api_addresses.get(peer, "")

    def feature_level(self, peer: str) -> int:
        """Highest feature level that a member's code knows; 0 while that is unknown."""
        return self._feature_levels.get(peer, 0)

    def _note(self, peer: str, hello: Hello) -> None:
        """What a member says of itself when it connects, either way."""
        self._api_addresses[peer] = hello.api_address
        self._feature_levels[peer] = hello.feature_level

    # ------------------------------------------------------------ sending

    def send(self, peer: str, message: Message) -> None:
        """Give a message to the member's socket, or drop it where there is none; never blocks."""
        link = self._links.get(peer)
        if link is not None and link.connection is not None:
            data = encode_message(message)
            if link.connection.send(data):
                self.bytes_out += len(data)
            else:
                self.dropped += 1

    def link_connected(self, link: Link, hello: Hello) -> None:
        """Link thread: a member has accepted the connection, and said this of itself."""
        # So that the next failure is said again.
        self._reported.pop(link.peer, None)
        self.unknown_to.discard(link.peer)
        self._note(link.peer, hello)
        self._thread_queue.post(partial(self._use_link, link))

    def _use_link(self, link: Link) -> None:
        connected = link.take_socket()
        if connected is not None:
            link.connection = Connection(
                connected, self._thread_queue, _refuse_frame, partial(self._link_lost, link)
            )
            self.on_connected(link.peer)

    def _link_lost(self, link: Link, reason: str) -> None:
        LOG.info("member %s at %s: %s", link.peer, link.address, reason)
        link.end()
        self.on_disconnected(link.peer)

    def refused(self, peer: str) -> None:
        """Link thread: the connection to a member is lost, and no process listens there."""
        LOG.info("member %s refuses connections: its process is dead", peer)
        self._thread_queue.post(partial(self.on_refused, peer))

    def note_failure(self, peer: str, error: Exception) -> None:
        """Say once why a member cannot be reached."""
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or "no answer"
        if isinstance(error, Refusal) and error.is_unknown:
            self.unknown_to.add(peer)
        if self._reported.get(peer) != reason:
            self._reported[peer] = reason
            LOG.info("member %s at %s: %s", peer, self._addresses.get(peer, "?"), reason)

    def why_unreachable(self) -> str:
        """Of each member that cannot be reached, the reason."""
        reasons = [f"{peer}: {reason}" for peer, reason in sorted(self._reported.items())]
        return "; ".join(reasons) or "all can be reached"

    # ------------------------------------------------------------ receiving

    def _admit(self, hello: Hello, connected: socket.socket) -> Hello:
        """Listener's thread: whether a caller is a member. Raises Refusal."""
        peer = hello.member_id
        check_name(connected, peer)
        if peer not in self._addresses:
            raise Refusal(f"{peer!r} is not a member", is_unknown=True)
        # A group that was restored from a backup keeps names and certificates and gets a new id:
        # its log must not mix with that of the old group.
        ours, theirs = self._identity.cluster_id(), hello.cluster_id
        if ours and theirs and ours != theirs:
            raise Refusal(f"{peer!r} belongs to cluster {theirs}, this member to {ours}")
        self._note(peer, hello)
        return self.hello()

    def _adopt(self, peer: str, connected: socket.socket) -> None:
        """Listener's thread."""
        self._admitted.add(connected)
        self._thread_queue.post(partial(self._use_incoming, peer, connected))

    def _use_incoming(self, peer: str, connected: socket.socket) -> None:
        self._admitted.discard(connected)
        # One per member: it opens another one when it has given up the one before.
        former = self._incoming.pop(peer, None)
        if former is not None:
            former.close()
        self._incoming[peer] = Connection(
            connected,
            self._thread_queue,
            partial(self._take, peer),
            partial(self._incoming_lost, peer),
        )

    def _take(self, peer: str, data: bytes) -> None:
        """Raises BadMessage."""
        self.bytes_in += len(data)
        if peer not in self._addresses:  # it hears it when it calls again
            raise BadMessage("it was removed")
        self.on_message(peer, decode_message(data))

    def _incoming_lost(self, peer: str, reason: str) -> None:
        LOG.info("from member %s: %s", peer, reason)
        del self._incoming[peer]

    def close(self) -> None:
        """Stop listening and end all connections; blocks until their threads have ended."""
        if self._listener is not None:
            self._listener.close()
        elif self._server is not None:
            self._server.close()
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.stop()
        for link in links:
            link.join()
        for connection in self._incoming.values():
            connection.close()
        for connected in self._admitted:
            connected.close()


def _refuse_frame(data: bytes) -> None:
    """On a connection that this member opened the other one says nothing more."""
    raise BadMessage("a message on a connection to it")
