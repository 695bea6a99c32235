"""PUBLISH as it comes from a client, and the answers to it.

Source: MQTT 5.0 sections 3.3 to 3.7, 4.3 (QoS).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from lakemq.broker_core.api.errors import NotLeader, OutcomeUnknown, StorageFull
from lakemq.broker_core.api.state.internal_topics import DELAYED
from lakemq.broker_core.api.tracing import end
from lakemq.broker_core.api.types import Acks, Operation
from lakemq.plugins.mqtt.limits import SHARED_INCOMING_MAX
from lakemq.plugins.mqtt.routing.bindings import Binding
from lakemq.plugins.mqtt.routing.delayed import PREFIX, delay, split_delayed
from lakemq.plugins.mqtt.session import runs
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.progress import ROUTES_MAX, Route
from lakemq.plugins.mqtt.session.receipt import Receipt, receive_span
from lakemq.plugins.mqtt.state.appends import AppendCallback, Outcome
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.questions import AuthorizationPending
from lakemq.plugins.mqtt.state.records import (
    client_header,
    qos_2_header,
    record_headers,
)
from lakemq.plugins.mqtt.state.sessions import NOWHERE, Session
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.state.traffic import NOTHING_CAME, Inflow
from lakemq.plugins.mqtt.wire.encoding import PUBACK, PUBREC
from lakemq.plugins.mqtt.wire.messages import Place, message_of
from lakemq.plugins.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    Acknowledgement,
    PacketType,
    Properties,
    Publish,
    PublishRun,
    StoredRun,
)
from lakemq.plugins.mqtt.wire.reasons import MqttError, ProtocolError, Reason, publish_reason
from lakemq.plugins.mqtt.wire.topics import REMEMBERED_CHARS_MAX, check_topic_name


def forget_routes(connection: Connection, now_ms: int) -> None:
    """Ask again who may publish where, so that changed rules are obeyed."""
    connection.routes_until_ms = now_ms + connection.hub.limits.access_cache_ms
    connection.routes.clear()
    connection.express.clear()
    connection.stored.clear()
    connection.stored_2.clear()


def _route(connection: Connection, topic: str) -> Route:
    hub, routes = connection.hub, connection.routes
    if connection.inflow is NOTHING_CAME:
        connection.inflow = Inflow()
    written, delay_s = topic, None
    if topic.startswith(PREFIX):
        delay_s, topic = split_delayed(topic)
    topic = hub.topic_name(topic)
    too_deep = topic.count("/") >= hub.limits.topic_levels_max
    # Six answers, one for each QoS with and without retain: an authorizer may go by both. What no
    # client may publish to is answered here, without asking it.
    allowed = [None if hub.is_for_clients(topic) and not too_deep else False] * 6
    binding, client_id = hub.binding(topic), connection.client_id
    by_client = binding is not None and binding.key_is_client_id
    key = (client_id if by_client else topic).encode()
    certificate = hub.certificate_name(topic) if delay_s is None else None
    route = Route(
        topic,
        allowed,
        binding if delay_s is None else None,
        key,
        client_id,
        _plain_home(connection, binding) if topic == written and certificate is None else None,
        delay_s,
        Reason.TOPIC_NAME_INVALID if too_deep else Reason.NOT_AUTHORIZED,
        certificate,
    )
    # All or nothing: evicting single names would cost more than asking for the rights again.
    if len(written) <= REMEMBERED_CHARS_MAX:
        if len(routes) >= ROUTES_MAX:
            routes.clear()
        routes[written] = route
    return route


def _plain_home(connection: Connection, binding: Binding | None) -> str | None:
    """The topic of a binding, where unacknowledged publishes are not counted."""
    counted = connection.hub.limits.receive_maximum_exceeded == "disconnect"
    return None if binding is None or counted else binding.topic


def _may_publish(connection: Connection, route: Route, packet: Publish) -> bool:
    """Ask once for each way to publish there; the route remembers. Raises AuthorizationPending."""
    context = connection.access_context(packet.qos, bool(packet.retain))
    allowed = connection.hub.allowed(connection.principal, Operation.WRITE, route.topic, context)
    route.allowed[packet.qos * 2 + packet.retain] = allowed
    if allowed and packet.qos and route.stores is not None and not packet.retain:
        runs.offer_stored(connection, route, packet.qos)
    return allowed


def publish(connection: Connection, packet: Publish, now_ms: int) -> None:
    """A PUBLISH: store it, or pass it on through memory; acknowledge when that is done."""
    hub = connection.hub
    if packet.properties is not NO_PROPERTIES:
        _obey_properties(connection, packet)
    if not packet.topic:
        raise ProtocolError("PUBLISH without a topic name")
    route = connection.routes.get(packet.topic) or _route(connection, packet.topic)
    allowed = route.allowed[packet.qos * 2 + packet.retain]
    # The hot path. `route.stores` is None where the receive maximum is counted, and where the name
    # is rewritten, the publish delayed or a Sparkplug birth: those take the long way below.
    if (
        allowed
        and packet.qos == 1
        and route.stores is not None
        and packet.properties is NO_PROPERTIES
        and not packet.retain
    ):
        _store_plain(connection, packet, route, route.stores)
        return
    # nothing is noted before this, for the packet may have to come again
    allowed = _may_publish(connection, route, packet) if allowed is None else allowed
    hub.counters.publishes_received += 1
    connection.traffic.received[packet.qos] += 1
    if not allowed:
        _refuse(connection, packet, route.refusal, now_ms)
        return
    packet.topic = route.topic
    # From here on the packet counts: `AuthorizationPending` has been raised above or never will be.
    if packet.qos and not _begin(connection, packet, now_ms):
        return
    if packet.retain and not _may_retain(connection, packet, route, now_ms):
        return
    if route.certificate is not None:
        hub.certify(packet, route.certificate, connection.client_id, connection.principal, now_ms)
    _pass_on(connection, packet, route, now_ms)


def pass_on_run(connection: Connection, packet: PublishRun, now_ms: int) -> None:
    """As `publish` of each; those that may be passed on as the bytes that came, together."""
    names, express = packet.names, connection.express
    if not all(map(express.get, names)):
        for name in dict.fromkeys(names):
            if name not in express:
                _learn(connection, name)
    connection.traffic.packets_received -= 1  # the run itself
    if all(map(express.get, names)):
        runs.pass_on(connection, names, packet.sizes, packet.packets, now_ms)
    else:
        _pass_on_parts(connection, packet, now_ms)


def _pass_on_parts(connection: Connection, packet: PublishRun, now_ms: int) -> None:
    """Publishes to express topic names together, as far as none to another comes between."""
    names, sizes, data = packet.names, packet.sizes, packet.packets
    first = begin = end = 0
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        begin_of_this, end = end, end + size
        if connection.express.get(name):
            continue
        if first < place:
            known = slice(first, place)
            runs.pass_on(connection, names[known], sizes[known], data[begin:begin_of_this], now_ms)
        connection.traffic.packets_received += 1
        try:
            publish(connection, connection.decoder.publish_in(data[begin_of_this:end]), now_ms)
        except AuthorizationPending:
            packet.names, packet.sizes = names[place:], sizes[place:]
            packet.packets = data[begin_of_this:]
            raise
        if connection.state is not State.CONNECTED:
            return
        first, begin = place + 1, end
    if first < len(names):
        runs.pass_on(connection, names[first:], sizes[first:], data[begin:], now_ms)


def _learn(connection: Connection, raw: bytes) -> None:
    """Whether plain QoS 0 publishes to a topic name may be passed on as the bytes that came. Raises
    AuthorizationPending."""
    hub = connection.hub
    try:
        name = hub.names[raw]
        route = (connection.routes.get(name) or _route(connection, name)) if name else None
    except MqttError:
        return  # told when the first of them is handled
    # the bytes have the name, so it must not be rewritten
    if route is not None and route.topic == name:
        allowed = route.allowed[0]
        if allowed is None:
            allowed = _may_publish(connection, route, Publish(name, b""))
        if allowed:
            runs.offer_express(connection, route)
    if raw not in connection.express:
        runs.note_express(connection, raw, None)


def publish_run(connection: Connection, packet: StoredRun, now_ms: int) -> None:
    """As `publish` of each."""
    if packet.qos == 1 or _are_new(connection, packet):
        runs.store(connection, packet)
        return
    for packet_id, payload in zip(packet.packet_ids, packet.payloads, strict=True):
        if connection.state is State.CONNECTED:
            one = Publish(packet.route.topic, payload, packet.qos, packet_id=packet_id)
            publish(connection, one, now_ms)
    connection.traffic.packets_received += len(packet.packet_ids) - 1


def _are_new(connection: Connection, packet: StoredRun) -> bool:
    """Whether publishes at QoS 2 are the first under their identifiers, and the session may have as
    many more."""
    session, packet_ids = connection.session, packet.packet_ids
    assert session is not None
    incoming = session.incoming
    if len(incoming) + len(packet_ids) > SHARED_INCOMING_MAX:
        return False
    return len(set(packet_ids)) == len(packet_ids) and incoming.keys().isdisjoint(packet_ids)


def _store_plain(connection: Connection, packet: Publish, route: Route, topic: str) -> None:
    """Have a QoS 1 publish stored that nothing is particular about: what most devices send."""
    # No PUBACK here: the server accepts ownership by it [MQTT-4.3.2-4], so it is written when the
    # append has ended (`Connection.on_appended`), after fsync (`Acks.LEADER`).
    hub, inflow, payload = connection.hub, connection.inflow, packet.payload
    hub.counters.publishes_received += 1
    connection.traffic.received[1] += 1
    inflow.qos_1 += 1
    inflow.appends += 1
    inflow.appends_bytes += len(payload)
    inflow.order.append(packet.packet_id)
    token = (connection, packet.packet_id, 1)
    hub.outbox.appends.to(topic, Acks.LEADER).add(
        connection.principal, route.key, payload, route.headers[1], token
    )


def _pass_on(connection: Connection, packet: Publish, route: Route, now_ms: int) -> None:
    hub, binding, span = connection.hub, route.binding, None
    if hub.traces is not None and packet.properties is not NO_PROPERTIES and route.delay_s is None:
        span = receive_span(hub.traces, packet, connection.client_id)
    if binding is not None and binding.takes(packet.qos):
        receiver = connection if span is None else Receipt(connection, span)
        _store(connection, packet, binding, route, receiver)
        return
    if route.delay_s is not None:
        _delay(connection, packet, route.delay_s, now_ms)
        return
    # Delivered through memory alone: all subscribers here have it, or have it queued, before the
    # answer; those of other nodes soon.
    hub.pass_on(message_of(packet, now_ms, connection.client_id), now_ms)
    if span is not None:
        end(span)
    if packet.qos:
        connection.inflow.qos_1 -= packet.qos == 1
        _acknowledge_in_turn(connection, packet, now_ms)


def _may_retain(connection: Connection, packet: Publish, route: Route, now_ms: int) -> bool:
    """Whether to go on with a publish that is to be retained.

    An MQTT 5 client learns that there is no room. Before version 5, and with QoS 0, there is no
    answer to say it with: the publish goes on without being retained. A delayed one is checked when
    it is due.
    """
    if route.delay_s is not None:
        return True
    if connection.hub.has_room_to_retain(packet, connection.principal, now_ms):
        return True
    if packet.qos and connection.version == V5:
        # `on_result` takes these off again: it is told of an append that was never begun.
        error = StorageFull("no room for more retained messages")
        connection.inflow.begun(packet.packet_id, packet.qos, len(packet.payload))
        connection.on_result(packet.packet_id, packet.qos, len(packet.payload), error, now_ms)
        return False
    packet.retain = False
    return True


def _store(
    connection: Connection,
    packet: Publish,
    binding: Binding,
    route: Route,
    receiver: AppendCallback,
) -> None:
    connection.inflow.begun(packet.packet_id, packet.qos, len(packet.payload))
    if packet.retain or packet.properties is not NO_PROPERTIES:
        by_client = binding.key_is_client_id
        owner = connection.hub.owner_told(connection.principal) if packet.retain else None
        headers = record_headers(
            packet, connection.client_id, key_is_client_id=by_client, owner=owner
        )
    else:
        headers = route.headers[packet.qos]
    session = connection.session
    # The identifier lies in the record itself, so that one append makes both durable: a client that
    # sends the PUBLISH again after a crash gets PUBREC, not a second record [MQTT-4.3.3-10].
    if packet.qos == 2 and session is not None and session.durable:
        headers += qos_2_header(session.stamp, packet.packet_id)
    connection.hub.store(binding, connection.principal, route.key, packet, headers, receiver)


def _delay(connection: Connection, packet: Publish, delay_s: int, now_ms: int) -> None:
    """Keep a publish until it is due."""
    connection.inflow.begun(packet.packet_id, packet.qos, len(packet.payload))
    session, headers = connection.session, b""
    if packet.qos == 2 and session is not None and session.durable:
        headers = client_header(session.client_id)
        headers += qos_2_header(session.stamp, packet.packet_id)
    hub, client_id, principal = connection.hub, connection.client_id, connection.principal
    outcome: Outcome = NOWHERE
    try:
        if delay(hub, packet, delay_s, client_id, principal, now_ms, connection, headers):
            return
    except StorageFull as error:
        outcome = error
    connection.on_result(packet.packet_id, packet.qos, len(packet.payload), outcome, now_ms)


def _refuse_one_more(connection: Connection, packet: Publish, now_ms: int) -> None:
    """The session has so many QoS 2 publishes that its state could not go to another node."""
    connection.hub.counters.publishes_refused += 1
    text = f"{SHARED_INCOMING_MAX} publishes of QoS 2 are not released"
    if connection.version == V5:
        _answer_in_turn(connection, packet, Reason.QUOTA_EXCEEDED, text)
    else:
        connection.close(Reason.QUOTA_EXCEEDED, text, now_ms)


def _begin(connection: Connection, packet: Publish, now_ms: int) -> bool:
    """Note a QoS 1 or 2 publish as coming in. False: it is a QoS 2 publish that came before."""
    limits, session = connection.hub.limits, connection.session
    assert session is not None
    known = session.incoming.get(packet.packet_id) if packet.qos == 2 else None
    if known is not None:
        # [MQTT-4.3.3-10]: answered again when it is stored, not taken again; once on a connection,
        # for a second PUBREC may come as if it were for the next publish under the identifier.
        if isinstance(known, Place) and packet.packet_id not in connection.inflow.unsaid_2:
            connection.write(PUBREC + packet.packet_id.to_bytes(2, "big"))
        elif not isinstance(known, Place):
            connection.inflow.unsaid_2.add(packet.packet_id)
        return False
    is_full = packet.qos == 2 and len(session.incoming) >= SHARED_INCOMING_MAX
    if is_full and connection.hub.ended is not None:
        _refuse_one_more(connection, packet, now_ms)
        return False
    inflow = connection.inflow
    if packet.qos == 1:
        inflow.qos_1 += 1
    else:
        inflow.qos_2.add(packet.packet_id)
        inflow.unsaid_2.add(packet.packet_id)
    # [MQTT-3.3.4-7] binds the client. A server that sees it broken may disconnect (0x93); this one
    # by default reads more slowly (`Connection.overloaded`). 3.1.1 has no such bound.
    if (
        limits.receive_maximum_exceeded == "disconnect"
        and connection.version == V5
        and inflow.qos_1 + len(inflow.qos_2) > limits.receive_max
    ):
        raise ProtocolError(
            f"more than {limits.receive_max} publishes unacknowledged",
            Reason.RECEIVE_MAXIMUM_EXCEEDED,
        )
    if packet.qos == 2:
        session.incoming[packet.packet_id] = connection
    return True


def _obey_properties(connection: Connection, packet: Publish) -> None:
    properties = packet.properties
    if properties.subscription_identifiers:  # [MQTT-3.3.4-6]
        raise ProtocolError("a client may not send a subscription identifier in PUBLISH")
    if properties.response_topic is not None:  # [MQTT-3.3.2-14]
        check_topic_name(properties.response_topic)
    alias = properties.topic_alias
    if alias is None:
        return
    if not 0 < alias <= connection.hub.limits.topic_alias_max:
        raise ProtocolError(f"topic alias {alias}", Reason.TOPIC_ALIAS_INVALID)
    # Aliases end with the network connection [MQTT-3.3.2-7], so the connection holds them and the
    # session does not.
    if packet.topic:
        connection.aliases[alias] = packet.topic
    elif alias in connection.aliases:
        packet.topic = connection.aliases[alias]
    else:
        raise ProtocolError(f"topic alias {alias} is not set", Reason.PROTOCOL_ERROR)


def _refuse(connection: Connection, packet: Publish, reason: Reason, now_ms: int) -> None:
    """The client may not publish there. Version 5 has reason codes for it; 3.1.1 can only be
    acknowledged as if nothing were wrong, or disconnected [MQTT-3.3.5-2 of 3.1.1]."""
    connection.hub.counters.publishes_refused += 1
    _note_refused(connection, packet, reason)
    if connection.version == V5:
        if packet.qos:
            _answer_in_turn(connection, packet, reason, "")
    elif connection.hub.limits.refused_publish_disconnects:
        connection.close(reason, f"may not publish to {packet.topic}", now_ms)
    elif packet.qos:
        _acknowledge_in_turn(connection, packet, now_ms)


def _note_refused(connection: Connection, packet: Publish, reason: Reason) -> None:
    hub, decisions = connection.hub, connection.hub.delivery.decisions
    if not decisions.on:
        return
    if reason is Reason.NOT_AUTHORIZED:
        context = connection.access_context(packet.qos, bool(packet.retain))
        name = hub.topic_name(packet.topic)
        why = hub.rights.why(connection.principal, Operation.WRITE, name, context)
    else:
        why = "the topic name has too many levels (topic_levels_max)"
    decisions.note("refused", connection.client_id, packet.topic, why=why)


def _in_turn(connection: Connection, packet: Publish, answer: Callable[[], None]) -> None:
    """Answer a publish that does not go to storage, behind those that have."""
    inflow = connection.inflow
    if not inflow.order:
        answer()
        return
    inflow.order.append(packet.packet_id)
    inflow.in_turn(packet.packet_id, answer)


def _acknowledge_in_turn(connection: Connection, packet: Publish, now_ms: int) -> None:
    if packet.qos == 2:
        connection.inflow.unsaid_2.add(packet.packet_id)
    answer = partial(_acknowledge, connection, packet.packet_id, packet.qos, NOWHERE, now_ms)
    _in_turn(connection, packet, answer)


def _answer_in_turn(connection: Connection, packet: Publish, reason: Reason, text: str) -> None:
    answer = partial(_answer, connection, packet.packet_id, packet.qos, reason, text)
    _in_turn(connection, packet, answer)


def _acknowledge(
    connection: Connection, packet_id: int, qos: int, place: Place, now_ms: int
) -> None:
    """The publish is where it belongs."""
    if qos == 1:
        if connection.state is State.CONNECTED:
            connection.write(PUBACK + packet_id.to_bytes(2, "big"))
        return
    session = connection.session
    assert session is not None
    known = session.incoming.get(packet_id, place if place == NOWHERE else None)
    if known is not connection and known != place:
        # Its record came here before this answer, so that the client has had PUBREC, and has
        # answered; the identifier may be another publish's by now.
        return
    session.incoming[packet_id] = place
    # The record of a delayed publish may be gone before the session is read again, and one that
    # another node has is not read here.
    if place.topic == DELAYED or (place.topic and place[:2] not in connection.hub.positions):
        # No connection is named: PUBREC goes to whichever the client has when the session is kept.
        session.keep(None, lambda _: _say_received(session, packet_id), now_ms)
    else:
        _say_received(session, packet_id)


def received(connection: Connection, packet_ids: Sequence[int], first: Place, now_ms: int) -> None:
    """QoS 2 publishes were stored: one place behind the other, from `first` on."""
    session, peer = connection.session, None
    if session is not None and first[:2] in connection.hub.positions and first.topic != DELAYED:
        peer = session.connection
    if peer is None or peer.state is not State.CONNECTED or len(packet_ids) == 1:
        for offset, packet_id in enumerate(packet_ids, first.offset):
            place = Place(first.topic, first.partition, offset)
            settled(connection, packet_id, 2, place, now_ms)
        return
    assert session is not None
    incoming, unsaid, answered = session.incoming, peer.inflow.unsaid_2, list[int]()
    for offset, packet_id in enumerate(packet_ids, first.offset):
        place = Place(first.topic, first.partition, offset)
        known = incoming.get(packet_id)
        if known is connection or known == place:  # as in `_acknowledge`
            incoming[packet_id] = place
            if packet_id in unsaid:
                unsaid.discard(packet_id)
                answered.append(packet_id)
    if answered:
        peer.write_acks(PUBREC, answered)


def _say_received(session: Session, packet_id: int) -> None:
    """PUBREC, if the client waits for it: one that has come back sends its PUBLISH again first."""
    peer = _waiting(session, packet_id)
    if peer is not None:
        peer.write(PUBREC + packet_id.to_bytes(2, "big"))


def _waiting(session: Session, packet_id: int) -> Peer | None:
    """The connection on which a QoS 2 publish came last, to be answered now; None: that is gone."""
    peer = session.connection
    if peer is None or peer.state is not State.CONNECTED:
        return None
    if packet_id not in peer.inflow.unsaid_2:
        return None
    peer.inflow.unsaid_2.discard(packet_id)
    return peer


def _answer(connection: Connection, packet_id: int, qos: int, reason: Reason, text: str) -> None:
    """Version 5: PUBACK or PUBREC with a failure; a refused publish is finished with it."""
    if connection.state is not State.CONNECTED:
        return
    said = connection.wants_reasons and text
    connection.send(
        Acknowledgement(
            PacketType.PUBACK if qos == 1 else PacketType.PUBREC,
            packet_id,
            reason,
            Properties(reason_string=text) if said else NO_PROPERTIES,
        )
    )


def settled(
    connection: Connection, packet_id: int, qos: int, outcome: Outcome, now_ms: int
) -> None:
    """A publish was stored, or was not.

    A QoS 2 publish is the session's, not the connection's: a client that came back meanwhile and
    sends it again is answered on its new connection, and the publish is not stored twice.
    """
    # `connection` is the one that the publish came on; its session may have another by now. PUBACK
    # belongs to the network connection, so a QoS 1 publish of a lost one is answered to no one: its
    # client sends it again and it is stored twice, which QoS 1 allows (4.3.2).
    live = connection.state is State.CONNECTED
    connection.inflow.qos_1 -= qos == 1
    session = connection.session
    if qos == 2 and session is not None and not isinstance(outcome, Place):
        known = session.incoming.get(packet_id)
        if isinstance(known, Place):
            # Its record has come here, though the answer says that it may not be stored.
            outcome = known
        elif known is not connection:
            return  # the identifier is another publish's by now
    if isinstance(outcome, Place):
        if qos == 2 or (qos and live):
            _acknowledge(connection, packet_id, qos, outcome, now_ms)
        return
    connection.hub.counters.failed(outcome)
    connection.hub.delivery.decisions.note(
        "not_stored", connection.client_id, "", why=f"packet {packet_id} at QoS {qos}: {outcome}"
    )
    connection.inflow.qos_2.discard(packet_id)
    waiting: Peer | None = connection if qos and live else None
    if qos == 2 and session is not None:
        # The next PUBLISH under this identifier is a new one [MQTT-4.3.3-9].
        session.incoming.pop(packet_id, None)
        waiting = _waiting(session, packet_id)
    if waiting is None:
        return
    # One that may come to be stored yet must not be finished with: its identifier would be taken
    # for its own under the next PUBLISH.
    is_open = qos == 2 and isinstance(outcome, NotLeader | OutcomeUnknown)
    if connection.version == V5 and not is_open and waiting is connection:
        _answer(connection, packet_id, qos, publish_reason(outcome), str(outcome))
    else:  # 3.1.1 cannot refuse, either: without an acknowledgement the client sends it again
        waiting.close(Reason.SERVER_UNAVAILABLE, f"not stored: {outcome}", now_ms)
