"""The line protocol's sockets, on asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, cast

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.api.errors import LakeMQError, StartupError
from lakemq.broker_core.api.ports import Broker, Credentials
from lakemq.broker_core.api.types import Columns, Placed, Principal
from lakemq_line.access import PROTOCOL
from lakemq_line.protocol import LineDecoder, LineTooLong, Put, answer
from lakemq_line.settings import LineSettings

_GOODBYE_S: Final = 2.0

Outcome = Placed | LakeMQError


class LineListener:
    """Implements the `Listener` port."""

    name = "line"

    def __init__(self, broker: Broker, settings: LineSettings, meter: Meter) -> None:
        self.records_in = 0
        self.connections: set[LineConnection] = set()
        self._broker = broker
        self._settings = settings
        self._server: asyncio.Server | None = None
        meter.create_observable_counter("lakemq.line.records", [self._observe])

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self.records_in)

    async def start(self) -> None:
        settings = self._settings
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: LineConnection(self, self._broker, settings), settings.host, settings.port
            )
        except OSError as error:
            raise StartupError(
                f"line: cannot listen on {settings.host}:{settings.port}: {error.strerror}"
            ) from None

    def addresses(self) -> Sequence[str]:
        sockets = self._server.sockets if self._server is not None else ()
        return ["{}:{}".format(*each.getsockname()[:2]) for each in sockets]

    async def stop(self) -> None:
        """Stop accepting and reading; answer what was asked; close."""
        if self._server is None:
            return
        self._server.close()
        waiting = [connection.finish() for connection in self.connections]
        if waiting:
            await asyncio.wait(waiting, timeout=_GOODBYE_S)
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()


class LineConnection(asyncio.Protocol):
    """One client. Reading stops while it has too many unanswered requests or reads no answers."""

    def __init__(self, listener: LineListener, broker: Broker, settings: LineSettings) -> None:
        self._listener = listener
        self._broker = broker
        self._in_flight_max = settings.requests_in_flight_max
        self._decoder = LineDecoder(settings.line_max_bytes)
        self._principal: Principal | None = None
        self._early = b""
        """What came before it was known who the client is: uvloop begins to read after
        `connection_made`, even if that paused reading."""
        self._unanswered: deque[list[Outcome]] = deque()
        """A slot for every request, in order; empty until its outcome is known."""
        self._writable = True
        self._reads = False
        self._ending = False
        self._discarding = False
        """A line was too long: what else comes can't be understood, it is read and thrown away."""
        self._closed = asyncio.get_running_loop().create_future()
        self._greeting: asyncio.Task[None] | None = None

    # -- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._transport.pause_reading()
        self._listener.connections.add(self)
        self._greeting = asyncio.get_running_loop().create_task(self._authenticate())

    async def _authenticate(self) -> None:
        peer = self._transport.get_extra_info("peername")
        if peer is None:  # gone already
            self.abort()
            return
        host, port = peer[:2]
        try:
            self._principal = await self._broker.authenticate(
                Credentials(PROTOCOL, f"{host}:{port}", host)
            )
        except LakeMQError as error:
            self._transport.write(answer(error))
            self.finish()
        else:
            self._read_if_there_is_room()
            early, self._early = self._early, b""
            self.data_received(early)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        if self._greeting is not None:
            self._greeting.cancel()
        if not self._closed.done():
            self._closed.set_result(None)

    def finish(self) -> asyncio.Future[None]:
        """Read no more, answer what was asked, close. Done when closed."""
        self._ending = True
        self._read_if_there_is_room()
        self._close_if_all_is_said()
        return self._closed

    def abort(self) -> None:
        self._transport.abort()

    def eof_received(self) -> bool:
        """The client asks no more, but it may wait for its answers."""
        if self._discarding:
            return False
        self.finish()
        return True

    # -- requests

    def data_received(self, data: bytes) -> None:
        if self._principal is None:
            self._early += data
            self._transport.pause_reading()
            return
        if self._ending:
            return
        by_topic: dict[str, list[tuple[Put, list[Outcome]]]] = {}
        for request in self._decoder.receive(data):
            slot: list[Outcome] = []
            self._unanswered.append(slot)
            if isinstance(request, Put):
                by_topic.setdefault(request.topic, []).append((request, slot))
            else:
                slot.append(request)
                self._discarding |= isinstance(request, LineTooLong)
        self._ending |= self._discarding
        for topic, asked in by_topic.items():
            self._publish(topic, asked)
        self._answer()
        self._read_if_there_is_room()

    def _publish(self, topic: str, asked: list[tuple[Put, list[Outcome]]]) -> None:
        """Requests that arrived together are published together. When that is refused, each is
        tried by itself: a bad record must not take its neighbours with it."""
        assert self._principal is not None
        columns = Columns([put.value for put, _ in asked], [put.key for put, _ in asked])
        try:
            future = self._broker.publish(topic, columns, principal=self._principal)
        except LakeMQError as error:
            if len(asked) == 1:
                asked[0][1].append(error)
            else:
                for each in asked:
                    self._publish(topic, [each])
            return
        slots = [slot for _, slot in asked]
        future.add_done_callback(lambda done: self._settle(slots, done))

    def _settle(
        self, slots: Sequence[list[Outcome]], done: asyncio.Future[list[Placed | LakeMQError]]
    ) -> None:
        for slot, outcome in zip(slots, done.result(), strict=True):
            slot.append(outcome)
        self._listener.records_in += len(slots)
        self._answer()
        self._read_if_there_is_room()

    # -- answers

    def _answer(self) -> None:
        """Send the answers that no earlier unanswered request holds back."""
        lines = []
        while self._unanswered and self._unanswered[0]:
            lines.append(answer(self._unanswered.popleft()[0]))
        if lines and not self._transport.is_closing():
            self._transport.write(b"".join(lines))
        self._close_if_all_is_said()

    def _close_if_all_is_said(self) -> None:
        if not self._ending or self._unanswered or self._transport.is_closing():
            return
        if self._discarding:
            # Closing on top of unread input would take the last answer back (TCP reset).
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(_GOODBYE_S, self._transport.abort)
        else:
            self._transport.close()

    def pause_writing(self) -> None:
        self._writable = False
        self._read_if_there_is_room()

    def resume_writing(self) -> None:
        self._writable = True
        self._read_if_there_is_room()

    def _read_if_there_is_room(self) -> None:
        room = self._writable and len(self._unanswered) < self._in_flight_max
        reads = room and (self._discarding or not self._ending)
        if reads != self._reads:
            self._reads = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()
