"""Publishes of one client to one topic name that came together: QoS 0 is passed on as the bytes
that came, QoS 1 and 2 are stored without a look at each.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakemq.broker_core.api.types import Acks
from lakemq.plugins.mqtt.routing.subscriptions import Target
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.progress import ROUTES_MAX, Route
from lakemq.plugins.mqtt.state.appends import PendingAppend
from lakemq.plugins.mqtt.state.records import qos_2_header
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.messages import Message, message_of
from lakemq.plugins.mqtt.wire.packets import V5, Publish, PublishRun, StoredRun
from lakemq.plugins.mqtt.wire.topics import REMEMBERED_CHARS_MAX


def offer_express(connection: Connection, route: Route) -> None:
    """From now on, let plain QoS 0 publishes to this topic name come as the bytes they are."""
    stored = route.binding is not None and route.binding.stores_qos_0
    if stored or route.certificate is not None or len(route.topic) > REMEMBERED_CHARS_MAX:
        return
    express = connection.express
    if len(express) >= ROUTES_MAX:
        express.clear()
    # `forget_routes` clears this dict, and the decoder shares it: changed rights hold for runs too.
    express[route.topic.encode()] = route.topic


def offer_stored(connection: Connection, route: Route, qos: int) -> None:
    """From now on, let plain publishes of QoS 1 or 2 to this topic name, which the client may
    publish to so and nothing is particular about, come in runs."""
    stored = connection.stored if qos == 1 else connection.stored_2
    if len(route.topic) > REMEMBERED_CHARS_MAX:
        return
    if len(stored) >= ROUTES_MAX:
        stored.clear()
    stored[route.topic.encode()] = route


def store(connection: Connection, packet: StoredRun) -> None:
    """As `publishing.publish` of each; what each of them costs is in C."""
    hub, inflow, route = connection.hub, connection.inflow, packet.route
    packet_ids, payloads, qos = packet.packet_ids, packet.payloads, packet.qos
    count = len(packet_ids)
    hub.counters.publishes_received += count
    connection.traffic.received[qos] += count
    inflow.appends += count
    inflow.order += packet_ids
    pending, headers = hub.outbox.appends.to(route.stores, Acks.LEADER), route.headers[qos]
    if qos == 2:
        _store_2(connection, packet, pending)
        return
    inflow.qos_1 += count
    if count == 1:
        (payload,) = payloads
        inflow.appends_bytes += len(payload)
        token = (connection, packet_ids[0], 1)
        pending.add(connection.principal, route.key, payload, headers, token)
        return
    inflow.appends_bytes += sum(map(len, payloads))
    connection.traffic.packets_received += count - 1
    every = [headers] * count
    pending.add_run(connection.principal, route.key, payloads, every, connection, packet_ids)


def _store_2(connection: Connection, packet: StoredRun, pending: PendingAppend) -> None:
    inflow, route, session = connection.inflow, packet.route, connection.session
    packet_ids, payloads = packet.packet_ids, packet.payloads
    assert session is not None
    connection.traffic.packets_received += len(packet_ids) - 1
    inflow.appends_bytes += sum(map(len, payloads))
    inflow.qos_2.update(packet_ids)
    inflow.unsaid_2.update(packet_ids)
    session.incoming.update(dict.fromkeys(packet_ids, connection))
    every = [route.headers[2]] * len(packet_ids)
    if session.durable:
        every = [
            one + qos_2_header(session.stamp, i) for one, i in zip(every, packet_ids, strict=True)
        ]
    pending.add_run(connection.principal, route.key, payloads, every, connection, packet_ids, 2)


def pass_on(connection: Connection, packet: PublishRun, now_ms: int) -> None:
    """Pass a run of QoS 0 publishes on: as it is to those who speak the same version, packet by
    packet to the others."""
    hub = connection.hub
    hub.counters.publishes_received += packet.count
    connection.traffic.received[0] += packet.count
    connection.traffic.packets_received += packet.count - 1
    # the table may have been emptied since the run was taken for one; then too, it was allowed
    name = connection.express.get(packet.topic) or packet.topic.decode()
    if hub.express is not None and hub.express.wanted(name):
        for message in _messages(connection, packet, now_ms):
            hub.pass_on(message, now_ms)
        return
    _run_here(connection, packet, name, now_ms)


def _run_here(connection: Connection, packet: PublishRun, name: str, now_ms: int) -> None:
    hub = connection.hub
    match = hub.index.match(name)
    version_5 = connection.version == V5
    rest: list[Target] = []
    for target in match.targets:
        peer = target.session.connection
        if peer is None or peer.blocked:
            hub.delivery.dropped_qos_0 += packet.count
            hub.delivery.decisions.note(
                "qos_0", target.session.client_id, name, origin=connection.client_id,
                publishes=packet.count,
            )  # fmt: skip
            if peer is not None:
                peer.traffic.dropped += packet.count
        elif (  # it needs other bytes than came: decoded below
            (peer.version == V5) != version_5
            or target.identifiers
            or target.no_local
            or peer.packet_max_bytes < len(packet.packets)
        ):
            rest.append(target)
        else:
            peer.pass_on(packet.packets)
            peer.traffic.sent[0] += packet.count
            peer.traffic.packets_sent += packet.count - 1
            hub.delivery.sent += packet.count
    if not rest and not match.groups:
        if not match.targets:
            hub.delivery.decisions.note(
                "no_subscriber", connection.client_id, name, publishes=packet.count
            )
        return
    for message in _messages(connection, packet, now_ms):
        for target in rest:
            hub.deliver(target, message, now_ms)
        for group in match.groups:
            hub.deliver_shared(group, message, now_ms)


def _messages(connection: Connection, packet: PublishRun, now_ms: int) -> Iterator[Message]:
    hub = connection.hub
    decoder = Decoder(hub.limits.packet_max_bytes, hub.names, connection.version)
    for one in decoder.feed(packet.packets):
        assert isinstance(one, Publish)
        yield message_of(one, now_ms, connection.client_id)
