"""What all connections of a node share: sessions, subscriptions, retained messages, routing.

The hub decides and puts what is to be done into `outbox`; the engine takes it from there after each
input and does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from lakemq.broker_core.api.errors import LakeMQError, Undecided
from lakemq.broker_core.api.limits.user_shares import Owner, UserShares, owner_of
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    AccessContext,
    Acks,
    Operation,
    Principal,
    Resource,
)
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing import history
from lakemq.plugins.mqtt.routing.bans import BanRules, Bans
from lakemq.plugins.mqtt.routing.bindings import Binding, binding_of
from lakemq.plugins.mqtt.routing.delayed import Delays, is_for_clients
from lakemq.plugins.mqtt.routing.history import History, Reading
from lakemq.plugins.mqtt.routing.outbox import Outbox
from lakemq.plugins.mqtt.routing.retained import Retained
from lakemq.plugins.mqtt.routing.rewrite import RewriteRule, rewritten
from lakemq.plugins.mqtt.routing.rights import Rights
from lakemq.plugins.mqtt.routing.sessions.exclusive import Exclusives, name_of
from lakemq.plugins.mqtt.routing.sessions.table import SessionTable
from lakemq.plugins.mqtt.routing.shared import STRATEGIES, Group
from lakemq.plugins.mqtt.routing.shares import Kinds
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex, Target, shape_of
from lakemq.plugins.mqtt.state.appends import AppendCallback
from lakemq.plugins.mqtt.state.counters import Counters, Unattended
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits
from lakemq.plugins.mqtt.state.ledger import Ledger
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.questions import AuthorizationPending, Question
from lakemq.plugins.mqtt.state.records import Meta, record_headers
from lakemq.plugins.mqtt.state.sessions import Index, Positions, Session, Subscription
from lakemq.plugins.mqtt.state.slow import SlowClients
from lakemq.plugins.mqtt.wire.messages import Message, Place, message_of
from lakemq.plugins.mqtt.wire.packets import RETAIN_AS_PUBLISHED, Publish
from lakemq.plugins.mqtt.wire.primitives import STRING_MAX_BYTES
from lakemq.plugins.mqtt.wire.reasons import Reason
from lakemq.plugins.mqtt.wire.sparkplug import RESERVED, certificate_name
from lakemq.plugins.mqtt.wire.topics import (
    EXCLUSIVE,
    REPLAY,
    Address,
    TopicNames,
    check_topic_filter,
    parse_filter,
    split_replay,
)

Authorize = Callable[[Principal, Operation, Resource, AccessContext], None]
"""Raises NotAuthorized."""


class ExpressRoute(Protocol):
    """How publishes that no topic takes come to other nodes."""

    def wanted(self, name: str) -> bool:
        """Whether another node has subscribers of a topic name."""

    def send(self, message: Message, now_ms: int) -> int:
        """To the nodes that want it; the number by which nodes share it out in groups."""

    def serves(self, group: Group, count: int) -> bool:
        """Whether this node gives message `count` to one of its members of a group."""


class Hub:
    """The MQTT side of one node."""

    traces: Traces | None = None
    takes: Callable[[Group, Message, int], bool] | None = None
    """Whether a message of a shared group goes to one of its members here; None: always, there
    are no members elsewhere."""
    has_had: Callable[[Group, Place], bool] | None = None
    """Whether members of a group here had their part in a message when it came; None: that is not
    noted."""
    sharing_soon = False
    """Whether nodes are about to share sessions: who connects waits for that."""
    has_peers = False
    """Whether other nodes hold what is retained here, too."""

    _last_principals = ANONYMOUS, ANONYMOUS
    """What `same_principal` was asked last, and its answer."""

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
        self.session_table = SessionTable(self)
        self.sessions = self.session_table.sessions
        self.connections: dict[Peer, None] = {}
        self.outbox = Outbox()
        self.express: ExpressRoute | None = None
        """The way to other nodes; None: there is none."""
        # Subscriptions of connected clients, and sessions of other nodes, that have not caught up
        # with the journal.
        self.histories: dict[Reading, None] = {}
        self.ledger = Ledger() if durable else None
        """None: sessions and retained messages live in memory alone."""
        self.ended: dict[str, int] | None = None
        """Where nodes share sessions: those that have ended and whose home does not know it yet ->
        the epoch. None: this node keeps its sessions for itself."""
        self.positions: Positions = {}
        """Up to where records of each partition were delivered."""
        self.unheard: set[str] = set()
        """Topics of which some records do not come here yet: where they begin is being asked."""
        self.on_behind: Callable[[Iterable[tuple[str, int]]], None] = lambda keys: None
        """Called with partitions in which a session that comes is further than this node."""
        self.delivered = 0
        """Records delivered."""
        self.delays = Delays() if delays is None else delays
        self._share_out(durable)
        self.delivery.slow = slow or SlowClients(0)
        self.bans = bans or Bans(BanRules())
        self.auto_subscriptions = auto_subscriptions
        """(filter, options) that every client gets; `%c` and `%u` stand for its client id and
        user."""
        self.exclusive = Exclusives()
        self._rewrites = rewrites
        self._authorize = authorize
        self.strategy = STRATEGIES[shared_strategy]
        self._principals: dict[tuple[object, ...], Principal] = {}

    def _share_out(self, durable: bool) -> None:
        """Have one user's share of everything looked at in one place."""
        self.shares = self.retained.shares = self.delays.shares = UserShares(
            self.limits.user_share_max
        )
        self.retained.tracking = self.delays.keeps = durable
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
        if principal is self._last_principals[0]:  # all anonymous clients, say
            return self._last_principals[1]
        self.shares.note(principal)
        attributes = tuple(sorted(principal.attributes.items()))
        key = (principal.kind, principal.name, attributes, principal.roles, principal.rules)
        known = self._principals.get(key)
        if known is None:
            if len(self._principals) > self.limits.sessions_max:
                self._principals.clear()
            known = replace(principal, expires_ms=None, credential="")
            self._principals[key] = known
        self._last_principals = principal, known
        return known

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

    def is_for_clients(self, name: str) -> bool:
        """Whether clients may publish under a name that came out of prefixes and rewriting."""
        reserved = self.limits.sparkplug_aware and name.startswith(RESERVED)
        return is_for_clients(name) and not reserved

    def certificate_name(self, name: str) -> str | None:
        """Where a Sparkplug birth is retained, too; None: it is none, or this is not asked
        for, or the longer name would be no valid one."""
        found = certificate_name(name) if self.limits.sparkplug_aware else None
        if found is None or found.count("/") >= self.limits.topic_levels_max:
            return None
        return found if len(found.encode()) <= STRING_MAX_BYTES else None

    def unsubscribe(self, session: Session, text: str) -> bool:
        """Remove a subscription; False: there was none."""
        subscription = session.subscriptions.pop(text, None)
        if subscription is None:
            return False
        address = subscription.address
        session.subscription_bytes -= len(text.encode())
        self.delivery.decisions.note("unsubscribed", session.client_id, address.topic_filter)
        if not history.end(self, session, text):
            self.index_of(session).remove(subscription)
        if (shape := shape_of(address.topic_filter)) is not None:
            self.shapes_held.remove(owner_of(session.principal), shape)
        if text.startswith(EXCLUSIVE):
            epoch = self.exclusive.free(address.topic_filter, session)
            if epoch:
                self.exclusive_ended(name_of(address.topic_filter), epoch)
        return True

    def exclusive_ended(self, name: str, epoch: int) -> None:
        """No session here has an exclusive filter any more: its home is told."""
        if self.ended is not None and self.ledger is not None:
            self.ended[name] = epoch
            self.ledger.schedule_write(name)

    def index_of(self, session: Session) -> Index:
        """The index that has the session's subscriptions."""
        return self.index if session.coming is None else session.coming.index

    def positions_of(self, session: Session) -> Positions:
        """Up to where the session has got everything."""
        if session.coming is None:
            return self.positions
        return {**self.positions, **session.coming.positions_of(session)}

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
        replays = [one for one in self.histories if isinstance(one, History)]
        owners = [owner_of(one.subscription.session.principal) for one in replays]
        return len(owners) < limit and owners.count(owner) < self.shares.most(limit, owner)

    def note_subscription(self, session: Session, text: str, subscription: Subscription) -> None:
        """Note a subscription in its session, in place of one with the same text."""
        shape = shape_of(subscription.address.topic_filter)
        if text not in session.subscriptions:
            session.subscription_bytes += len(text.encode())
            if shape is not None:
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
            if self.takes is None or self.takes(group, message, now_ms):
                self.deliver_shared(group, message, now_ms)
        if message.place is None and message.origin and not (match.targets or match.groups):
            self.delivery.decisions.note("no_subscriber", message.origin, message.topic)

    def pass_on(self, message: Message, now_ms: int) -> None:
        """A publish that no topic takes: to who subscribed here, and on other nodes."""
        if self.express is None or not self.express.wanted(message.topic):
            self.route(message, now_ms)
            return
        if message.retain:
            self.retain(message)
        self.route_express(message, self.express.send(message, now_ms), now_ms)

    def route_express(self, message: Message, number: int, now_ms: int) -> None:
        """Deliver what several nodes deliver, each to its own. `number`: by it they agree which of
        them serves a shared group."""
        match = self.index.match(message.topic)
        for target in match.targets:
            self.deliver(target, message, now_ms)
        for group in match.groups:
            if self.express is None or self.express.serves(group, number):
                self.deliver_shared(group, message, now_ms)

    def retain(self, message: Message) -> None:
        """Keep it for its publisher. What came in by MQTT and was stored had its room held then
        (`has_room_to_retain`): its client has an answer that says it is retained."""
        session = self.sessions.get(message.origin) if message.origin is not None else None
        owner = owner_of(session.principal) if session is not None else message.owner
        let_in = message.origin is not None and message.place is not None
        self.retained.put(message, owner, let_in=let_in)

    def owner_told(self, principal: Principal) -> Owner | None:
        """Whose share a retained message shall count in on all nodes; None: on this one alone,
        where its client is known."""
        return owner_of(principal) if self.has_peers else None

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
        stamp, packet_id = meta.qos_2_id
        session = self.sessions.get(message.origin)
        # Stored late by an owner before: the client has sent it again since, and its identifier may
        # be another publish's by now.
        coming = recovering or (session is not None and session.coming is not None)
        if session is None or not session.stamped(stamp, coming):
            return
        # Live, PUBREC may have gone out and PUBREL come: then it is not noted again.
        recovering = recovering or session.epoch > 0
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
        """Deliver to one member of a group (one of `members` where given). `streamed`: as
        `Session.deliver` has it."""
        chosen = group.pick(message, self.strategy, members)
        if chosen is None:
            return
        granted, qos = chosen.options & 3, message.qos
        if granted < qos:
            qos = granted
        if qos and not streamed:
            chosen.session.keep_soon()
        chosen.session.deliver(
            message,
            qos,
            message.retain and bool(chosen.options & RETAIN_AS_PUBLISHED),
            (chosen.identifier,) if chosen.identifier else (),
            now_ms,
            group,
            streamed,
        )

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
            self.pass_on(message_of(packet, now_ms, client_id), now_ms)
            return
        by_client = binding.key_is_client_id
        key = (client_id if by_client else packet.topic).encode()
        owner = self.owner_told(principal)
        headers = (
            record_headers(packet, client_id, key_is_client_id=by_client, owner=owner) + headers
        )
        self.store(binding, principal, key, packet, headers, receiver or Unattended(self.counters))

    def certify(
        self, birth: Publish, name: str, client_id: str, principal: Principal, now_ms: int
    ) -> None:
        """Retain a Sparkplug birth under its certificate's name, in its publisher's share. Without
        its properties: an expiry is the birth's. An empty one would only delete what is there."""
        if birth.payload:
            certificate = Publish(name, birth.payload, 1, True)
            self.publish_for(certificate, client_id, principal, now_ms)

    def not_kept(self, connections: list[Peer], text: str, now_ms: int) -> None:
        """Something that was to be promised could not be kept: end the connections, so that their
        clients ask again."""
        for connection in connections:
            connection.close(Reason.SERVER_UNAVAILABLE, f"not stored: {text}", now_ms)

    # -- time

    def tick(self, now_ms: int) -> None:
        """Whatever time brings: wills, ends of sessions, keep-alive. Call about once a second."""
        self.session_table.tick(now_ms)
        self.rights.tick(now_ms)
        # A copy: a connection that is closed leaves the set.
        for connection in [one for one in self.connections if one.silent_until_ms <= now_ms]:
            connection.timed_out(now_ms)
