"""Publishes of one client that came together: those at QoS 0 are passed on as the bytes that came,
those at QoS 1 and 2 to one topic name are stored without a look at each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from lakemq.broker_core.api.types import Acks
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.routing.subscriptions import Match, Target
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.progress import ROUTES_MAX, Route
from lakemq.plugins.mqtt.state.appends import PendingAppend
from lakemq.plugins.mqtt.state.peer import Peer
from lakemq.plugins.mqtt.state.records import qos_2_header
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.messages import Message, message_of
from lakemq.plugins.mqtt.wire.packets import V5, Publish, StoredRun
from lakemq.plugins.mqtt.wire.topics import REMEMBERED_CHARS_MAX


def offer_express(connection: Connection, route: Route) -> None:
    """From now on, pass plain QoS 0 publishes to this topic name on as the bytes they are."""
    stored = route.binding is not None and route.binding.stores_qos_0
    if not stored and route.certificate is None:
        note_express(connection, route.topic.encode(), route.topic)


def note_express(connection: Connection, raw: bytes, name: str | None) -> None:
    """Remember whether plain QoS 0 publishes to a name may be passed on as bytes; None: not."""
    if len(raw) > REMEMBERED_CHARS_MAX:
        return
    express = connection.express
    if len(express) >= ROUTES_MAX:
        express.clear()
    # `forget_routes` clears this dict, and the decoder shares it: changed rights hold for runs too.
    express[raw] = name


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


class _Plan:
    """What becomes of the publishes of a run that the same clients get."""

    __slots__ = ("deaf", "elsewhere", "groups", "rest", "whole")

    def __init__(
        self,
        whole: Sequence[Peer] = (),
        rest: Sequence[Target] = (),
        deaf: Sequence[Target] = (),
        groups: Sequence[Group] = (),
        elsewhere: bool = False,
    ) -> None:
        self.whole = whole
        """They take the bytes that came."""
        self.rest = rest
        """They take other bytes."""
        self.deaf = deaf
        """They take nothing now."""
        self.groups = groups
        self.elsewhere = elsewhere
        """Clients of other nodes get them, too."""


_ELSEWHERE: Final = _Plan(elsewhere=True)


def pass_on(
    connection: Connection, names: Sequence[bytes], sizes: Sequence[int], data: bytes, now_ms: int
) -> None:
    """Pass QoS 0 publishes to express topic names on: as they are to those who speak the same
    version, packet by packet to the others. `sizes`: of the packets in `data` (bytes)."""
    connection.hub.counters.publishes_received += len(names)
    connection.traffic.received[0] += len(names)
    connection.traffic.packets_received += len(names)
    if len(names) == 1:
        _carry_out(connection, _plan_of(connection, names[0], 1, sizes[0], {}), data, 1, now_ms)
        return
    plans = _plans(connection, names, max(sizes))
    plan = plans[names[0]]
    if all(each is plan for each in plans.values()):
        _carry_out(connection, plan, data, len(names), now_ms)
        return
    begin = end = count = 0
    for name, size in zip(names, sizes, strict=True):
        if plans[name] is not plan:
            _carry_out(connection, plan, data[begin:end], count, now_ms)
            plan, begin, count = plans[name], end, 0
        end += size
        count += 1
    _carry_out(connection, plan, data[begin:], count, now_ms)


def _plans(connection: Connection, names: Sequence[bytes], largest: int) -> dict[bytes, _Plan]:
    """By topic name; the same one for all names with the same match."""
    by_match: dict[Match, _Plan] = {}
    return {
        raw: _plan_of(connection, raw, count, largest, by_match)
        for raw, count in Counter(names).items()
    }


def _plan_of(
    connection: Connection, raw: bytes, count: int, largest: int, by_match: dict[Match, _Plan]
) -> _Plan:
    """Of `count` publishes to a name. `by_match`: plans of the same run so far."""
    hub, name = connection.hub, connection.express[raw]
    assert name is not None
    if hub.express is not None and hub.express.wanted(name):
        return _ELSEWHERE
    match = hub.index.match(name)
    plan = by_match.get(match)
    if plan is None:
        plan = by_match[match] = _plan(connection, match, largest)
    if plan.deaf:
        _drop(connection, plan.deaf, name, count)
    elif not (match.targets or match.groups):
        hub.delivery.decisions.note("no_subscriber", connection.client_id, name, publishes=count)
    return plan


def _plan(connection: Connection, match: Match, largest: int) -> _Plan:
    whole: list[Peer] = []
    rest: list[Target] = []
    deaf: list[Target] = []
    version_5 = connection.version == V5
    for target in match.targets:
        peer = target.session.connection
        if peer is None or peer.blocked:
            deaf.append(target)
        elif (  # it needs other bytes than came: decoded below
            (peer.version == V5) != version_5
            or target.identifiers
            or target.no_local
            or peer.packet_max_bytes < largest
        ):
            rest.append(target)
        else:
            whole.append(peer)
    return _Plan(whole, rest, deaf, match.groups)


def _drop(connection: Connection, deaf: Sequence[Target], name: str, count: int) -> None:
    delivery = connection.hub.delivery
    for target in deaf:
        delivery.dropped_qos_0 += count
        delivery.decisions.note(
            "qos_0", target.session.client_id, name, origin=connection.client_id, publishes=count
        )
        if target.session.connection is not None:
            target.session.connection.traffic.dropped += count


def _carry_out(connection: Connection, plan: _Plan, data: bytes, count: int, now_ms: int) -> None:
    """`data`: `count` publishes in a row that have this plan."""
    hub = connection.hub
    for peer in plan.whole:
        peer.pass_on(data)
        peer.traffic.sent[0] += count
        peer.traffic.packets_sent += count - 1
    hub.delivery.sent += count * len(plan.whole)
    if not (plan.rest or plan.groups or plan.elsewhere):
        return
    for message in _messages(connection, data, now_ms):
        if plan.elsewhere:
            hub.pass_on(message, now_ms)
        for target in plan.rest:
            hub.deliver(target, message, now_ms)
        for group in plan.groups:
            hub.deliver_shared(group, message, now_ms)


def _messages(connection: Connection, data: bytes, now_ms: int) -> Iterator[Message]:
    hub = connection.hub
    decoder = Decoder(hub.limits.packet_max_bytes, hub.names, connection.version)
    for one in decoder.feed(data):
        assert isinstance(one, Publish)
        yield message_of(one, now_ms, connection.client_id)
