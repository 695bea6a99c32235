"""The life of sessions: how they begin, are kept, and end, and whose share they count in.

A session belongs to the principal that began it, and lives as long as its client asked for (4.1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

from lakemq.broker_core.api.limits.user_shares import UserShares, owner_of
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing import history
from lakemq.plugins.mqtt.routing.history import ReplayHub
from lakemq.plugins.mqtt.routing.outbox import Outbox
from lakemq.plugins.mqtt.routing.sessions.exclusive import Exclusives
from lakemq.plugins.mqtt.routing.shared import Group, Strategy
from lakemq.plugins.mqtt.routing.shares import Holdings
from lakemq.plugins.mqtt.routing.wills import WillHub, publish_will
from lakemq.plugins.mqtt.state.counters import Counters
from lakemq.plugins.mqtt.state.delivery import ENTRY_BYTES, Delivery, DeliveryLimits
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.sessions import FOR_EVER_S, Session, Subscription
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import RETAIN_AS_PUBLISHED
from lakemq.plugins.mqtt.wire.reasons import Reason


class SessionHub(ReplayHub, WillHub, Protocol):
    """The hub, as its sessions need it."""

    limits: Limits
    delivery: DeliveryLimits
    ledger: Ledger | None
    ended: dict[str, int] | None
    exclusive: Exclusives
    strategy: Strategy
    shares: UserShares

    @property
    def counters(self) -> Counters:
        """What sessions count."""

    @property
    def outbox(self) -> Outbox:
        """Where effects are put."""

    def resume_histories(self, session: Session) -> None:
        """A client has room again."""

    def unsubscribe(self, session: Session, text: str) -> bool:
        """Remove a subscription."""

    def deliver_shared(
        self,
        group: Group,
        message: Message,
        now_ms: int,
        members: list[Subscription] | None = None,
        *,
        streamed: bool = True,
    ) -> None:
        """Deliver to one member of a group."""


def _nothing(client_id: str) -> None:
    """A callback that does nothing."""


class SessionTable:
    """The sessions of a hub, by client identifier."""

    def __init__(self, hub: SessionHub) -> None:
        self._hub = hub
        self.sessions: dict[str, Session] = {}
        self.on_added: Callable[[str], None] = _nothing
        self.on_gone: Callable[[str], None] = _nothing
        """Called with the client ids of sessions that come and go."""
        self.held = Holdings()
        """How many sessions each user has."""
        self._begun = self._timer_count = 0
        self._timers: list[tuple[int, int, Session]] = []

    def has_room(self, client_id: str, principal: Principal) -> bool:
        """Whether the client may have its session, an old one or one more."""
        if client_id in self.sessions:
            return True
        limit, owner = self._hub.limits.sessions_max, owner_of(principal)
        most = self._hub.shares.most(limit, owner)
        return len(self.sessions) < limit and self.held.of(owner) < most

    def add(self, session: Session) -> None:
        """Register a new or restored session and count it in its owner's share."""
        session.on_room, session.on_missing = self._hub.resume_histories, self._hub.outbox.load
        self.sessions[session.client_id] = session
        self.on_added(session.client_id)
        self.held.add(owner_of(session.principal))

    def open(
        self,
        connection: Peer,
        client_id: str,
        principal: Principal,
        now_ms: int,
        *,
        clean_start: bool,
        epoch: int = 0,
    ) -> tuple[Session, bool, bool]:
        """The session for a connection, whether it existed, and whether one was kept under that
        client id. A session belongs to the principal that began it; another one gets a new one,
        where it gets one at all (`is_anothers`). `epoch`: in which this node owns it."""
        if self._hub.ended is not None:
            self._hub.ended.pop(client_id, None)
        session = self.sessions.get(client_id)
        kept_before = session is not None and session.durable
        if session is not None and session.connection is not None:  # [MQTT-3.1.4-3]
            session.connection.close(
                Reason.SESSION_TAKEN_OVER, "the client connected elsewhere", now_ms
            )
            session = self.sessions.get(client_id)  # expiry 0: it ended with its connection
        if session is not None and (
            clean_start or owner_of(session.principal) != owner_of(principal)
        ):  # [MQTT-3.1.2-4]
            self.end(session, now_ms)
            session = None
        if session is not None:
            session.principal = principal  # it may have other rights by now
        present = session is not None
        if session is None:
            self._begun += 1
            incarnation = f"{now_ms:x}-{self._begun:x}"
            session = Session(
                client_id, principal, self._hub.delivery, self._hub.ledger, incarnation
            )
            self.add(session)
        # back before the will's delay is over: it is not published [MQTT-3.1.3-9]
        session.will = session.will_due_ms = session.ends_ms = None
        session.connection = connection
        session.epoch = epoch
        self._hub.index.group_changed(session)
        return session, present, kept_before

    def is_anothers(self, client_id: str, principal: Principal) -> bool:
        """Whether there is a session of that client id that the principal may not take over."""
        session = self.sessions.get(client_id)
        anothers = session is not None and owner_of(session.principal) != owner_of(principal)
        return anothers and self._hub.limits.session_of_another_user == "refuse"

    def set_expiry(self, session: Session, asked_s: int) -> None:
        """The client changes at DISCONNECT how long its session is kept."""
        session.expiry_s = min(asked_s, self._hub.limits.session_expiry_max_s)

    def leave(self, session: Session, now_ms: int, *, with_will: bool) -> None:
        """The connection is gone: keep the session for its expiry interval, the will for its
        delay."""
        session.connection = None
        self._hub.index.group_changed(session)
        if not with_will:  # [MQTT-3.14.4-3]
            session.will = None
        if session.will is not None:
            # The will is due at the end of its delay or of the session, whichever comes first
            # (3.1.3.2.2).
            delay_s = min(session.will.properties.will_delay_s or 0, session.expiry_s)
            if delay_s:
                session.will_due_ms = now_ms + 1000 * delay_s
            else:
                self.publish_will(session, now_ms)
        if session.expiry_s == 0:
            self.end(session, now_ms)
            return
        if session.expiry_s != FOR_EVER_S:
            session.ends_ms = now_ms + 1000 * session.expiry_s
        history.pause(self._hub, session)
        session.outbound.leave()
        session.touch()
        self.schedule(session)

    def end(self, session: Session, now_ms: int) -> None:
        """Forget a session: its will is published [MQTT-3.1.2-8], its shared work handed on."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            self.on_gone(session.client_id)
            self.held.add(owner_of(session.principal), -1)
        ledger, ended = self._hub.ledger, self._hub.ended
        if ended is not None:
            ended[session.client_id] = session.epoch
        if ledger is not None and (ended is not None or session.client_id in ledger.ages):
            # Its record becomes a tombstone.
            ledger.schedule_write(session.client_id)
        self.publish_will(session, now_ms)
        if self._unsubscribe(session):
            self.hand_on(session.outbound.unfinished(), now_ms)

    def _unsubscribe(self, session: Session) -> bool:
        """End all subscriptions; whether the session was a member of groups."""
        shared = any(one.address.group for one in session.subscriptions.values())
        for text in list(session.subscriptions):
            self._hub.unsubscribe(session, text)
        return shared

    def hand_on(self, unfinished: Iterable[Delivery], now_ms: int) -> None:
        """Give what a member of shared groups leaves unfinished to the other members."""
        for delivery in list(unfinished):
            shared, message = delivery.shared, delivery.message
            if not isinstance(shared, Group):
                continue
            # A session that came from another node got it in an index of its own.
            group = self._hub.index.group(shared.name, shared.topic_filter)
            if group is None:
                continue
            chosen = group.pick(message, self._hub.strategy, group.keepers() or None)
            if message is not None:
                given_to = [chosen] if chosen else []
                self._hub.deliver_shared(group, message, now_ms, given_to, streamed=False)
            elif chosen is not None and not chosen.options & 3:  # what waits is never QoS 0
                self._hub.delivery.dropped_qos_0 += 1
                client_id = chosen.session.client_id
                self._hub.delivery.decisions.dropped("qos_0", client_id, None, delivery.place)
            elif chosen is not None:  # it lies in the journal, as the member before had it
                given = Delivery(
                    None,
                    min(delivery.qos, chosen.options & 3),
                    delivery.retain and bool(chosen.options & RETAIN_AS_PUBLISHED),
                    (chosen.identifier,) if chosen.identifier else (),
                    group,
                    delivery.place,
                    delivery.size_bytes - ENTRY_BYTES,
                )
                chosen.session.keep_soon()
                chosen.session.outbound.offer(given, chosen.session.connection, now_ms)

    def drop(self, session: Session, now_ms: int, *, handed_over: bool) -> None:
        """The session goes on at another node: here it was never there. Where its state was not
        `handed_over`, other members of its groups get what it got as one and has not finished:
        this node alone knows that it got it."""
        self._hub.exclusive.move(session, now_ms)
        session.will = session.will_due_ms = None
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            self.on_gone(session.client_id)
            self.held.add(owner_of(session.principal), -1)
        shared = self._unsubscribe(session)
        if self._hub.ledger is not None:
            self._hub.ledger.forget(session.client_id)
        if shared and not handed_over:
            self.hand_on(session.outbound.unfinished(), now_ms)

    def resettle(self, session: Session, now_ms: int) -> None:
        """After a restart: the session's connection, if it had one, is gone since now."""
        if session.ends_ms is None and session.will_due_ms is None:
            self.leave(session, now_ms, with_will=True)
        else:
            session.outbound.leave()
            self.schedule(session)

    def publish_will(self, session: Session, now_ms: int) -> None:
        """Publish a session's will, once [MQTT-3.1.2-8]."""
        will, session.will, session.will_due_ms = session.will, None, None
        if will is None:
            return
        session.touch()
        publish_will(self._hub, will, session.client_id, session.principal, now_ms)

    def schedule(self, session: Session) -> None:
        """Look at a session whose client is away when something of it is due."""
        due_ms = session.due_ms()
        if due_ms is not None:
            self._timer_count += 1
            heapq.heappush(self._timers, (due_ms, self._timer_count, session))

    def tick(self, now_ms: int) -> None:
        """Publish wills that are due and end sessions whose time is over."""
        while self._timers and self._timers[0][0] <= now_ms:
            session = heapq.heappop(self._timers)[2]
            if (  # timers are not cancelled: this one is stale
                session.connection is not None
                or self.sessions.get(session.client_id) is not session
            ):
                continue
            if session.will_due_ms is not None and session.will_due_ms <= now_ms:
                self.publish_will(session, now_ms)
            if session.ends_ms is not None and session.ends_ms <= now_ms:
                self._hub.counters.sessions_expired += 1
                self.end(session, now_ms)
            else:
                self.schedule(session)
