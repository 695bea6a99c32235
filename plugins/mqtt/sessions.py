"""Sessions: what a client's state is while it is connected and after. Pure.

Source: MQTT 5.0 section 4.1 (session state), 3.1.2.5 (will), 3.1.2.11.2 (expiry).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_core.api.types import Principal
from plugins.mqtt.delivery import Delivery, DeliveryLimits, Outbound
from plugins.mqtt.messages import Message
from plugins.mqtt.packets import Will
from plugins.mqtt.reasons import Reason
from plugins.mqtt.subscriptions import Subscription

if TYPE_CHECKING:
    from plugins.mqtt.protocol import Connection
    from plugins.mqtt.shared import Group

FOR_EVER_S = 0xFFFF_FFFF
"""Session expiry interval that means: never."""


class Session:
    """One client's state, connected or not."""

    __slots__ = (
        "client_id",
        "connection",
        "ends_ms",
        "expiry_s",
        "incoming",
        "outbound",
        "principal",
        "subscriptions",
        "will",
        "will_due_ms",
    )

    def __init__(self, client_id: str, principal: Principal, limits: DeliveryLimits) -> None:
        self.client_id = client_id
        self.principal = principal
        self.expiry_s = 0
        self.connection: Connection | None = None
        self.subscriptions: dict[str, Subscription] = {}
        """By the filter as the client wrote it, `$share/...` included."""
        self.outbound = Outbound(limits)
        self.incoming: dict[int, bool] = {}
        """QoS 2 publishes that came and were not released yet: packet identifier -> stored."""
        self.will: Will | None = None
        self.will_due_ms: int | None = None
        """When the will is published, while disconnected."""
        self.ends_ms: int | None = None
        """When the session ends, while disconnected; None: connected, or never."""

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
        shared: Group | None = None,
    ) -> None:
        """Send, or for QoS 1 and 2 keep. QoS 0 without a free connection is dropped, counted."""
        connection = self.connection
        if qos:
            delivery = Delivery(message, qos, retain, identifiers, shared)
            if not self.outbound.offer(delivery, connection, now_ms) and connection is not None:
                connection.close(Reason.QUOTA_EXCEEDED, "the queue of this session is full", now_ms)
            return
        limits = self.outbound.limits
        if connection is None or connection.blocked:
            limits.dropped_qos_0 += 1
            return
        head, rest = connection.wire(message, 0, retain, identifiers, now_ms)
        if len(head) + len(rest) > connection.packet_bytes_max:
            limits.dropped_too_large += 1
            return
        connection.write(head + rest)
        limits.sent += 1

    def due_ms(self) -> int | None:
        """When this session next wants attention while disconnected."""
        times = [time for time in (self.will_due_ms, self.ends_ms) if time is not None]
        return min(times, default=None)
