"""What one connection is known by, and what its client sent and got: plain values that the hot path
adds to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Arrival(NamedTuple):
    """How a client came: to which listener, and with which verified certificate."""

    listener: str = "mqtt"
    certificate_subject: str | None = None
    certificate_names: tuple[str, ...] = ()


@dataclass(slots=True)
class Inflow:
    """What a connection sent that is not finished."""

    appends: int = 0
    """Publishes that are being stored."""
    appends_bytes: int = 0
    qos_1: int = 0
    """QoS 1 publishes that are not acknowledged; counted against the receive maximum."""
    qos_2: set[int] = field(default_factory=set)
    """QoS 2 publishes that are not released, by packet identifier; counted likewise."""


class Traffic:
    """Counts of one network connection."""

    __slots__ = (
        "blocked_ms", "bytes_received", "bytes_sent", "connected_ms", "dropped",
        "packets_received", "packets_sent", "received", "sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connected_ms = 0
        """When CONNACK was said."""
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = 0
        self.packets_sent = 0
        self.received = [0, 0, 0]
        """Publishes by QoS."""
        self.sent = [0, 0, 0]
        self.dropped = 0
        """QoS 0 publishes that its socket had no room for."""
        self.blocked_ms = 0
        """When its socket began to take no more; counts while the connection is blocked."""
