"""The connections to other brokers: one channel for each, streams that are opened again when they
end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, OutcomeUnknown, Unavailable
from lakemq.broker_core.cluster.identity import PeerBook, PeerIdentity, PeerTls, metadata_of
from lakemq.broker_core.cluster.local.calls import open_call
from lakemq.broker_core.cluster.local.messages import Messages
from lakemq.broker_core.cluster.local.sockets import ProcessSockets
from lakemq.broker_core.cluster.peer_server import OPTIONS, REFUSED, SERVICE
from lakemq.broker_core.cluster.streams import ByteStream, LeaderStream, first_of

_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 1_000
_CONNECT_S: Final = 3.0
"""How long a node may take to accept a stream."""
_CALL_S: Final = 3.0
_NOT_SENT: Final = ("failed to connect to all addresses", "errors resolving", "DNS resolution")
"""How gRPC begins to say that there was no connection to send a call on."""
_CHANNEL_OPTIONS: Final = (
    *OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)
_log: Final = logging.getLogger(__name__)
_rng: Final = random.Random()

Talk = Callable[[ByteStream], Awaitable[None]]


class Peers:
    """Lives on the event loop."""

    def __init__(
        self,
        identity: PeerIdentity,
        book: PeerBook,
        address_of: Callable[[str], str],
        tls: PeerTls | None,
        sockets: ProcessSockets | None = None,
    ) -> None:
        """`address_of`: node id -> `host:port` of its listener `peer`; empty if unknown.
        `sockets`: over which streams to other processes of this node go."""
        self.on_ended: Callable[[str], None] = lambda node: None
        """Called with a node when a stream to it has ended that the node had accepted."""
        self._identity = identity
        self._book = book
        self._address_of = address_of
        self._tls = tls
        self._sockets = sockets
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._kept: set[asyncio.Task[None]] = set()
        self._renewed = asyncio.Event()

    def renew(self) -> None:
        """This node has registered again: streams are opened again with its new epoch."""
        self._renewed.set()
        self._renewed = asyncio.Event()

    def follow(
        self, node: str, serve: Callable[[LeaderStream], Awaitable[None]]
    ) -> Callable[[], None]:
        """Keep a `Replicate` stream to a leader: `serve` is called with each new one, which ends
        when it returns or raises a LakeMQError; then another is opened. Returns the end of it."""

        async def talk(stream: ByteStream) -> None:
            await LeaderStream(node, stream).run(serve)

        return self.keep(node, "Replicate", talk)

    def keep(self, node: str, method: str, talk: Talk) -> Callable[[], None]:
        """Keep a stream of `method` to a node: `talk` is called with each new one. Returns the end
        of it."""
        task = asyncio.get_running_loop().create_task(self._keep(node, method, talk))
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

        def end() -> None:
            task.cancel()

        return end

    async def _keep(self, node: str, method: str, talk: Talk) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        reported = ""
        while True:
            try:
                await self._stream(node, method, talk, backoff.reset)
                reason = "it was closed"
            except LakeMQError as error:
                reason = str(error)
            except grpc.aio.AioRpcError as error:
                reason = error.details() or error.code().name
            except asyncio.InvalidStateError as error:  # it ended just before a write
                reason = str(error)
            except asyncio.CancelledError:
                # Also what gRPC raises in a write of a call that ends meanwhile.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                reason = "it was cancelled"
            except Exception:
                # Without its streams the node could not take part, and nothing would say so.
                _log.exception("stream %s to node %s failed", method, node)
                reason = "it failed"
            # Once for each cause: a node that is away for an hour is one line.
            if reason != reported:
                reported = reason
                _log.info("stream %s to node %s: %s", method, node, reason)
            await asyncio.sleep(backoff.next_s())

    async def _stream(
        self, node: str, method: str, talk: Talk, accepted: Callable[[], None]
    ) -> None:
        """Open one stream and talk. Raises LakeMQError, AioRpcError."""
        # Taken before the epoch is told. If this node registers while the stream is being opened,
        # it would speak for the old epoch for good, and others would refuse to answer it.
        renewed = self._renewed

        async def until_renewed(stream: ByteStream) -> None:
            await first_of(talk(stream), _ended_by(renewed))

        local = await self._open_local(node, method)
        if local is not None:
            stream, metadata = local
            try:
                await self._talk(node, metadata, stream, until_renewed, accepted)
            finally:
                stream.close()
            return
        open_stream: Any = self._channel(node).stream_stream(SERVICE + method)
        call: Any = open_stream(metadata=self._identity.metadata())
        try:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    metadata = metadata_of(await call.initial_metadata())
            except TimeoutError:
                raise Unavailable(f"{node} does not answer") from None
            if not metadata and call.done():
                raise Unavailable(f"{node} refused: {await call.details()}")
            await self._talk(node, metadata, _Called(call), until_renewed, accepted)
        finally:
            call.cancel()

    async def _open_local(self, node: str, method: str) -> tuple[Messages, dict[str, str]] | None:
        """A stream over a Unix socket; None: the node must be called over gRPC."""
        path = None if self._sockets is None else self._sockets.of(node)
        if path is None or not self._identity.broker_epoch():
            return None
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await open_call(path, method, self._identity.metadata())
        except TimeoutError:
            raise Unavailable(f"{node} does not answer") from None
        except Unavailable as error:
            raise Unavailable(f"{node} refused: {error}") from None

    async def _talk(
        self,
        node: str,
        metadata: Mapping[str, str],
        stream: ByteStream,
        talk: Talk,
        accepted: Callable[[], None],
    ) -> None:
        self._book.check_callee(node, metadata)
        accepted()
        try:
            await talk(stream)
        finally:
            self.on_ended(node)

    async def call(
        self, node: str, method: str, request: bytes, timeout_s: float = _CALL_S
    ) -> bytes:
        """The answer of a node. Raises Unavailable: it was not asked, or refused; OutcomeUnknown:
        it was asked, and has not answered; NotAuthenticated."""
        ask: Any = self._channel(node).unary_unary(SERVICE + method)
        call: Any = ask(request, metadata=self._identity.metadata(), timeout=timeout_s)
        try:
            answer: bytes = await call
            self._book.check_callee(node, metadata_of(await call.initial_metadata()))
            return answer
        except grpc.aio.AioRpcError as error:
            kind = Unavailable if _is_refusal(error) else OutcomeUnknown
            raise kind(f"{node}: {error.details() or error.code().name}") from None
        finally:
            call.cancel()

    def _channel(self, node: str) -> grpc.aio.Channel:
        """Raises Unavailable."""
        address = self._address_of(node)
        if not self._identity.broker_epoch():
            raise Unavailable("this node has not registered yet")
        if not address:
            raise Unavailable(f"the address of node {node} is unknown")
        known = self._channels.get(node)
        if known is not None and known[0] == address:
            return known[1]
        if known is not None:
            self._close_soon(known[1])
        channel = self._channels[node] = address, self._connected(node, address)
        return channel[1]

    def _connected(self, node: str, address: str) -> grpc.aio.Channel:
        # Not shared with other channels of this process to the same address: nodes that run in one
        # process would end each other's streams.
        options: list[tuple[str, str | int]] = [
            *_CHANNEL_OPTIONS,
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(
            self._tls.authority, self._tls.key, self._tls.certificate
        )
        # The certificate names the node, wherever it runs.
        options.append(("grpc.ssl_target_name_override", node))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def _close_soon(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all streams, then close the channels."""
        kept = list(self._kept)
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, *self._closing, return_exceptions=True)
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for _, channel in channels.values()))


def _is_refusal(error: grpc.aio.AioRpcError) -> bool:
    """Whether the node has not carried the call out, for certain."""
    if (error.details() or "").startswith(_NOT_SENT):
        return error.code() is grpc.StatusCode.UNAVAILABLE
    # gRPC itself ends calls with codes that a node's refusals have, too.
    return any(name == REFUSED for name, _ in error.trailing_metadata() or ())


async def _ended_by(event: asyncio.Event) -> None:
    await event.wait()


class _Called:
    """Implements `ByteStream` at the caller's end."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        data = await self._call.read()
        if data is not grpc.aio.EOF:
            return bytes(data)
        code = await self._call.code()
        if code is not grpc.StatusCode.OK:
            raise Unavailable(await self._call.details() or code.name)
        return None

    async def write(self, data: bytes) -> None:
        await self._call.write(data)
