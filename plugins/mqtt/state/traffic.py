"""What one client sent and got: plain integers that the hot path adds to. Pure."""

from __future__ import annotations


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
        """Since when its socket takes no more; matters while the connection is blocked."""
