"""Rights that end, or are withdrawn, while clients are connected.

A connection ends with the credentials that opened it: when they expire, when its user is removed
or has another password. When rules change, subscriptions are authorized again, a bounded number a
second; a client that loses one is disconnected, so that it learns of it when it subscribes again:
MQTT has no packet by which a server takes a subscription back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from lakemq.broker_core.api.types import AccessContext, Operation, Principal
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.questions import (
    AuthorizationPending,
    Continuation,
    ExclusiveClaim,
    Question,
)
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.wire.reasons import Reason

JUDGED_PER_TICK: Final = 5_000
"""Subscriptions judged again at a time."""


class Charge(Protocol):
    """`Broker.charge`: how long the principal has to wait (ms)."""

    def __call__(self, principal: Principal, *, bytes_in: int, records_in: int) -> int: ...


class RightsOutbox(Protocol):
    """The outbox, as rights need it."""

    questions: list[tuple[Question | ExclusiveClaim, Continuation]]


class RightsHub(Protocol):
    """The hub, as rights need it."""

    sessions: dict[str, Session]
    connections: dict[Peer, None]

    @property
    def outbox(self) -> RightsOutbox:
        """Where questions to the authorizer are put."""

    def allowed(
        self, principal: Principal, operation: Operation, name: str, context: AccessContext
    ) -> bool:
        """Whether the principal may. Raises AuthorizationPending."""

    def unsubscribe(self, session: Session, text: str) -> bool:
        """Remove a subscription; False: there was none."""


class Rights:
    """Whose rights end when, and whose are to be judged again."""

    def __init__(self, hub: RightsHub) -> None:
        self._hub = hub
        self._ends_ms: dict[Peer, int] = {}
        self._principals: dict[Peer, Principal] = {}
        """As whom, and with which credentials, each connection's client is known."""
        self._suspects: list[Peer] = []
        self.charge: Charge | None = None
        """Notes what principals use; None: there are no quotas."""
        self.withdrawn_from: Callable[[Principal], bool] = lambda principal: False
        """`Broker.ended`."""
        self.why: Callable[[Principal, Operation, str, AccessContext], str] = (
            lambda principal, operation, name, context: ""
        )
        """In words, which rule decides what a principal may do with a topic name or filter."""
        self.ended = 0
        """Peers closed because their credentials ended."""
        self.withdrawn = 0
        """Subscriptions that a client lost."""

    def note(self, connection: Peer, principal: Principal) -> None:
        """The client is (again) known as `principal`."""
        self._principals[connection] = principal
        if principal.expires_ms is None:
            self._ends_ms.pop(connection, None)
        else:
            self._ends_ms[connection] = principal.expires_ms

    def forget(self, connection: Peer) -> None:
        """Drop what is known of a connection that has ended."""
        self._ends_ms.pop(connection, None)
        self._principals.pop(connection, None)

    def changed(self) -> None:
        """Rules have changed: ask again where clients may publish, and soon what they may read."""
        self._suspects = list(self._hub.connections)
        for connection in self._suspects:
            connection.routes_until_ms = 0

    def tick(self, now_ms: int) -> None:
        """Call about once a second."""
        over = [each for each, ends_ms in self._ends_ms.items() if ends_ms <= now_ms]
        for connection in over:
            self._end(connection, now_ms)
        judged = 0
        while self._suspects and judged < JUDGED_PER_TICK:
            connection = self._suspects.pop()
            session = self._hub.sessions.get(connection.client_id)
            if connection.ended or session is None or session.connection is not connection:
                continue
            # A connection without subscriptions is not free either.
            judged += 1 + len(session.subscriptions)
            principal = self._principals.get(connection)
            if principal is not None and self.withdrawn_from(principal):
                self._end(connection, now_ms)
                continue
            if lost := self.withdraw(session):
                _tell(connection, lost[0], now_ms)

    def _end(self, connection: Peer, now_ms: int) -> None:
        self.ended += 1
        connection.close(Reason.NOT_AUTHORIZED, "the credentials have ended", now_ms)

    def withdraw(self, session: Session) -> list[str]:
        """Take from a session the subscriptions that its principal has no right to (any more).
        Those that are pending stay until there is an answer."""
        # Collected first: `_take` changes the dict that is iterated.
        lost, open_ = [], []
        for text in session.subscriptions:
            try:
                if not self._may_read(session, text):
                    lost.append(text)
            except AuthorizationPending:
                open_.append(text)
        self._take(session, lost)
        if open_:
            self._recheck(session, open_, 0)
        return lost

    def _may_read(self, session: Session, text: str) -> bool:
        subscription = session.subscriptions[text]
        context = AccessContext("mqtt", session.client_id, qos=subscription.options & 3)
        topic_filter = subscription.address.topic_filter
        return self._hub.allowed(session.principal, Operation.READ, topic_filter, context)

    def _take(self, session: Session, lost: list[str]) -> None:
        for text in lost:
            self._hub.unsubscribe(session, text)
        if lost:
            self.withdrawn += len(lost)
            session.touch()

    def _recheck(self, session: Session, texts: list[str], now_ms: int) -> None:
        """Authorize these subscriptions again, one question at a time; the last one first."""
        while texts and self._hub.sessions.get(session.client_id) is session:
            text = texts[-1]
            try:
                lost = text in session.subscriptions and not self._may_read(session, text)
            except AuthorizationPending as unanswered:
                again = partial(self._recheck, session, texts)
                self._hub.outbox.questions.append((unanswered.question, again))
                return
            texts.pop()
            if lost:
                self._take(session, [text])
                if session.connection is not None:
                    _tell(session.connection, text, now_ms)


def _tell(connection: Peer, lost: str, now_ms: int) -> None:
    text = f"the right to subscribe to {lost} was withdrawn"
    connection.close(Reason.NOT_AUTHORIZED, text, now_ms)
