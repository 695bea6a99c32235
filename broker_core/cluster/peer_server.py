"""The listener that other brokers connect to. A caller is known before any message of it is read.

With TLS it is who its certificate names; plain text is for loopback only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotAuthenticated,
    StaleEpoch,
    StartupError,
    Unavailable,
)
from lakemq.broker_core.api.hosts import is_loopback, join_host
from lakemq.broker_core.cluster.identity import (
    Peer,
    PeerBook,
    PeerIdentity,
    PeerTls,
    metadata_of,
    names_of,
)
from lakemq.broker_core.cluster.local.calls import LocalCall, LocalServer
from lakemq.broker_core.cluster.local.sockets import ProcessSockets
from lakemq.broker_core.cluster.replica_frames import SEND_MAX_BYTES
from lakemq.broker_core.cluster.streams import ByteStream, FollowerStream, first_of

SERVICE: Final = "/lakemq.peer.v1.Peer/"
REFUSED: Final = "lakemq-error"
"""Trailer of a call that this node refused: the error's code."""
STREAMS_PER_PEER_MAX: Final = 12
"""Calls of one node at a time; a node makes one of each kind, or a few."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", SEND_MAX_BYTES),
    ("grpc.max_send_message_length", SEND_MAX_BYTES),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
_SERVER_OPTIONS: Final = (
    # With SO_REUSEPORT a second node could bind the port too, and take a part of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.lookahead_bytes", 64 * 1024),
    ("grpc.http2.bdp_probe", 1),
    ("grpc.max_concurrent_streams", 2 * STREAMS_PER_PEER_MAX),
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
)
_STOP_S: Final = 0.5
_LINE_S: Final = 1.0
"""One line of the log in this time is about calls that were refused or ended."""
_log: Final = logging.getLogger(__name__)

StreamHandler = Callable[[Peer, ByteStream], Awaitable[None]]
CallHandler = Callable[[Peer, bytes], Awaitable[bytes]]
ServeFollower = Callable[[FollowerStream], Awaitable[None]]


class PeerServer:
    """Implements the `Listener` port; its address is registered under the name `peer`."""

    name = "peer"

    def __init__(
        self,
        identity: PeerIdentity,
        book: PeerBook,
        *,
        host: str,
        port: int,
        tls: PeerTls | None,
        advertise: str = "",
        sockets: ProcessSockets | None = None,
    ) -> None:
        """`advertise`: `host:port` that others are told in place of where it listens. `sockets`:
        the other processes of this node come over one."""
        self.on_ended: Callable[[str], None] = lambda node: None
        """Called with a node when a stream of it has ended."""
        self._identity = identity
        self._book = book
        self._host = host
        self._port = port
        self._tls = tls
        self._advertise = advertise
        self._local = None if sockets is None else LocalServer(sockets.own, self._serve)
        self._machine = "" if sockets is None else sockets.machine
        self._bound = 0
        self._server: grpc.aio.Server | None = None
        self._line_s = float("-inf")
        self._unsaid = 0
        """Lines since the last one of the log that it was too soon for."""
        self._streams: dict[str, StreamHandler] = {}
        self._calls: dict[str, CallHandler] = {}
        self._open: Counter[str] = Counter()
        self._newest: dict[tuple[str, str], asyncio.Event] = {}
        """Node and method -> set when a newer stream takes the place of the one there is."""

    # -- what is served: named before `start`

    def serve_followers(self, serve: ServeFollower) -> None:
        """Have `serve` called with each follower's stream, which ends when it returns."""

        async def handle(peer: Peer, stream: ByteStream) -> None:
            await FollowerStream(peer, stream).run(serve)

        self._streams["Replicate"] = handle

    def serve_stream(self, method: str, handle: StreamHandler) -> None:
        """Have `handle` called with each stream of `method`, which ends when it returns."""
        self._streams[method] = handle

    def serve_call(self, method: str, handle: CallHandler) -> None:
        """Have `handle` called with each request of `method`."""
        self._calls[method] = handle

    # -- life

    async def start(self) -> None:
        """Listen. Raises StartupError."""
        address = join_host(self._host, self._port)
        if self._tls is None and not is_loopback(self._host):
            raise StartupError(
                f"cluster: {address} is not loopback, and brokers speak plain text only there; set "
                "meta.tls_cert, meta.tls_key and meta.tls_ca, or cluster.host"
            )
        server = grpc.aio.server(options=[*OPTIONS, *_SERVER_OPTIONS])
        server.add_generic_rpc_handlers((_Methods(self),))
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            # gRPC's core would write its own lines to standard error before ours.
            with socket.create_server((self._host, self._port), family=family):
                pass
            self._bound = (
                server.add_insecure_port(address)
                if self._tls is None
                else server.add_secure_port(address, _credentials(self._tls))
            )
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "the port is taken"
            raise StartupError(f"cluster.peer_port: cannot listen on {address}: {reason}") from None
        # First: who finds no socket there comes over gRPC, and stays with that.
        if self._local is not None:
            await self._local.start()
        await server.start()
        self._server = server

    def addresses(self) -> Sequence[str]:
        """`host:port` that other nodes connect to."""
        return [self._advertise or join_host(self._host, self._bound)]

    async def stop(self) -> None:
        """End all streams, then close."""
        if self._local is not None:
            await self._local.stop()
        if self._server is not None:
            await self._server.stop(_STOP_S)

    # -- calls

    def method(self, name: str) -> Any:
        """How gRPC is to answer a method; None: it is unknown."""
        short = name.removeprefix(SERVICE)
        if short in self._streams:
            return _stream_handler(lambda context: self._serve(context, short))
        if short in self._calls:
            return _call_handler(
                lambda requests, context: self._answer(requests, context, self._calls[short])
            )
        return None

    async def _serve(self, context: Any, method: str) -> None:
        peer = await self._accepted(context)
        if method not in self._streams:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"no stream {method[:32]!r} is served"
            )
        self._open[peer.node_id] += 1
        replaced = self._take_place(peer, method)
        try:
            await context.send_initial_metadata(self._identity.metadata())
            handle = self._streams[method]
            await first_of(handle(peer, _Served(context)), _replaced(replaced))
        except LakeMQError as error:
            self._say(logging.WARNING, f"stream of node {peer.node_id} is closed: {error}")
            await _abort(context, error)
        finally:
            self._leave(peer)
            self.on_ended(peer.node_id)
            # The stream that took the place of this one may have ended before it.
            if self._newest.get((peer.node_id, method)) is replaced:
                del self._newest[peer.node_id, method]

    def _take_place(self, peer: Peer, method: str) -> asyncio.Event:
        """A node has one stream of each kind: it opens another when it has given one up, of which
        this node may not have heard, and nothing that comes over that one counts any more."""
        before = self._newest.get((peer.node_id, method))
        if before is not None:
            before.set()
        replaced = self._newest[peer.node_id, method] = asyncio.Event()
        return replaced

    async def _answer(
        self, requests: AsyncIterator[bytes], context: Any, handle: CallHandler
    ) -> bytes:
        peer = await self._accepted(context)
        self._open[peer.node_id] += 1
        try:
            await context.send_initial_metadata(self._identity.metadata())
            return await handle(peer, await anext(requests, b""))
        except LakeMQError as error:
            await _abort(context, error)
            raise  # not reached: gRPC's abort raises
        finally:
            self._leave(peer)

    async def _accepted(self, context: Any) -> Peer:
        names = None
        if isinstance(context, LocalCall):
            # Only this user can open the socket: as good as a certificate of the node's.
            names = [self._machine]
        elif self._tls is not None:
            names = names_of(context.auth_context())
        try:
            peer = self._book.accept(metadata_of(context.invocation_metadata()), names)
        except LakeMQError as error:
            self._say(logging.INFO, f"a call of another node is refused: {error}")
            await _abort(context, error)
            raise
        if self._open[peer.node_id] >= STREAMS_PER_PEER_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{peer.node_id!r} has {STREAMS_PER_PEER_MAX} calls open, the most it may have",
                ((REFUSED, Unavailable.code),),
            )
        return peer

    def _say(self, level: int, line: str) -> None:
        """A peer that calls again and again must not fill the disk."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._line_s < _LINE_S:
            self._unsaid += 1
            return
        _log.log(level, "%s%s", line, f" (and {self._unsaid} more)" if self._unsaid else "")
        self._line_s, self._unsaid = now_s, 0

    def _leave(self, peer: Peer) -> None:
        self._open[peer.node_id] -= 1
        if not self._open[peer.node_id]:
            del self._open[peer.node_id]


async def _replaced(event: asyncio.Event) -> None:
    await event.wait()
    raise Unavailable("a newer stream of the node has taken its place")


class _Methods(grpc.GenericRpcHandler):
    """Routes the methods that are served."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        return self._server.method(handler_call_details.method)


class _Served:
    """Implements `ByteStream` at the callee's end."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, data: bytes) -> None:
        await self._context.write(data)


def _stream_handler(serve: Callable[[Any], Awaitable[None]]) -> Any:
    async def handle(requests: object, context: Any) -> None:
        await serve(context)

    return grpc.stream_stream_rpc_method_handler(handle)


def _call_handler(answer: Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]) -> Any:
    # Of a single request gRPC takes all before any of our code runs; of a stream, which looks the
    # same on the wire, no more than its window until it is read.
    async def handle(requests: Any, context: Any) -> bytes:
        return await answer(requests, context)

    return grpc.stream_unary_rpc_method_handler(handle)


async def _abort(context: Any, error: LakeMQError) -> None:
    if isinstance(error, NotAuthenticated):
        status = grpc.StatusCode.PERMISSION_DENIED
    elif isinstance(error, StaleEpoch):
        status = grpc.StatusCode.FAILED_PRECONDITION
    elif error.retriable:
        status = grpc.StatusCode.UNAVAILABLE
    else:
        status = grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(status, str(error), ((REFUSED, error.code),))


def _credentials(tls: PeerTls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)], tls.authority, require_client_auth=True
    )
