"""One MQTT 5 connection that publishes with QoS 1."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final, Self

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import encode
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    Acknowledgement,
    Connack,
    Connect,
    Disconnect,
    Publish,
)

_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
_PACKET_MAX_BYTES: Final = 1 << 20
_REFUSED: Final = 0x80
"""Reason codes from here on are refusals."""


class MqttFailed(LakeMQError):
    """The broker refused a connection or a publish, or the connection ended."""

    code = "MQTT"


class MqttPublisher:
    """Made by `connect`; not for two event loops."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(_PACKET_MAX_BYTES, version=V5)
        self._free: deque[int] = deque()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.receive_maximum = 0
        """Publishes that the broker takes before their acks."""

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        client_id: str,
        *,
        tls: ssl.SSLContext | None = None,
        username: str = "",
        password: str = "",
    ) -> Self:
        """Raises OSError, MqttFailed, TimeoutError."""
        async with asyncio.timeout(_TIMEOUT_S):
            publisher = cls(*await asyncio.open_connection(host, port, ssl=tls))
            try:
                await publisher._log_in(client_id, username, password)
            except BaseException:
                publisher._writer.close()
                raise
        return publisher

    async def _log_in(self, client_id: str, username: str, password: str) -> None:
        secret = password.encode() if password else None
        wanted = Connect(client_id, V5, username=username or None, password=secret)
        self._writer.write(encode(wanted, V5))
        while not (packets := self._decoder.feed(await self._read())):
            pass
        answer = packets[0]
        if not isinstance(answer, Connack) or answer.code:
            code = getattr(answer, "code", 0)
            raise MqttFailed(f"the broker refused the MQTT connection: reason {code:#x}")
        self.receive_maximum = answer.properties.receive_maximum or 65_535
        self._free.extend(range(1, self.receive_maximum + 1))
        self._reading = asyncio.create_task(self._read_acks())

    async def publish(self, topic_name: str, payload: bytes) -> None:
        """Returns at its PUBACK. At most `receive_maximum` at once. Raises MqttFailed."""
        if self._reading is None or self._reading.done():
            raise MqttFailed("the broker ended the MQTT connection")
        packet_id = self._free.popleft()
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[packet_id] = acknowledged
        self._writer.write(encode(Publish(topic_name, payload, 1, packet_id=packet_id), V5))
        reason = await acknowledged
        if reason >= _REFUSED:
            raise MqttFailed(f"the broker refused a publish: reason {reason:#x}")

    async def close(self) -> None:
        """Say goodbye, and end the connection."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.write(encode(Disconnect(), V5))
        self._writer.close()

    async def _read(self) -> bytes:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise MqttFailed("the broker ended the MQTT connection")
        return data

    async def _read_acks(self) -> None:
        problem = "the broker ended the MQTT connection"
        try:
            while self._decoder.error is None:
                for packet in self._decoder.feed(await self._read()):
                    if isinstance(packet, Acknowledgement):
                        self._answered(packet.packet_id, packet.reason)
                    elif isinstance(packet, Disconnect):
                        problem += f": reason {packet.reason:#x}"
        except (OSError, MqttFailed):
            pass  # what waits is told below
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(MqttFailed(problem))

    def _answered(self, packet_id: int, reason: int) -> None:
        waiting = self._waiting.pop(packet_id, None)
        if waiting is not None:
            self._free.append(packet_id)
            if not waiting.done():
                waiting.set_result(reason)
