"""One connection to a remote broker, over amqtt's client. Edge: owns the socket.

amqtt gives the packets, their codec, and the client's side of connecting, subscribing and pinging.
Its own flows for QoS 1 and 2 and its reconnecting are not used, since they lose messages:

- it acknowledges an incoming QoS 1 publish, and promises a QoS 2 one, before anybody has stored it;
- it forgets an outgoing publish after 5 s without an answer, and misses answers that come before
  it has begun to wait for them;
- it connects again without its subscriptions, and a task for each packet has no bound;
- it waits for a ping's answer for ever, so it never finds out that a peer is dead;
- a packet that it refuses leaves the rest of its bytes in the stream, to be read as packets.

Here packets are read whole and bounded, then handed on in order; who is handed a publish answers it
when it is durable.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import warnings
from collections.abc import Iterable
from typing import Any, Final, Protocol

from lakemq.broker_core.api.errors import ConfigError, LakeMQError
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Sent

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # amqtt's own imports warn
    from amqtt.adapters import BufferReader, StreamReaderAdapter, StreamWriterAdapter
    from amqtt.client import ClientContext
    from amqtt.contexts import ClientConfig
    from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError, ProtocolHandlerError
    from amqtt.mqtt import packet_class
    from amqtt.mqtt.connack import ConnackPacket
    from amqtt.mqtt.packet import (
        PINGRESP,
        PUBACK,
        PUBCOMP,
        PUBLISH,
        PUBREC,
        PUBREL,
        SUBACK,
        MQTTFixedHeader,
    )
    from amqtt.mqtt.protocol.client_handler import ClientProtocolHandler
    from amqtt.mqtt.puback import PubackPacket
    from amqtt.mqtt.pubcomp import PubcompPacket
    from amqtt.mqtt.publish import PublishPacket
    from amqtt.mqtt.pubrec import PubrecPacket
    from amqtt.mqtt.pubrel import PubrelPacket
    from amqtt.plugins.manager import PluginManager
    from amqtt.session import Session

BRIDGE_FLAG: Final = 0x80
"""Bit of the protocol level by which bridges tell that they are one (Mosquitto, `try_private`)."""
_WRONG: Final = (AMQTTError, MQTTError, CodecError, NoDataError, ProtocolHandlerError, ValueError)
_REFUSED: Final = {
    2: "it refuses the client id",
    3: "it is not available",
    4: "it refuses user or password",
    5: "we are not authorized",
}


class LinkError(LakeMQError):
    """The link could not be made, or has ended."""

    code = "BRIDGE_LINK"
    retriable = True


class Peer(Protocol):
    """Hears what the remote broker says, in its order."""

    async def publish_came(
        self, name: str, payload: bytes, qos: int, packet_id: int, *, again: bool, retain: bool
    ) -> None:
        """May wait, so that nothing more is read."""

    def puback_came(self, packet_id: int) -> None:
        """PUBACK: a QoS 1 publish is stored there."""

    def pubrec_came(self, packet_id: int) -> None:
        """PUBREC: a QoS 2 publish is stored there, its identifier still in use."""

    def pubrel_came(self, packet_id: int) -> None:
        """PUBREL: the remote broker may use the identifier of its QoS 2 publish again."""

    def pubcomp_came(self, packet_id: int) -> None:
        """PUBCOMP: a QoS 2 publish is finished; its identifier is free."""


class _Handler(ClientProtocolHandler):  # type: ignore[misc]  # amqtt ships no types
    """amqtt's client, reading in our way."""

    peer: Peer
    level_bits = 0
    packet_max_bytes = 0
    why = "the remote broker closed the connection"

    def __init__(self) -> None:
        super().__init__(_plugin_manager())
        self.ended = asyncio.Event()

    async def handle_connection_closed(self) -> None:
        self.ended.set()

    def _build_connect_packet(self) -> Any:
        packet = super()._build_connect_packet()
        packet.variable_header.proto_level |= self.level_bits
        return packet

    async def _reader_loop(self) -> None:
        self._reader_ready.set()
        try:
            while (header := await MQTTFixedHeader.from_stream(self.reader)) is not None:
                size = header.remaining_length
                if size > self.packet_max_bytes:
                    self.why = f"packet of {size} bytes; {self.packet_max_bytes} is the most"
                    return
                # The whole body first: what a decoder refuses or leaves cannot be read as the next
                # packet.
                body = await self.reader.read(size) if size else b""
                packet = await packet_class(header).from_stream(BufferReader(body), header)
                await self._take(header.packet_type, packet)
        except asyncio.IncompleteReadError:
            return
        except (*_WRONG, OSError) as error:
            self.why = f"{type(error).__name__}: {error}"
        finally:
            self._reader_stopped.set()
            self.ended.set()

    async def _take(self, kind: int, packet: Any) -> None:
        if kind == PUBLISH:
            # While this waits, nothing is read, and TCP slows the remote broker down.
            await self.peer.publish_came(
                packet.topic_name,
                packet.data or b"",
                packet.qos,
                packet.packet_id or 0,
                again=packet.dup_flag,
                retain=packet.retain_flag,
            )
        elif kind == PUBACK:
            self.peer.puback_came(packet.packet_id)
        elif kind == PUBREC:
            self.peer.pubrec_came(packet.packet_id)
        elif kind == PUBREL:
            self.peer.pubrel_came(packet.packet_id)
        elif kind == PUBCOMP:
            self.peer.pubcomp_came(packet.packet_id)
        elif kind == SUBACK:
            await self.handle_suback(packet)
        elif kind == PINGRESP:
            await self.handle_pingresp(packet)


class Link:
    """One connection. Made by `open`, over when `closed` returns."""

    def __init__(self, settings: LinkSettings, client_id: str, password: str, peer: Peer) -> None:
        self._settings = settings
        self._session = _session(settings, client_id, password)
        self._peer = peer
        self._handler: Any = None
        self._writer: asyncio.StreamWriter
        self._due: list[bytes] = []
        self._pinger: asyncio.Task[None] | None = None
        self._why = ""

    async def open(self, context: ssl.SSLContext | None, *, bridge_flag: bool) -> bool:
        """Connect. Returns whether the remote broker still has our session. Raises LinkError,
        FlagRefused."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                reader, self._writer = await asyncio.open_connection(
                    settings.host, settings.port, ssl=context
                )
                return await self._greet(reader, bridge_flag)
        except (OSError, *_WRONG) as error:  # TimeoutError is an OSError
            raise LinkError(f"{settings.url}: {str(error) or type(error).__name__}") from None

    async def _greet(self, reader: asyncio.StreamReader, bridge_flag: bool) -> bool:
        handler = self._handler = _Handler()
        handler.peer = self._peer
        handler.packet_max_bytes = self._settings.packet_max_bytes
        handler.level_bits = BRIDGE_FLAG if bridge_flag else 0
        handler.attach(
            self._session, StreamReaderAdapter(reader), StreamWriterAdapter(self._writer)
        )
        handler.keepalive_timeout = None  # `_ping` looks after that, and for an answer
        await handler._send_packet(handler._build_connect_packet())
        try:
            connack = await ConnackPacket.from_stream(handler.reader)
        except NoDataError:
            if bridge_flag:
                raise FlagRefused("it closes the connection", sure=False) from None
            raise LinkError(f"{self._settings.url}: it closes the connection") from None
        code = connack.return_code
        if code not in (0, *_REFUSED) and bridge_flag:
            raise FlagRefused(f"it answers {code}", sure=True)
        if code:
            raise LinkError(f"{self._settings.url}: {_REFUSED.get(code, f'it answers {code}')}")
        return bool(connack.session_parent)

    async def start(self) -> None:
        """Read what comes."""
        await self._handler.start()
        self._pinger = asyncio.create_task(self._ping())

    async def subscribe(self, filters: list[tuple[str, int]]) -> None:
        """Raises LinkError when the remote broker refuses a filter."""
        url = self._settings.url
        packet_id = self._session.next_packet_id
        asked = asyncio.ensure_future(self._handler.mqtt_subscribe(filters, packet_id))
        ended = asyncio.ensure_future(self.closed())
        try:
            wait_s = self._settings.connect_timeout_ms / 1000
            await asyncio.wait({asked, ended}, timeout=wait_s, return_when="FIRST_COMPLETED")
            if not asked.done():
                why = ended.result() if ended.done() else f"no SUBACK within {wait_s:g} s"
                raise LinkError(f"{url}: {why}")
            answers = asked.result()
        except (OSError, *_WRONG) as error:
            raise LinkError(f"{url}: SUBSCRIBE: {error!r}") from None
        finally:
            asked.cancel()
            ended.cancel()
            await asyncio.gather(asked, ended, return_exceptions=True)
        for (topic_filter, _), answer in zip(filters, answers, strict=False):
            if answer > 2:
                raise LinkError(f"{url}: it refuses to subscribe us to {topic_filter}")

    async def closed(self) -> str:
        """Wait for the end; returns why."""
        await self._handler.ended.wait()
        return self._why or str(self._handler.why)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._settings.keep_alive_s / 2)
            await self.ping()

    async def ping(self) -> None:
        """Ask whether the remote broker is there; if not, the link ends."""
        wait_s = self._settings.keep_alive_s / 2
        try:
            await asyncio.wait_for(self._handler.mqtt_ping(), wait_s)
        except (OSError, *_WRONG):
            self.drop(f"no answer to a ping within {wait_s:g} s")

    # -- what we say

    async def send(self, packets: Iterable[bytes]) -> None:
        """Write packets; waits while the socket is full."""
        data = b"".join(packets)
        async with self._handler._write_lock:
            self._writer.write(data)
            await self._writer.drain()

    def answer(self, packet: bytes) -> None:
        """Write an acknowledgement together with others of this turn of the loop."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(packet)

    def _flush(self) -> None:
        data = b"".join(self._due)
        self._due.clear()
        if not self._writer.is_closing():
            self._writer.write(data)

    def drop(self, why: str) -> None:
        """End the connection at once."""
        self._why = self._why or why
        self._writer.transport.abort()

    async def close(self, *, politely: bool) -> None:
        """End everything. `politely`: with DISCONNECT."""
        if self._pinger is not None:
            self._pinger.cancel()
            await asyncio.gather(self._pinger, return_exceptions=True)
        handler = self._handler
        if handler is None:
            if hasattr(self, "_writer"):
                self._writer.transport.abort()
            return
        if politely and not self._writer.is_closing():
            self._flush()
            with_bye = asyncio.wait_for(handler.mqtt_disconnect(), 1.0)
            await asyncio.gather(with_bye, return_exceptions=True)
            self._writer.close()
        else:
            self._writer.transport.abort()
        reader = handler._reader_task
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


class FlagRefused(LinkError):
    """The remote broker does not know the bridge flag; `sure`: it said so."""

    def __init__(self, text: str, *, sure: bool) -> None:
        super().__init__(text)
        self.sure = sure


def _session(settings: LinkSettings, client_id: str, password: str) -> Any:
    session = Session()
    session.client_id = client_id
    session.clean_session = False
    session.keep_alive = settings.keep_alive_s
    session.username = settings.username or None
    session.password = password or None
    return session


_manager: Any = None


def _plugin_manager() -> Any:
    """amqtt's plugins: none. Made once, since it registers itself for good."""
    global _manager
    if _manager is None:
        logging.getLogger("amqtt").setLevel(logging.ERROR)
        logging.getLogger("transitions").setLevel(logging.ERROR)
        context = ClientContext()
        context.config = ClientConfig(plugins={})
        _manager = PluginManager("amqtt.client.plugins", context)
    return _manager


def tls_context(settings: LinkSettings) -> ssl.SSLContext | None:
    """Raises ConfigError when a file is wrong."""
    if not settings.secure:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"plugin bridge: link {settings.name}: tls_ca {settings.tls_ca!r}, tls_cert "
            f"{settings.tls_cert!r}, tls_key {settings.tls_key!r}: {error}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


# -- packets as bytes


def publish_packet(one: Sent) -> bytes:
    """PUBLISH of a record; again, with DUP, when it was sent before."""
    forward = one.forward
    assert forward is not None
    packet_id = one.packet_id if forward.qos else None
    packet = PublishPacket.build(
        forward.name, forward.payload, packet_id, one.resent, forward.qos, forward.retain
    )
    return bytes(packet.to_bytes())


def pubrel_packet(packet_id: int) -> bytes:
    """PUBREL: the second half of sending with QoS 2."""
    return bytes(PubrelPacket.build(packet_id).to_bytes())


def puback_packet(packet_id: int) -> bytes:
    """PUBACK: a publish of QoS 1 is durable."""
    return bytes(PubackPacket.build(packet_id).to_bytes())


def pubrec_packet(packet_id: int) -> bytes:
    """PUBREC: a publish of QoS 2 is durable."""
    return bytes(PubrecPacket.build(packet_id).to_bytes())


def pubcomp_packet(packet_id: int) -> bytes:
    """PUBCOMP: a publish of QoS 2 is released."""
    return bytes(PubcompPacket.build(packet_id).to_bytes())
