"""Raft messages between members over gRPC, with mutual TLS.

Own threads, not the event loop: a busy broker must not hold back heartbeats. Each member opens one
stream to each other member and sends on it; what it receives comes on the streams that the others
opened. Messages are dropped rather than queued without bound: Raft repairs what is lost.

With TLS a member is who its certificate names (subject alternative name = member id). Plain text
is for loopback only, where a member is who it says it is.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc
import msgpack

from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.raft.membership import MEMBERS_MAX
from lakemq.meta_service.raft.state import Message
from lakemq.meta_service.raft.thread_queue import ThreadQueue
from lakemq.meta_service.raft.wire_format import (
    MESSAGE_MAX_BYTES,
    BadMessage,
    decode_message,
    encode_message,
)

LOG: Final = logging.getLogger(__name__)
STREAM: Final = "/lakemq.raft.v1.Raft/Stream"
FRAME_MAX_BYTES: Final = MESSAGE_MAX_BYTES + 1024 * 1024
_FRAME_TARGET_BYTES: Final = 512 * 1024
_FRAME_MESSAGES_MAX: Final = 256
_QUEUE_MESSAGES_MAX: Final = 4096
_WAITING_MAX: Final = 10_000
_CONNECT_S: Final = 1.0
_PAUSE_S: Final = 0.1
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", FRAME_MAX_BYTES),
    ("grpc.max_send_message_length", FRAME_MAX_BYTES),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.so_reuseport", 0),
)
_SERVER_OPTIONS: Final = (
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_allowed_incoming_connections", 256),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
"""What bounds a connection that is not a member's: a frame is read once its sender is known."""
_UNKNOWN_MEMBER: Final = grpc.StatusCode.NOT_FOUND
"""The answer to one that is no member, or not any more."""


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificate chain, its key, and the authority that signed the members' certificates."""

    certificate: bytes
    key: bytes
    authority: bytes


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


class _Link:
    """The stream to one other member. Its thread connects, sends, and connects again."""

    def __init__(self, wire: GrpcWire, peer: str, address: str) -> None:
        self._wire, self._peer, self.address = wire, peer, address
        # Not `queue.Queue`: its conditions in Python cost the Raft thread more than the message.
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._connected = False
        self._broke_off = False
        """It was connected, and is not known to be dead since."""
        self._call: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"meta-raft-{peer}", daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        if not self._connected:
            return
        # Dropped, not awaited: the Raft thread must never block on a slow member.
        if self._queue.qsize() >= _QUEUE_MESSAGES_MAX:
            self._wire.dropped += 1
        else:
            self._queue.put(data)

    def _run(self) -> None:
        while not self._stopping.is_set():
            channel = self._wire.channel_to(self._peer, self.address)
            try:
                if self._is_ready(channel):
                    self._stream(channel)
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                self._wire.note_failure(self._peer, error)
            finally:
                channel.close()
            self._look_if_dead()
            self._stopping.wait(_PAUSE_S)

    def _look_if_dead(self) -> None:
        """Once for each link that broke off: whether no process listens there any more."""
        if self._broke_off and not self._stopping.is_set() and _refuses(self.address):
            self._broke_off = False
            self._wire.refused(self._peer)

    def _is_ready(self, channel: grpc.Channel) -> bool:
        """Wait for the connection, but not longer than this link is wanted."""
        ready = grpc.channel_ready_future(channel)
        for _ in range(round(_CONNECT_S / _PAUSE_S)):
            try:
                ready.result(_PAUSE_S)
                return True
            except grpc.FutureTimeoutError as error:
                if self._stopping.is_set():
                    break
                self._wire.note_failure(self._peer, error)
                self._look_if_dead()
        ready.cancel()
        return False

    def _stream(self, channel: grpc.Channel) -> None:
        # What was queued for the former stream is out of date: the leader asks again where the
        # member is.
        while not self._queue.empty():
            self._queue.get_nowait()
        method: Any = channel.stream_unary(STREAM)
        call = self._call = method.future(self._frames(), metadata=self._wire.metadata())
        if self._stopping.is_set():
            call.cancel()
        try:
            # The other side answers with its first header that it knows and accepts this member.
            metadata = {key: value for key, value in call.initial_metadata() or ()}
            if "lakemq-member" not in metadata:
                call.result()
            # Only now is anything sent: before, a message would be queued for a member that may
            # refuse the stream.
            self._connected = True
            self._broke_off = False
            self._wire.connected(self._peer, metadata)
            call.result()
        finally:
            if self._connected:
                self._connected = False
                self._broke_off = True
                self._wire.disconnected(self._peer)
            self._wake()
            call.cancel()

    def _frames(self) -> Iterator[bytes]:
        """Messages in frames: whatever waits goes together."""
        while True:
            data = self._queue.get()
            if data is None:
                return
            frame, size = [data], len(data)
            while len(frame) < _FRAME_MESSAGES_MAX and size < _FRAME_TARGET_BYTES:
                try:
                    data = self._queue.get_nowait()
                except queue.Empty:
                    break
                if data is None:
                    return
                frame.append(data)
                size += len(data)
            yield msgpack.packb(frame, use_bin_type=True)

    def _wake(self) -> None:
        """Let the thread that gRPC runs `_frames` in come to its end."""
        self._queue.put(None)

    def stop(self) -> None:
        """The thread ends soon; `join` waits for it."""
        self._stopping.set()
        self._wake()
        call = self._call
        if call is not None:
            call.cancel()

    def join(self) -> None:
        self._thread.join()


class GrpcWire:
    """Implements `Wire`. `receive(peer, message)` and the others run in the Raft thread."""

    def __init__(
        self,
        identity: Identity,
        peers: Mapping[str, str],
        thread_queue: ThreadQueue,
        pem: Pem | None,
    ) -> None:
        self._identity = identity
        self._thread_queue = thread_queue
        self._pem = pem
        self._addresses = dict(peers)
        self._links: dict[str, _Link] = {}
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
        self._server: grpc.Server | None = None

    # ------------------------------------------------------------ starting

    def start(self, host: str, port: int) -> int:
        """Listen and begin to connect. Returns the port. Raises StartupFailed."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # Two streams per member at most: the present one and one that is breaking off.
        pool = ThreadPoolExecutor(2 * MEMBERS_MAX + 2, "meta-raft-in")
        server = grpc.server(pool, options=(*_OPTIONS, *_SERVER_OPTIONS))
        server.add_generic_rpc_handlers((_Handler(self),))
        try:
            bound = (
                server.add_secure_port(address, _server_credentials(self._pem))
                if self._pem is not None
                else server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise StartupFailed(f"cannot listen on {address}: the port is taken") from error
        server.start()
        self._server = server
        self._open_links()
        return int(bound)

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """Raft thread: who the other members are from now on."""
        if dict(addresses) != self._addresses:
            self._addresses = dict(addresses)
            if self._server is not None:
                self._open_links()

    def _open_links(self) -> None:
        for peer, link in list(self._links.items()):
            if self._addresses.get(peer) != link.address:
                self._links.pop(peer).stop()
        for peer, address in self._addresses.items():
            if peer not in self._links:
                self._links[peer] = _Link(self, peer, address)

    def channel_to(self, peer: str, address: str) -> grpc.Channel:
        """A channel to another member; with TLS it checks that the certificate names `peer`."""
        if self._pem is None:
            return grpc.insecure_channel(address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            self._pem.authority, self._pem.key, self._pem.certificate
        )
        # The certificate names the member, wherever it runs.
        options = (*_OPTIONS, ("grpc.ssl_target_name_override", peer))
        return grpc.secure_channel(address, credentials, options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What this member says of itself at the start of a stream, as gRPC metadata."""
        return (
            ("lakemq-member", self._identity.member_id),
            ("lakemq-address", self._identity.api_address()),
            ("lakemq-cluster", self._identity.cluster_id()),
            ("lakemq-level", str(self._identity.feature_level)),
        )

    def api_address(self, peer: str) -> str:
        """Where clients reach a member; empty while it is unknown."""
        return self._api_addresses.get(peer, "")

    def feature_level(self, peer: str) -> int:
        """Highest feature level that a member's code knows; 0 while that is unknown."""
        return self._feature_levels.get(peer, 0)

    def _note(self, peer: str, metadata: Mapping[str, Any]) -> None:
        """What a member says of itself when it connects, either way."""
        self._api_addresses[peer] = str(metadata.get("lakemq-address", ""))
        level = str(metadata.get("lakemq-level", "1"))
        # What a peer sends is not trusted to be a number; level 1 is what every member knows.
        self._feature_levels[peer] = int(level) if level.isdecimal() and len(level) < 9 else 1

    # ------------------------------------------------------------ sending

    def send(self, peer: str, message: Message) -> None:
        """Encode and queue a message, or drop it where there is no link; never blocks."""
        link = self._links.get(peer)
        if link is not None:
            data = encode_message(message)
            self.bytes_out += len(data)
            link.send(data)

    def connected(self, peer: str, metadata: Mapping[str, Any]) -> None:
        """Link thread: a member has accepted the stream, and said this of itself."""
        # So that the next failure is said again.
        self._reported.pop(peer, None)
        self.unknown_to.discard(peer)
        self._note(peer, metadata)
        self._thread_queue.post(lambda: self.on_connected(peer))

    def disconnected(self, peer: str) -> None:
        """Link thread: the stream to a member has ended."""
        self._thread_queue.post(lambda: self.on_disconnected(peer))

    def refused(self, peer: str) -> None:
        """Link thread: the stream to a member has ended, and no process listens at its address."""
        LOG.info("member %s refuses connections: its process is dead", peer)
        self._thread_queue.post(lambda: self.on_refused(peer))

    def note_failure(self, peer: str, error: BaseException) -> None:
        """Say once why a member cannot be reached."""
        reason = error.details() if isinstance(error, grpc.Call) else "no answer"
        if isinstance(error, grpc.Call) and error.code() is _UNKNOWN_MEMBER:
            self.unknown_to.add(peer)
        if self._reported.get(peer) != reason:
            self._reported[peer] = reason or ""
            LOG.info("member %s at %s: %s", peer, self._addresses.get(peer, "?"), reason)

    def why_unreachable(self) -> str:
        """Of each member that cannot be reached, the reason."""
        reasons = [f"{peer}: {reason}" for peer, reason in sorted(self._reported.items())]
        return "; ".join(reasons) or "all can be reached"

    # ------------------------------------------------------------ receiving

    def serve(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """One stream of another member, in a thread of the server."""
        peer = self._identify(context)
        context.send_initial_metadata(self.metadata())
        for frame in frames:
            self.bytes_in += len(frame)
            if peer not in self._addresses:
                context.abort(_UNKNOWN_MEMBER, f"{peer!r} was removed")
            try:
                messages = [decode_message(data) for data in _unpack_frame(frame)]
            except BadMessage as error:
                LOG.warning("member %s sent a bad message: %s", peer, error)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            while len(self._thread_queue) > _WAITING_MAX:
                time.sleep(_PAUSE_S / 10)  # the Raft thread is behind: take no more off the stream
            for message in messages:
                self._post(peer, message)
        return b""

    def _post(self, peer: str, message: Message) -> None:
        self._thread_queue.post(lambda: self.on_message(peer, message))

    def _identify(self, context: grpc.ServicerContext) -> str:
        """The member at the other end, by its certificate where there is one."""
        metadata = dict(context.invocation_metadata())
        peer = str(metadata.get("lakemq-member", ""))
        if self._pem is not None:
            # The name that the peer gives is a claim; the certificate that TLS verified is the
            # proof.
            names = context.auth_context().get("x509_subject_alternative_name", ())
            if peer.encode() not in names:
                context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, f"the certificate does not name {peer!r}"
                )
        if peer not in self._addresses:
            context.abort(_UNKNOWN_MEMBER, f"{peer!r} is not a member")
        # A group that was restored from a backup keeps names and certificates and gets a new id:
        # its log must not mix with that of the old group.
        ours, theirs = self._identity.cluster_id(), str(metadata.get("lakemq-cluster", ""))
        if ours and theirs and ours != theirs:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{peer!r} belongs to cluster {theirs}, this member to {ours}",
            )
        self._note(peer, metadata)
        return peer

    def close(self) -> None:
        """Stop all links and the server; blocks until their threads have ended."""
        links = list(self._links.values())
        for link in links:
            link.stop()
        for link in links:
            link.join()
        if self._server is not None:
            self._server.stop(0.2).wait()


class _Handler(grpc.GenericRpcHandler):
    """Routes the one method."""

    def __init__(self, wire: GrpcWire) -> None:
        self._wire = wire

    def service(self, details: Any) -> Any:
        if details.method == STREAM:
            return grpc.stream_unary_rpc_method_handler(self._wire.serve)
        return None


def _refuses(address: str) -> bool:
    """Whether the host answers, for there is no process that listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PAUSE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _unpack_frame(frame: bytes) -> tuple[bytes, ...]:
    """Raises BadMessage."""
    try:
        # `max_ext_len=0`: no extension types, which a member never sends.
        messages = msgpack.unpackb(frame, use_list=False, raw=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadMessage(f"a frame that is not MessagePack: {error}") from error
    if not isinstance(messages, tuple) or not all(isinstance(m, bytes) for m in messages):
        raise BadMessage("a frame must be a list of messages")
    return messages


def _server_credentials(pem: Pem) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(pem.key, pem.certificate)], pem.authority, require_client_auth=True
    )
