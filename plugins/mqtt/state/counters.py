"""What telemetry reads, and who hears of publishes whose client is gone."""

from __future__ import annotations

from dataclasses import dataclass

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.plugins.mqtt.state.appends import AppendCallback, Outcome


@dataclass(slots=True)
class Counters:
    """Plain numbers that grow; telemetry reads them."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_redirected: int = 0
    publishes_received: int = 0
    publishes_refused: int = 0
    publishes_failed: int = 0
    publishes_not_led: int = 0
    """Those of them whose partition no node led for too long."""
    express_sent: int = 0
    """Publishes that no topic takes, to other nodes whose clients want them."""
    express_received: int = 0
    express_dropped: int = 0
    """Those for nodes that could not be reached, or were slow."""
    packets_invalid: int = 0
    keep_alive_timeouts: int = 0
    wills_published: int = 0
    sessions_expired: int = 0
    sessions_taken: int = 0
    """Sessions that came from other nodes."""
    sessions_left: int = 0
    """Sessions that went on at other nodes."""
    batches_corrupt: int = 0
    """Batches left out because they are corrupt inside."""
    records_unreadable: int = 0
    """Records of our own topics left out because they say nothing that can be read."""
    bytes_received: int = 0
    bytes_sent: int = 0

    def failed(self, error: LakeMQError) -> None:
        """A publish was not stored."""
        self.publishes_failed += 1
        self.publishes_not_led += isinstance(error, NotLeader)


class Unattended(AppendCallback):
    """Hears what becomes of publishes whose client is gone, like wills."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """Count a failure; there is no client to answer."""
        if isinstance(outcome, LakeMQError):
            self._counters.failed(outcome)
