"""MQTT over WebSocket, on the I/O-free side of the `websockets` library. Edge.

The library is given the head of a request once all of it is there, and what comes behind it once
the WebSocket is open: what is refused gets its answer, and nothing behind it is looked at.

Source: MQTT 5.0 chapter 6, RFC 6455.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from lakemq.broker_core.api.hosts import is_loopback
from lakemq.plugins.mqtt.server.links import UNKNOWN_HOST, LinkListener, SocketLink

if TYPE_CHECKING:
    from lakemq.broker_core.api.limits.connection_limits import AdmittedConnection

SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-4]
HEAD_MAX_BYTES: Final = 16 * 1024
"""Longest head of the request that opens a WebSocket."""
FRAMES_BEFORE_CONNACK_MAX: Final = 256
_PIECE_BYTES: Final = 4096
"""How much is taken at a time from a client that is not let in."""
_FRAME_MIN_BYTES: Final = 65_536
"""Frames may be this long even where MQTT packets may not."""
_DATA: Final = (Opcode.BINARY, Opcode.CONT)
_HEAD_END: Final = b"\r\n\r\n"
_log = logging.getLogger(f"{__name__}.frames")
_log.setLevel(logging.CRITICAL)  # the library logs each handshake, with tracebacks


class WebSocketLink(SocketLink):
    """One WebSocket and its connection. MQTT packets and frames need not align
    [MQTT-6.0.0-2]."""

    __slots__ = ("_frames", "_frames_before", "_head")

    def __init__(self, listener: LinkListener, admitted: AdmittedConnection) -> None:
        super().__init__(listener, admitted)
        self._head: bytearray | None = bytearray()
        """The request's head as far as it came; None: it was answered."""
        self._frames_before = 0
        """Frames that came before the client was let in."""
        self._frames = ServerProtocol(
            subprotocols=[SUBPROTOCOL],
            max_size=max(_FRAME_MIN_BYTES, self.engine.settings.packet_max_bytes),
            logger=_log,
        )

    # -- the handshake

    def received(self, data: bytes) -> None:
        """Take bytes of the transport: the request's head first, then frames."""
        if self._head is None:
            self._take_frames(data)
            return
        head = self._head
        # The end may lie across two reads, and is not searched for in the same bytes again.
        searched = max(0, len(head) - len(_HEAD_END) + 1)
        head += data
        end = head.find(_HEAD_END, searched)
        if (end if end >= 0 else len(head)) > HEAD_MAX_BYTES:
            self._refuse_request(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "This is too long.\n")
        elif end >= 0:
            self._head, size = None, end + len(_HEAD_END)
            if self._open(bytes(head[:size])):
                self._take_frames(bytes(head[size:]))
        elif not _begins_a_request(head):
            self._refuse_request(HTTPStatus.BAD_REQUEST, "This is no WebSocket handshake.\n")

    def _open(self, head: bytes) -> bool:
        """Answer the request; False: it is refused, and the connection ends."""
        frames = self._frames
        if not (_begins_a_request(head) and head.isascii()):
            self._refuse_request(HTTPStatus.BAD_REQUEST, "This is no WebSocket handshake.\n")
            return False
        frames.receive_data(head)
        requests = [one for one in frames.events_received() if isinstance(one, Request)]
        if not requests:
            self._refuse_request(HTTPStatus.BAD_REQUEST, "This is no HTTP request.\n")
            return False
        response = self._answer(requests[0])
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse_with(response)
            return False
        frames.send_response(response)
        self._write_frames()
        return True

    def _answer(self, request: Request) -> Response:
        """Open the WebSocket, or say why not."""
        frames, settings = self._frames, self.listener.settings
        if _path_of(request) != settings.path:
            return frames.reject(HTTPStatus.NOT_FOUND, "MQTT is not here.\n")
        origins = request.headers.get_all("Origin")
        hosts = request.headers.get_all("Host")
        if not self._origins_allowed(origins, hosts):
            return frames.reject(HTTPStatus.FORBIDDEN, "This origin may not connect.\n")
        if not self._vouched_for(origins, hosts):
            self.connection.peer_host = UNKNOWN_HOST
        return frames.accept(request)

    def _origins_allowed(self, origins: list[str], hosts: list[str]) -> bool:
        """Whether pages of these origins may connect: another site's must not do so with the rights
        of its visitor, such as a trusted address (RFC 6455, 10.2)."""
        allowed = self.listener.settings.origins
        if "*" in allowed:
            return True
        return all(one in allowed or [_netloc_of(one)] == hosts for one in origins)

    def _vouched_for(self, origins: list[str], hosts: list[str]) -> bool:
        """Whether a client from this machine may count as one.

        With DNS rebinding, a page of a foreign site whose name points here comes from this machine,
        too; it names that site as origin and host.
        """
        if not is_loopback(self.connection.peer_host):
            return True
        if origins and all(one in self.listener.settings.origins for one in origins):
            return True
        named = [_netloc_of(one) for one in origins] + hosts
        return bool(hosts) and all(is_loopback(_host_of(one)) for one in named)

    def _refuse_request(self, status: HTTPStatus, text: str) -> None:
        self.engine.hub.counters.packets_invalid += 1
        self._refuse_with(self._frames.reject(status, text))

    def _refuse_with(self, response: Response) -> None:
        self._head = bytearray()
        self.transport.write(response.serialize())
        self.linger()

    # -- frames

    def _take_frames(self, data: bytes) -> None:
        # The library takes all it is given: in small pieces, bounds are checked before much of it
        # is parsed.
        for start in range(0, len(data), _PIECE_BYTES):
            if self.admitted.authenticated:
                self._handle_frames(data[start:])
                break
            self._handle_frames(data[start : start + _PIECE_BYTES])
            if self.lingering or self.transport.is_closing():
                return

    def _handle_frames(self, data: bytes) -> None:
        frames = self._frames
        frames.receive_data(data)
        events = frames.events_received()
        if not self.admitted.authenticated:
            self._frames_before += len(events)
            if self._frames_before > FRAMES_BEFORE_CONNACK_MAX:
                self.refuse()
                return
        for event in events:
            if isinstance(event, Frame):
                self._handle(event)
        self._write_frames()
        self.pause_if_overloaded()

    def _handle(self, frame: Frame) -> None:
        if frame.opcode in _DATA:
            self.take(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
            self.engine.hub.counters.packets_invalid += 1
            self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")

    def _write_frames(self) -> None:
        """Write what the WebSocket has to say by itself or was given to say."""
        pieces = self._frames.data_to_send()
        if pieces:
            self.transport.write(b"".join(pieces))
        if b"" in pieces or self._frames.state is State.CLOSED:  # nothing more may be sent
            self._end()

    def _end(self) -> None:
        """The WebSocket is over; both sides have said so, or the client has to read why."""
        if self._frames.close_rcvd is not None:
            self.close()
        else:
            self.linger()

    def send(self, data: bytes) -> None:
        """Send MQTT bytes in one binary frame; nothing once the WebSocket closes."""
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._write_frames()

    def finish(self) -> None:
        """Say that the WebSocket closes, and wait for the client to say so too."""
        if self._frames.state is not State.OPEN:
            self.linger()
            return
        self._frames.send_close(CloseCode.NORMAL_CLOSURE)
        self._write_frames()
        if self.connection.left:
            self.close()
        else:
            self.linger(half_close=False)

    def _throw_away(self, data: bytes) -> None:
        super()._throw_away(data)
        if self._frames.state is State.CLOSING and not self.transport.is_closing():
            self._frames.receive_data(data)
            self._frames.events_received()
            if b"" in self._frames.data_to_send():
                self.close()


def _begins_a_request(head: bytes | bytearray) -> bool:
    """Whether it may be an HTTP request of the kind that opens a WebSocket."""
    return head[:4] == b"GET "[: len(head)]


def _path_of(request: Request) -> str | None:
    try:
        return urlsplit(request.path).path
    except ValueError:
        return None


def _netloc_of(origin: str) -> str:
    """Host and port of an origin; empty where it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_of(netloc: str) -> str:
    """The host without its port; empty where there is none."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""
