"""Rights that end, or are withdrawn, while clients are connected. Pure.

A connection ends with the credentials that opened it. When rules change, subscriptions are judged
again, a bounded number a second; a client that loses one is disconnected, so that it learns of it
when it subscribes anew. MQTT knows no other way to tell it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from broker_core.api.types import AccessContext, Operation, Principal
from plugins.mqtt.reasons import Reason
from plugins.mqtt.sessions import Session

if TYPE_CHECKING:
    from plugins.mqtt.hub import Hub
    from plugins.mqtt.protocol import Connection

JUDGED_PER_TICK: Final = 5_000
"""Subscriptions judged again at a time."""


class Charge(Protocol):
    """`Broker.charge`: how long the principal has to wait (ms)."""

    def __call__(self, principal: Principal, *, bytes_in: int, records_in: int) -> int: ...


class Rights:
    """Whose rights end when, and whose are to be judged again."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ends_ms: dict[Connection, int] = {}
        self._suspects: list[Connection] = []
        self.charge: Charge | None = None
        """Notes what principals use; None: there are no quotas."""
        self.ended = 0
        """Connections closed because their credentials ended."""
        self.withdrawn = 0
        """Subscriptions that a client lost."""

    def note(self, connection: Connection, principal: Principal) -> None:
        """The client is (again) known as `principal`."""
        if principal.expires_ms is None:
            self._ends_ms.pop(connection, None)
        else:
            self._ends_ms[connection] = principal.expires_ms

    def forget(self, connection: Connection) -> None:
        self._ends_ms.pop(connection, None)

    def changed(self) -> None:
        """Rules have changed: ask anew where clients may publish, and soon what they may read."""
        self._suspects = list(self._hub.connections)
        for connection in self._suspects:
            connection.routes_until_ms = 0

    def tick(self, now_ms: int) -> None:
        """Call about once a second."""
        over = [each for each, ends_ms in self._ends_ms.items() if ends_ms <= now_ms]
        for connection in over:
            self.ended += 1
            connection.close(Reason.NOT_AUTHORIZED, "the credentials have ended", now_ms)
        judged = 0
        while self._suspects and judged < JUDGED_PER_TICK:
            connection = self._suspects.pop()
            session = connection.session
            if connection.ended or session is None or session.connection is not connection:
                continue
            judged += 1 + len(session.subscriptions)
            if lost := self.withdraw(session):
                text = f"the right to subscribe to {lost[0]} was withdrawn"
                connection.close(Reason.NOT_AUTHORIZED, text, now_ms)

    def withdraw(self, session: Session) -> list[str]:
        """Take from a session the subscriptions that its principal has no right to (any more)."""
        hub, lost = self._hub, []
        for text, subscription in session.subscriptions.items():
            context = AccessContext("mqtt", session.client_id, qos=subscription.options & 3)
            topic_filter = subscription.address.topic_filter
            if not hub.allowed(session.principal, Operation.READ, topic_filter, context):
                lost.append(text)
        for text in lost:
            hub.unsubscribe(session, text)
        if lost:
            self.withdrawn += len(lost)
            session.touch()
        return lost
