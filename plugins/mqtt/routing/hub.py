"""What all connections of a node share: sessions, subscriptions, retained messages, routing.

The hub decides and puts what is to be done into `outbox`; the engine takes it from there after each
input and does it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Undecided
from lakemq.broker_core.api.limits.user_shares import UserShares, owner_of
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.api.types import AccessContext, Acks, Operation, Principal, Resource
from lakemq.plugins.mqtt.routing import history
from lakemq.plugins.mqtt.routing.bans import BanRules, Bans
from lakemq.plugins.mqtt.routing.bindings import Binding, binding_of
from lakemq.plugins.mqtt.routing.delayed import Delays
from lakemq.plugins.mqtt.routing.history import History
from lakemq.plugins.mqtt.routing.outbox import Outbox
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.routing.rewrite import RewriteRule, rewritten
from lakemq.plugins.mqtt.routing.rights import Rights
from lakemq.plugins.mqtt.routing.shared import STRATEGIES, Group
from lakemq.plugins.mqtt.routing.shares import Holdings, Kinds
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex, Target, shape_of
from lakemq.plugins.mqtt.routing.wills import publish_will
from lakemq.plugins.mqtt.state.appends import AppendCallback, Outcome
from lakemq.plugins.mqtt.state.delivery import ENTRY_BYTES, Delivery, DeliveryLimits
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.questions import AuthorizationPending, Question
from lakemq.plugins.mqtt.state.records import Meta, record_headers
from lakemq.plugins.mqtt.state.sessions import FOR_EVER_S, Positions, Session, Subscription
from lakemq.plugins.mqtt.state.slow import SlowClients
from lakemq.plugins.mqtt.wire.messages import Message, message_of
from lakemq.plugins.mqtt.wire.packets import RETAIN_AS_PUBLISHED, Publish
from lakemq.plugins.mqtt.wire.reasons import Reason
from lakemq.plugins.mqtt.wire.topics import (
    EXCLUSIVE,
    LEVELS_MAX,
    REPLAY,
    Address,
    TopicNames,
    check_topic_filter,
    parse_filter,
    split_replay,
)

Authorize = Callable[[Principal, Operation, Resource, AccessContext], None]
"""Raises NotAuthorized."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of connections and sessions; `config.py` says what each is for."""

    packet_max_bytes: int = 1024 * 1024
    connect_max_bytes: int = 64 * 1024
    topic_levels_max: int = LEVELS_MAX
    connections_max: int = 100_000
    sessions_max: int = 1_000_000
    client_id_max_bytes: int = 256
    keep_alive_max_s: int = 0
    connect_timeout_ms: int = 10_000
    session_expiry_max_s: int = 7 * 24 * 3600
    receive_max: int = 1000
    receive_maximum_exceeded: str = "slow"
    topic_alias_max: int = 32
    sent_topic_alias_max: int = 32
    subscriptions_max: int = 10_000
    replays_max: int = 1000
    appends_inflight_max: int = 10_000
    appends_inflight_max_bytes: int = 8 * 1024 * 1024
    publishes_max_per_s: int = 0
    bytes_max_per_s: int = 0
    access_cache_ms: int = 5_000
    session_of_another_user: str = "refuse"
    user_share_max: float = 0.5
    refused_publish_disconnects: bool = True
    refused_subscribe_reason: str = "not_authorized"
    response_information: str = ""
    server_reference: str = ""
    redirect: str = "on_stop"


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
    express_delivered: int = 0
    packets_invalid: int = 0
    keep_alive_timeouts: int = 0
    wills_published: int = 0
    sessions_expired: int = 0
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


class Hub:
    """The MQTT side of one node."""

    unheard: Callable[[str, bytes | None], bool] = staticmethod(lambda topic, key: False)
    """Whether records of a topic do not come to this node: those of a key, or any (None)."""
    traces: Traces | None = None

    def __init__(
        self,
        *,
        bindings: Sequence[Binding],
        authorize: Authorize,
        new_client_id: Callable[[], str],
        limits: Limits | None = None,
        delivery: DeliveryLimits | None = None,
        retained: Retained | None = None,
        shared_strategy: str = "round_robin",
        durable: bool = False,
        bans: Bans | None = None,
        delays: Delays | None = None,
        slow: SlowClients | None = None,
        rewrites: Sequence[RewriteRule] = (),
        auto_subscriptions: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.bindings = bindings
        self.limits = limits or Limits()
        self.delivery = delivery or DeliveryLimits()
        self.new_client_id = new_client_id
        self.counters = Counters()
        self.names = TopicNames(levels_max=self.limits.topic_levels_max)
        self.index = SubscriptionIndex()
        self.retained = retained or Retained(100_000, 256 * 1024 * 1024)
        self.rights = Rights(self)
        self.sessions: dict[str, Session] = {}
        self.connections: set[Peer] = set()
        self.outbox = Outbox()
        # Subscriptions of connected clients that have not caught up with the journal.
        self.histories: dict[History, None] = {}
        self.ledger = Ledger() if durable else None
        """None: sessions and retained messages live in memory alone."""
        self.positions: Positions = {}
        """Up to where records of each partition were delivered."""
        self.delivered = self._incarnations = self._timer_count = 0
        """Records delivered; sessions begun; timers set."""
        self.delays = Delays() if delays is None else delays
        self._share_out(durable)
        self.delivery.slow = slow or SlowClients(0)
        self.bans = bans or Bans(BanRules())
        self.auto_subscriptions = auto_subscriptions
        """(filter, options) that every client gets; `%c` and `%u` stand for its client id and
        user."""
        self.exclusive: dict[str, Session] = {}
        """Filter -> the one session that may have it."""
        self._rewrites = rewrites
        self._authorize = authorize
        self._strategy = STRATEGIES[shared_strategy]
        self._principals: dict[tuple[object, ...], Principal] = {}
        self._timers: list[tuple[int, int, Session]] = []

    def _share_out(self, durable: bool) -> None:
        """Have one user's share of everything looked at in one place."""
        self.shares = self.retained.shares = self.delays.shares = UserShares(
            self.limits.user_share_max
        )
        self.retained.tracking = durable
        self.sessions_held = Holdings()
        self.shapes_held = Kinds()

    # -- who may

    def allowed(
        self, principal: Principal, operation: Operation, name: str, context: AccessContext
    ) -> bool:
        """Whether the principal may publish to a topic name, or subscribe to a filter. Raises
        AuthorizationPending."""
        resource = Resource("topic_name", name)
        try:
            self._authorize(principal, operation, resource, context)
        except Undecided:
            raise AuthorizationPending(Question(principal, operation, resource, context)) from None
        except LakeMQError:
            return False
        return True

    def access_changed(self) -> None:
        """Access rules have changed: let connections ask again."""
        self.rights.changed()

    def same_principal(self, principal: Principal) -> Principal:
        """The one object that stands for all equal principals, so that their records share
        appends. Which credentials, and when they end, is each connection's own: see `rights`."""
        self.shares.note(principal)
        attributes = tuple(sorted(principal.attributes.items()))
        key = (principal.kind, principal.name, attributes, principal.roles, principal.rules)
        if len(self._principals) > self.limits.sessions_max:
            self._principals.clear()
        return self._principals.setdefault(key, replace(principal, expires_ms=None, credential=""))

    # -- names

    def address(self, text: str) -> Address:
        """Where a subscription to `text` is found: checked, without prefixes, rewritten. Raises
        ProtocolError (0x8F)."""
        if text.startswith(REPLAY):
            text = split_replay(text)[1]
        topic_filter, group = parse_filter(text.removeprefix(EXCLUSIVE))
        found = rewritten(self._rewrites, topic_filter, subscribing=True)
        return Address(check_topic_filter(found, self.limits.topic_levels_max), group)

    def topic_name(self, text: str) -> str:
        """The topic name that a publish to `text` goes to."""
        return rewritten(self._rewrites, text, subscribing=False) if self._rewrites else text

    def unsubscribe(self, session: Session, text: str) -> bool:
        """Remove a subscription; False: there was none."""
        subscription = session.subscriptions.pop(text, None)
        if subscription is None:
            return False
        address = subscription.address
        self.delivery.decisions.note("unsubscribed", session.client_id, address.topic_filter)
        if not history.end(self, session, text):
            self.index.remove(subscription)
        if (shape := shape_of(address.topic_filter)) is not None:
            self.shapes_held.remove(owner_of(session.principal), shape)
        if text.startswith(EXCLUSIVE):
            self.exclusive.pop(address.topic_filter, None)
        return True

    def has_room_for_filter(self, session: Session, topic_filter: str) -> bool:
        """Whether a filter may get a shape of its own: no user has all shapes that the index can
        bear. One that is there already costs nothing."""
        shape, index = shape_of(topic_filter), self.index
        if shape is None or index.knows(shape):
            return True
        owner = owner_of(session.principal)
        most = self.shares.most(index.shapes_max, owner)
        return index.has_room_for(topic_filter) and self.shapes_held.of(owner) < most

    def has_room_for_replay(self, session: Session) -> bool:
        """Whether one more subscription may read history."""
        limit, owner = self.limits.replays_max, owner_of(session.principal)
        owners = [owner_of(one.subscription.session.principal) for one in self.histories]
        return len(owners) < limit and owners.count(owner) < self.shares.most(limit, owner)

    def has_room_for_session(self, client_id: str, principal: Principal) -> bool:
        """Whether the client may have its session, an old one or one more."""
        if client_id in self.sessions:
            return True
        limit, owner = self.limits.sessions_max, owner_of(principal)
        most = self.shares.most(limit, owner)
        return len(self.sessions) < limit and self.sessions_held.of(owner) < most

    def add_session(self, session: Session) -> None:
        """Register a new or restored session and count it in its owner's share."""
        session.on_room, session.on_missing = self.resume_histories, self.outbox.load
        self.sessions[session.client_id] = session
        self.sessions_held.add(owner_of(session.principal))

    def note_subscription(self, session: Session, text: str, subscription: Subscription) -> None:
        """Note a subscription in its session, in place of one with the same text."""
        shape = shape_of(subscription.address.topic_filter)
        if text not in session.subscriptions and shape is not None:
            self.shapes_held.add(owner_of(session.principal), shape)
        session.subscriptions[text] = subscription

    def resume_histories(self, session: Session) -> None:
        """Go on with history that a client asked for: it is back, or has room again."""
        if session.histories:
            history.resume(self, session)

    # -- publishes

    def binding(self, topic: str) -> Binding | None:
        """The first binding whose filter takes a topic name; None: none does."""
        return binding_of(self.bindings, topic)

    def store(
        self,
        binding: Binding,
        principal: Principal,
        key: bytes,
        packet: Publish,
        headers: bytes,
        receiver: AppendCallback | None,
    ) -> None:
        """Have a publish stored; subscribers get it when it is committed."""
        acks = Acks.LEADER if packet.qos else Acks.MEMORY
        self.outbox.appends.to(binding.topic, acks).add(
            principal,
            key,
            # A null value is what compaction takes for "forget this key".
            packet.payload or (None if packet.retain else b""),
            headers,
            (receiver, packet.packet_id, packet.qos),
        )

    def route(self, message: Message, now_ms: int) -> None:
        """Deliver to all who subscribed, and retain if it says so."""
        if message.retain:
            self.retain(message)
        match = self.index.match(message.topic)
        for target in match.targets:
            self.deliver(target, message, now_ms)
        for group in match.groups:
            self.deliver_shared(group, message, now_ms)
        if message.place is None and message.origin and not (match.targets or match.groups):
            self.delivery.decisions.note("no_subscriber", message.origin, message.topic)

    def retain(self, message: Message) -> None:
        """Keep it for its publisher. What came in by MQTT and was stored had its room held then
        (`has_room_to_retain`): its client has an answer that says it is retained."""
        session = self.sessions.get(message.origin) if message.origin is not None else None
        owner = owner_of(session.principal) if session is not None else None
        let_in = message.origin is not None and message.place is not None
        self.retained.put(message, owner, let_in=let_in)

    def has_room_to_retain(self, packet: Publish, principal: Principal, now_ms: int) -> bool:
        """Whether a publish can be retained, where it asks for that; counts it where not."""
        if not packet.retain or not packet.payload:
            return True
        size = len(packet.topic) + len(packet.payload)
        return self.retained.let_in(packet.topic, size, owner_of(principal), now_ms)

    def note_stored(self, message: Message, meta: Meta, *, recovering: bool = False) -> None:
        """A QoS 2 publish is in the journal, whether its answer came already or not: the session
        knows it from now on, as it knows every record up to `positions`. So is one that was
        delayed: it is not published again."""
        if meta.delayed_id is not None:
            self.delays.end(meta.delayed_id)
        if meta.qos_2_id is None or message.origin is None or message.place is None:
            return
        incarnation, packet_id = meta.qos_2_id
        session = self.sessions.get(message.origin)
        if session is None or session.incarnation != incarnation:
            return
        # Live, PUBREC may have gone out and PUBREL come: then it is not noted again.
        unreleased = message.place.offset >= session.released.get(message.place[:2], 0)
        if unreleased and (recovering or packet_id in session.incoming):
            session.incoming[packet_id] = message.place

    def deliver(self, target: Target, message: Message, now_ms: int) -> None:
        """Deliver as one session's subscriptions have it."""
        session = target.session
        if target.no_local and session.client_id == message.origin:  # [MQTT-3.8.3-3]
            if target.own is None:
                self.delivery.decisions.dropped("no_local", session.client_id, message, None)
                return
            target = target.own
        session.deliver(
            message,
            target.qos if target.qos < message.qos else message.qos,
            message.retain and target.retain_as_published,
            target.identifiers,
            now_ms,
            streamed=True,
        )

    def deliver_shared(
        self,
        group: Group,
        message: Message,
        now_ms: int,
        members: list[Subscription] | None = None,
        *,
        streamed: bool = True,
    ) -> None:
        """Deliver to one member of a group (one of `members` where given)."""
        chosen = group.pick(message, self._strategy, members)
        if chosen is None:
            return
        chosen.session.deliver(
            message,
            min(chosen.options & 3, message.qos),
            message.retain and bool(chosen.options & RETAIN_AS_PUBLISHED),
            (chosen.identifier,) if chosen.identifier else (),
            now_ms,
            group,
            streamed,
        )

    def publish_will(self, session: Session, now_ms: int) -> None:
        """Publish a session's will, once [MQTT-3.1.2-8]."""
        will, session.will, session.will_due_ms = session.will, None, None
        if will is None:
            return
        session.touch()
        publish_will(self, will, session.client_id, session.principal, now_ms)

    def publish_for(
        self,
        packet: Publish,
        client_id: str,
        principal: Principal,
        now_ms: int,
        receiver: AppendCallback | None = None,
        headers: bytes = b"",
    ) -> None:
        """Publish for a client that is not here. `receiver` hears what becomes of it if it is
        stored; `headers` are put behind those of its record."""
        binding = self.binding(packet.topic)
        if not self.has_room_to_retain(packet, principal, now_ms):
            packet.retain = False  # no subscriber is connected
        if binding is None or not binding.takes(packet.qos):
            self.route(message_of(packet, now_ms, client_id), now_ms)
            return
        by_client = binding.key_is_client_id
        key = (client_id if by_client else packet.topic).encode()
        headers = record_headers(packet, client_id, key_is_client_id=by_client) + headers
        self.store(binding, principal, key, packet, headers, receiver or Unattended(self.counters))

    # -- sessions

    def open_session(
        self,
        connection: Peer,
        client_id: str,
        principal: Principal,
        now_ms: int,
        *,
        clean_start: bool,
    ) -> tuple[Session, bool, bool]:
        """The session for a connection, whether it existed, and whether one was kept under that
        client id. A session belongs to the principal that began it; another one gets a new one,
        where it gets one at all (`is_anothers`)."""
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
            self.end_session(session, now_ms)
            session = None
        if session is not None:
            session.principal = principal  # it may have other rights by now
        present = session is not None
        if session is None:
            self._incarnations += 1
            incarnation = f"{now_ms:x}-{self._incarnations:x}"
            session = Session(client_id, principal, self.delivery, self.ledger, incarnation)
            self.add_session(session)
        # back before the will's delay is over: it is not published [MQTT-3.1.3-9]
        session.will = session.will_due_ms = session.ends_ms = None
        session.connection = connection
        return session, present, kept_before

    def is_anothers(self, client_id: str, principal: Principal) -> bool:
        """Whether there is a session of that client id that the principal may not take over."""
        session = self.sessions.get(client_id)
        anothers = session is not None and owner_of(session.principal) != owner_of(principal)
        return anothers and self.limits.session_of_another_user == "refuse"

    def set_expiry(self, session: Session, asked_s: int) -> None:
        """The client changes at DISCONNECT how long its session is kept."""
        session.expiry_s = min(asked_s, self.limits.session_expiry_max_s)

    def leave_session(self, session: Session, now_ms: int, *, with_will: bool) -> None:
        """The connection is gone: keep the session for its expiry interval, the will for its
        delay."""
        session.connection = None
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
            self.end_session(session, now_ms)
            return
        if session.expiry_s != FOR_EVER_S:
            session.ends_ms = now_ms + 1000 * session.expiry_s
        history.pause(self, session)
        session.outbound.leave()
        session.touch()
        self._schedule(session)

    def end_session(self, session: Session, now_ms: int) -> None:
        """Forget a session: its will is published [MQTT-3.1.2-8], its shared work handed on."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            self.sessions_held.add(owner_of(session.principal), -1)
        if self.ledger is not None and session.client_id in self.ledger.ages:
            # Its record becomes a tombstone.
            self.ledger.schedule_write(session.client_id)
        self.publish_will(session, now_ms)
        shared = any(one.address.group for one in session.subscriptions.values())
        for text in list(session.subscriptions):
            self.unsubscribe(session, text)
        if shared:
            self._hand_on(session, now_ms)

    def _hand_on(self, session: Session, now_ms: int) -> None:
        """Give what a member of shared groups leaves unfinished to the other members."""
        for delivery in list(session.outbound.unfinished()):
            group, message = delivery.shared, delivery.message
            if not isinstance(group, Group):
                continue
            chosen = group.pick(message, self._strategy, group.keepers() or None)
            if message is not None:
                given_to = [chosen] if chosen else []
                self.deliver_shared(group, message, now_ms, given_to, streamed=False)
            elif chosen is not None and not chosen.options & 3:  # what waits is never QoS 0
                self.delivery.dropped_qos_0 += 1
                client_id = chosen.session.client_id
                self.delivery.decisions.dropped("qos_0", client_id, None, delivery.place)
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
                chosen.session.outbound.offer(given, chosen.session.connection, now_ms)

    def resettle(self, session: Session, now_ms: int) -> None:
        """After a restart: the session's connection, if it had one, is gone since now."""
        if session.ends_ms is None and session.will_due_ms is None:
            self.leave_session(session, now_ms, with_will=True)
        else:
            session.outbound.leave()
            self._schedule(session)

    def not_kept(self, connections: list[Peer], text: str, now_ms: int) -> None:
        """Something that was to be promised could not be kept: end the connections, so that their
        clients ask again."""
        for connection in connections:
            connection.close(Reason.SERVER_UNAVAILABLE, f"not stored: {text}", now_ms)

    # -- time

    def _schedule(self, session: Session) -> None:
        due_ms = session.due_ms()
        if due_ms is not None:
            self._timer_count += 1
            heapq.heappush(self._timers, (due_ms, self._timer_count, session))

    def tick(self, now_ms: int) -> None:
        """Whatever time brings: wills, ends of sessions, keep-alive. Call about once a second."""
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
                self.counters.sessions_expired += 1
                self.end_session(session, now_ms)
            else:
                self._schedule(session)
        self.rights.tick(now_ms)
        # A copy: a connection that is closed leaves the set.
        for connection in [one for one in self.connections if one.silent_until_ms <= now_ms]:
            connection.timed_out(now_ms)
