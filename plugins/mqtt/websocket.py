"""MQTT over WebSocket, on the I/O-free side of the `websockets` library.

Source: MQTT 5.0 chapter 6, RFC 6455.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from plugins.mqtt.server import MqttListener, SocketLink

SUBPROTOCOL = Subprotocol("mqtt")
_DATA = (Opcode.BINARY, Opcode.CONT)


class WebSocketLink(SocketLink):
    """One WebSocket and its connection. MQTT packets and frames need not align."""

    __slots__ = ("_frames",)

    def __init__(self, listener: MqttListener) -> None:
        super().__init__(listener)
        self._frames = ServerProtocol(
            subprotocols=[SUBPROTOCOL],
            max_size=max(65_536, self.engine.settings.packet_bytes_max),
        )

    def received(self, data: bytes) -> None:
        frames = self._frames
        frames.receive_data(data)
        for event in frames.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame):
                self._handle(event)
        self._write_frames()

    def _answer(self, request: Request) -> None:
        """Open the WebSocket, or say why not."""
        frames, settings = self._frames, self.listener.settings
        if urlsplit(request.path).path != settings.path:
            response = frames.reject(HTTPStatus.NOT_FOUND, "MQTT is not here.\n")
        elif not self._origin_allowed(request):
            response = frames.reject(HTTPStatus.FORBIDDEN, "This origin may not connect.\n")
        else:
            response = frames.accept(request)
        frames.send_response(response)

    def _origin_allowed(self, request: Request) -> bool:
        """A page of another site must not connect with the user's rights (its address, say)."""
        origins = request.headers.get_all("Origin")
        allowed = self.listener.settings.origins
        if not origins or "*" in allowed:
            return True
        host = request.headers.get("Host", "")
        return all(origin in allowed or urlsplit(origin).netloc == host for origin in origins)

    def _handle(self, frame: Frame) -> None:
        if frame.opcode in _DATA:
            self.take(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
            self.engine.hub.counters.packets_invalid += 1
            self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")

    def _write_frames(self) -> None:
        """Write what the WebSocket has to say by itself or was given to say."""
        for data in self._frames.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()  # the library's mark for the end of what is sent
        if self._frames.state is State.CLOSED and not self.transport.is_closing():
            self.transport.close()

    def send(self, data: bytes) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._write_frames()

    def finish(self) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._write_frames()
        self.transport.close()
