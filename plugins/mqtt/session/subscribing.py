"""SUBSCRIBE and UNSUBSCRIBE.

Source: MQTT 5.0 sections 3.8 to 3.11, 4.8.2 (shared subscriptions).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import Final

from lakemq.broker_core.api.topic_filters import filters_overlap
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.mqtt.limits import SHARED_SUBSCRIPTIONS_MAX_BYTES
from lakemq.plugins.mqtt.routing import history
from lakemq.plugins.mqtt.routing.history import History, histories_of, parse_start
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.progress import Owed, Progress
from lakemq.plugins.mqtt.state.peer import SMALL_MAX_BYTES
from lakemq.plugins.mqtt.state.questions import AuthorizationPending
from lakemq.plugins.mqtt.state.sessions import Beside, Start, Subscription
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import (
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    V5,
    Filter,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import FAILURE, MqttError, ProtocolError, Reason
from lakemq.plugins.mqtt.wire.topics import EXCLUSIVE, REPLAY, Address, parse_filter, split_replay

RETAINED_PER_TURN: Final = 1000
RETAINED_BYTES_PER_TURN: Final = 1024 * 1024
"""How many retained messages, and of what size, one client gets in one turn of the event loop."""
_OPTIONS_KEPT = 0x0F
"""QoS, no local, retain as published; retain handling matters only while subscribing."""


def subscribe(connection: Connection, packet: Subscribe, now_ms: int) -> None:
    """Add subscriptions, answer, then send retained messages.

    When an authorizer must be asked about a filter, this is called again once the answer is there
    and goes on with that filter; `Connection.subscribing` holds the codes until then.
    """
    identifiers = packet.properties.subscription_identifiers
    identifier = identifiers[0] if identifiers else 0
    progress = connection.subscribing = connection.subscribing or Progress()
    codes, fresh = progress.codes, progress.fresh
    while len(codes) < len(packet.filters):
        wanted = packet.filters[len(codes)]
        code, subscription, wants_retained = _add(connection, wanted, identifier, now_ms)
        codes.append(code)
        if subscription is not None and wants_retained:
            fresh[wanted.topic_filter] = subscription
    connection.subscribing = None
    if connection.version < V5:
        # 3.1.1 has one failure code, 0x80 [MQTT-3.9.3-2 of 3.1.1].
        codes = [code if code < FAILURE else FAILURE for code in codes]
    suback = partial(_answer, connection, Suback(packet.packet_id, tuple(codes)), fresh)
    waits = connection.hub.unheard and _unheard(connection, packet)
    if waits:
        connection.hub.outbox.waits.append((waits, suback))
    else:
        suback(now_ms)


def _answer(
    connection: Connection, suback: Suback, fresh: dict[str, Subscription], now_ms: int
) -> None:
    session = connection.session
    if session is None or connection.ended:
        return

    # SUBACK promises the subscription, so it waits for the session's record. Retained messages come
    # behind it: the index has the subscription already, so nothing published meanwhile is missed.
    def answer(later_ms: int) -> None:
        connection.send(suback)
        _owe_retained(connection, fresh, later_ms)

    session.keep(connection, answer, now_ms)


def _unheard(connection: Connection, packet: Subscribe) -> set[str]:
    """Topics with records for these filters that do not come to this node yet."""
    hub, session = connection.hub, connection.session
    assert session is not None
    wanted = [session.subscriptions.get(one.topic_filter) for one in packet.filters]
    return {
        binding.topic
        for binding in hub.bindings
        if binding.topic in hub.unheard
        and any(
            one is not None and filters_overlap(one.address.topic_filter, binding.topic_filter)
            for one in wanted
        )
    }


def _add(
    connection: Connection, wanted: Filter, identifier: int, now_ms: int
) -> tuple[int, Subscription | None, bool]:
    """Code for SUBACK, the subscription, and whether retained messages are due for it. Raises
    AuthorizationPending, before anything is changed."""
    session, hub = connection.session, connection.hub
    assert session is not None
    text = wanted.topic_filter
    try:
        address = hub.address(text)
        start = parse_start(split_replay(text)[0], now_ms) if text.startswith(REPLAY) else None
        _check_room(connection, text, address)
    except MqttError as error:
        return error.reason, None, False
    if address.group is not None and wanted.options & NO_LOCAL:
        raise ProtocolError("no local on a shared subscription")  # [MQTT-3.8.3-4]
    refusal = _refusal(connection, wanted, address)
    if refusal is not None:
        return refusal, None, False
    before = session.subscriptions.get(text)
    kind = Beside if text.startswith((EXCLUSIVE, REPLAY)) else Subscription
    options = wanted.options & _OPTIONS_KEPT
    # 3.1.1 has no such options: the bridge flag asks for both, as Mosquitto understands it.
    if connection.bridge:
        options |= RETAIN_AS_PUBLISHED | (NO_LOCAL if address.group is None else 0)
    # A filter that is there already is replaced, not added to [MQTT-3.8.4-3].
    subscription = kind(session, address, options, identifier)
    if before is None:
        hub.delivery.decisions.note("subscribed", session.client_id, address.topic_filter)
    hub.note_subscription(session, text, subscription)
    if start is not None:
        _replay(hub, text, subscription, before, start)
        return wanted.qos, subscription, False
    index = hub.index_of(session)
    if isinstance(before, Beside):
        index.remove(before)
    index.add(subscription)
    if text.startswith(EXCLUSIVE):
        hub.exclusive.hold(session, address.topic_filter, text)
    # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; a shared subscription gets none (4.8.2).
    due = wanted.retain_handling == 0 or (wanted.retain_handling == 1 and before is None)
    return wanted.qos, subscription, due and address.group is None


def _refusal(connection: Connection, wanted: Filter, address: Address) -> int | None:
    """Why the client does not get a subscription that there is room for; None: it does. Raises
    AuthorizationPending."""
    session, hub = connection.session, connection.hub
    assert session is not None
    context = connection.access_context(wanted.qos)
    if not hub.allowed(connection.principal, Operation.READ, address.topic_filter, context):
        hub.delivery.decisions.note(
            "subscribe_refused", session.client_id, address.topic_filter,
            why=hub.rights.why(connection.principal, Operation.READ, address.topic_filter, context),
        )  # fmt: skip
        return Reason[hub.limits.refused_subscribe_reason.upper()]
    if wanted.topic_filter.startswith(EXCLUSIVE):
        try:
            hub.exclusive.check(session, address.topic_filter, shared=hub.ended is not None)
        except MqttError as error:
            return error.reason
    return None


def _replay(
    hub: Hub, text: str, subscription: Subscription, before: Subscription | None, start: Start
) -> None:
    """Begin a replay. One that the session has already goes on where it is, as the client asks for
    it again after each connect."""
    histories = histories_of(subscription.session)
    if text in histories:
        histories[text].subscription = subscription
    elif before is not None:
        index = hub.index_of(subscription.session)
        index.remove(before)
        index.add(subscription)
    else:
        history.begin(hub, text, History(subscription, start, {}))


def _check_room(connection: Connection, text: str, address: Address) -> None:
    session, hub = connection.session, connection.hub
    assert session is not None
    if text.startswith(EXCLUSIVE):
        if address.group is not None:
            raise ProtocolError("shared and exclusive", Reason.TOPIC_FILTER_INVALID)
        hub.exclusive.check(session, address.topic_filter, shared=False)
    if text in session.subscriptions:
        return
    if text.startswith(REPLAY) and not hub.has_room_for_replay(session):
        raise ProtocolError("too many replays", Reason.QUOTA_EXCEEDED)
    full = len(session.subscriptions) >= hub.limits.subscriptions_max
    if hub.ended is not None:
        size = session.subscription_bytes + len(text.encode())
        full |= size > SHARED_SUBSCRIPTIONS_MAX_BYTES
    if full or not hub.has_room_for_filter(session, address.topic_filter):
        raise ProtocolError("too many subscriptions", Reason.QUOTA_EXCEEDED)


def _owe_retained(connection: Connection, fresh: dict[str, Subscription], now_ms: int) -> None:
    waits = bool(connection.owed)
    for text, subscription in fresh.items():
        connection.owed[text] = Owed(subscription)
    if fresh and not waits:
        send_retained(connection, now_ms)


def send_retained(connection: Connection, now_ms: int) -> None:
    """Send some of the retained messages that are due, and the rest in later turns: a few bytes of
    filters may ask for all there are, over and over. What is replaced before its turn is left out:
    the client got the newer publish."""
    owed, room = connection.owed, _Room()
    while owed and not connection.ended:
        text, one = next(iter(owed.items()))
        if connection.choked or (connection.blocked and one.messages is not None):
            return  # until it is `unblocked`
        wanted = one.subscription.session.subscriptions.get(text) is one.subscription
        if wanted and not _send_some(connection, one, room, now_ms):
            connection.hub.outbox.retained.append(connection)
            return
        del owed[text]


class _Room:
    """What may still be sent in this turn."""

    __slots__ = ("count", "size_bytes")

    def __init__(self) -> None:
        self.count = RETAINED_PER_TURN
        self.size_bytes = RETAINED_BYTES_PER_TURN

    def take(self, count: int, size_bytes: int) -> None:
        self.count -= count
        self.size_bytes -= size_bytes

    @property
    def full(self) -> bool:
        return self.count <= 0 or self.size_bytes <= 0


def _send_some(connection: Connection, one: Owed, room: _Room, now_ms: int) -> bool:
    """False: there may be more, for another turn."""
    retained, subscription = connection.hub.retained, one.subscription
    if one.messages is None:
        # A copy: the tree changes between turns, and a generator over it would break.
        one.messages = deque(retained.match(subscription.address.topic_filter, now_ms))
        one.revision = retained.revision
        # what waits of them is no record behind the session's positions
        subscription.session.touch()
    messages, changed = one.messages, one.revision != retained.revision
    while messages and not room.full and not connection.choked:
        if not changed and _send_run(connection, subscription, messages, room, now_ms):
            continue
        message = messages.popleft()
        # Not what was replaced or forgotten since the list was made.
        if not changed or retained.get(message.topic) is message:
            _send_one_retained(subscription, message, now_ms)
            room.take(1, message.size_bytes)
    return not messages


def _send_run(
    connection: Connection,
    subscription: Subscription,
    messages: deque[Message],
    room: _Room,
    now_ms: int,
) -> int:
    """Write the QoS 0 ones that come first in one piece, up to a large one and as far as there is
    room; returns how many. If none, the first needs a closer look."""
    options = subscription.options
    if connection.blocked or options & NO_LOCAL:
        return 0
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    parts, size_bytes, size = list[bytes](), 0, 0
    for message in islice(messages, room.count):
        if (options & 3 and message.qos) or size_bytes >= room.size_bytes:
            break
        head, rest = connection.wire(message, 0, True, identifiers, now_ms)
        if len(head) + len(rest) > connection.packet_max_bytes:
            break
        size = len(head) + len(rest)
        parts += (head, rest)
        size_bytes += size
        if size > SMALL_MAX_BYTES:
            break
    count = len(parts) // 2
    if count:
        for _ in range(count):
            messages.popleft()
        room.take(count, size_bytes)
        connection.hub.delivery.sent += count
        connection.write_run(b"".join(parts), 0, count, large=size > SMALL_MAX_BYTES)
    return count


def _send_one_retained(subscription: Subscription, message: Message, now_ms: int) -> None:
    session, options = subscription.session, subscription.options
    if options & NO_LOCAL and message.origin == session.client_id:
        return
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    session.deliver(message, min(options & 3, message.qos), True, identifiers, now_ms)


def subscribe_automatically(connection: Connection, now_ms: int) -> None:
    """What every client is subscribed to, unless it is already, may not, or its name would make a
    filter of its own."""
    session, hub = connection.session, connection.hub
    assert session is not None
    for pattern, options in hub.auto_subscriptions:
        named = {"%c": connection.client_id, "%u": connection.principal.name}
        # A client id like `a/#` would widen the filter that an operator wrote.
        if any(mark in pattern and set(name) & set("+#/") for mark, name in named.items()):
            continue
        text = pattern.replace("%c", named["%c"]).replace("%u", named["%u"])
        if text in session.subscriptions:
            continue
        try:
            _, subscription, wants_retained = _add(connection, Filter(text, options), 0, now_ms)
        except AuthorizationPending as unanswered:
            again = partial(_subscribe_later, connection)
            hub.outbox.questions.append((unanswered.question, again))
            return
        if subscription is not None and wants_retained:
            _owe_retained(connection, {text: subscription}, now_ms)
        session.touch()


def _subscribe_later(connection: Connection, now_ms: int) -> None:
    if not connection.ended:
        subscribe_automatically(connection, now_ms)


def unsubscribe(connection: Connection, packet: Unsubscribe, now_ms: int) -> None:
    """Remove subscriptions; what is in flight is still finished [MQTT-3.10.4-3]."""
    session = connection.session
    assert session is not None
    codes: list[int] = []  # in the order of the filters [MQTT-3.11.3-1]
    for text in packet.filters:
        if not connection.hub.unsubscribe(session, text):
            try:
                parse_filter(text)
                codes.append(Reason.NO_SUBSCRIPTION_EXISTED)
            except MqttError as error:
                codes.append(error.reason)
            continue
        codes.append(Reason.SUCCESS)
    answer = Unsuback(packet.packet_id, tuple(codes))
    session.keep(connection, lambda _: connection.send(answer), now_ms)
