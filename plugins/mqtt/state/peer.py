"""A client's network connection, as sessions and routing see it.

They are below the protocol of the connection, and call it only through this interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.state.traffic import Arrival, Inflow, Traffic
from lakemq.plugins.mqtt.wire.messages import Message, Wire
from lakemq.plugins.mqtt.wire.reasons import Reason

SMALL_MAX_BYTES: Final = 4095
"""Longest packets that are not large. With many large ones a client counts as slow until its socket
has them."""


class Peer(Protocol):
    """One connection. Two are equal only if they are the same."""

    client_id: str
    principal: Principal
    peer_host: str
    arrival: Arrival
    version: int
    state: State
    out: list[bytes]
    """Bytes to write, in order."""
    closing: str | None
    """Why the network connection is to be closed, once `out` is written."""
    blocked: bool
    """The socket takes no more for now: QoS 0 is dropped, QoS 1 and 2 wait."""
    window: int
    """Most publishes sent and not acknowledged."""
    packet_max_bytes: int
    keep_alive_ms: int
    silent_until_ms: int
    routes_until_ms: int
    """When the client's rights to publish are asked for again."""
    traffic: Traffic
    inflow: Inflow

    @property
    def ended(self) -> bool:
        """Whether nothing can be said to the client any more."""

    @property
    def let_in(self) -> bool:
        """Whether the client has a session."""

    def write(self, data: bytes) -> None:
        """Queue bytes for the socket."""

    def write_acks(self, head: bytes, packet_ids: Sequence[int]) -> None:
        """Queue acknowledgements without a reason. `head`: their fixed header."""

    def pass_on(self, data: bytes) -> None:
        """Queue publishes as they came."""

    def write_run(self, data: bytes, qos: int, count: int, *, large: bool) -> None:
        """Queue `count` publishes of one QoS. `large`: the last one is, the others are not."""

    def wire(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> Wire:
        """PUBLISH for this client."""

    def note_blocked(self, now_ms: int) -> None:
        """Report how long the socket has taken nothing, if that is slow."""

    def redirect(self, permanent: bool, now_ms: int) -> None:
        """Send the client to another server."""

    def timed_out(self, now_ms: int) -> None:
        """Nothing came for too long [MQTT-3.1.2-22]."""

    def close(
        self,
        reason: Reason,
        text: str,
        now_ms: int,
        *,
        with_will: bool = True,
        server_reference: str | None = None,
    ) -> None:
        """End the connection from this side, telling the client as far as its version can."""
