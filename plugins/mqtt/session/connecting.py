"""CONNECT and its answer.

Source: MQTT 5.0 sections 3.1, 3.2, 3.15; MQTT 3.1.1 sections 3.1, 3.2.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lakemq.broker_core.api.types import Credentials, Principal
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.sessions.exclusive import is_exclusive
from lakemq.plugins.mqtt.session import authenticating
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.subscribing import subscribe_automatically
from lakemq.plugins.mqtt.state.sessions import FOR_EVER_S
from lakemq.plugins.mqtt.state.states import NEVER_MS, State
from lakemq.plugins.mqtt.wire.aliases import SentAliases
from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, V5, V31, Connack, Connect, Properties
from lakemq.plugins.mqtt.wire.reasons import MqttError, ProtocolError, Reason
from lakemq.plugins.mqtt.wire.topics import check_topic_name

_KEEP_ALIVE_GRACE: Final = 1.5
"""A client may be silent for this many keep-alive intervals [MQTT-3.1.2-22]."""


def connect(connection: Connection, packet: Connect, now_ms: int) -> None:
    """Check CONNECT and ask who the client is; `welcome` goes on from there."""
    # Order matters: what shapes an answer (version, reason strings, packet size) is set before the
    # first check that may refuse, and the ban list comes before credentials, which cost time.
    hub, properties = connection.hub, packet.properties
    connection.version = packet.version
    connection.bridge = packet.bridge
    connection.connect = packet
    if properties.user_properties:
        properties.user_properties = ()  # not used after CONNECT; they would take memory
    connection.wants_reasons = properties.request_problem_information != 0
    _obey_client_limits(connection, properties)
    if hub.limits.server_reference and hub.limits.redirect != "on_stop":
        connection.redirect(hub.limits.redirect == "permanent", now_ms)
        return
    _check_client_id(hub.limits, packet)
    if packet.will is not None:
        check_topic_name(packet.will.topic, hub.limits.topic_levels_max)
    if len(hub.connections) > hub.limits.connections_max:
        raise ProtocolError("too many connections", Reason.SERVER_BUSY)
    connection.client_id = packet.client_id or hub.new_client_id()
    banned = hub.bans.reason_to_refuse(
        connection.client_id, packet.username, connection.peer_host, now_ms
    )
    if banned is not None:
        hub.counters.connections_refused += 1
        raise ProtocolError(banned, Reason.BANNED)
    credentials = Credentials(
        "mqtt",
        connection.client_id,
        connection.peer_host,
        packet.username,
        packet.password,
        connection.arrival.certificate_subject,
        connection.arrival.certificate_names,
        listener=connection.arrival.listener,
    )
    method = properties.authentication_method
    if method is not None:
        authenticating.begin(connection, method, credentials, properties.authentication_data or b"")
        return
    connection.state = State.AUTHENTICATING
    connection.credentials = credentials


def welcome(connection: Connection, principal: Principal, now_ms: int) -> None:
    """The client is known: open its session, and answer once that is kept."""
    hub, packet = connection.hub, connection.connect
    assert packet is not None
    # Behind authentication, too: a stranger must neither learn which client ids have sessions nor
    # end one.
    if not hub.session_table.has_room(connection.client_id, principal):
        raise ProtocolError("too many sessions", Reason.QUOTA_EXCEEDED)
    connection.principal = principal
    connection.blocked = True  # nothing is sent before CONNACK
    if hub.ended is not None or hub.sharing_soon:
        hub.outbox.claims.append(connection)
        return
    _open_here(connection, packet, now_ms)


def unshared(connection: Connection, now_ms: int) -> None:
    """The client waited for nodes to share sessions: they do not yet, so this one has its own."""
    packet = connection.connect
    if connection.ended or packet is None:
        return
    try:
        _open_here(connection, packet, now_ms)
    except MqttError as error:
        connection.close(error.reason, str(error), now_ms)


def _open_here(connection: Connection, packet: Connect, now_ms: int) -> None:
    hub = connection.hub
    if hub.session_table.is_anothers(connection.client_id, connection.principal):
        hub.counters.connections_refused += 1
        text = "the session of this client identifier is another user's"
        raise ProtocolError(text, Reason.NOT_AUTHORIZED)
    _open(connection, packet, now_ms)


def claimed(connection: Connection, epoch: int, kept: bool, now_ms: int) -> None:
    """This node owns the client's session, in that epoch, and the hub has it, if there is one.
    `kept`: its home has a record of one."""
    packet = connection.connect
    if connection.ended or packet is None:
        return
    try:
        _open(connection, packet, now_ms, epoch=epoch, kept=kept)
    except MqttError as error:
        connection.close(error.reason, str(error), now_ms)


def claim_refused(connection: Connection, reason: Reason, text: str, now_ms: int) -> None:
    """This node does not get the client's session."""
    if not connection.ended:
        connection.close(reason, text, now_ms)


def _open(
    connection: Connection, packet: Connect, now_ms: int, *, epoch: int = 0, kept: bool = False
) -> None:
    """Open the client's session, and answer once that is kept."""
    hub = connection.hub
    session, present, kept_before = hub.session_table.open(
        connection,
        connection.client_id,
        connection.principal,
        now_ms,
        clean_start=packet.clean_start,
        epoch=epoch,
    )
    kept_before = kept_before or kept
    connection.session = session
    if present:
        # Its subscriptions were made under earlier rules, or as a principal with other rights.
        hub.rights.withdraw(session)
    session.expiry_s = _expiry_s(connection, packet)
    session.will = packet.will  # kept with the session, before CONNACK
    # CONNACK promises the session, or that an older one is gone [MQTT-3.2.2-2] [MQTT-3.2.2-3]: so
    # the record, or its tombstone, is durable first. `kept_before` is the case of the tombstone.
    if hub.ledger is not None and (session.durable or kept_before):
        hub.ledger.keep(
            connection.client_id, connection, partial(_answer, connection, packet, present)
        )
    else:
        _answer(connection, packet, present, now_ms)


def _answer(connection: Connection, packet: Connect, present: bool, now_ms: int) -> None:
    """Say CONNACK, send what waits for the client, and handle what it sent meanwhile."""
    hub, session = connection.hub, connection.session
    assert session is not None
    keep_alive_s = _keep_alive_s(hub.limits, packet)
    told = present and packet.version > V31  # 3.1 has no such flag
    answer = Connack(told, 0, _connack_properties(connection, packet, keep_alive_s))
    if not connection.takes(answer):
        text = "CONNACK is larger than the client takes"
        # Without CONNACK the client was never connected, so its will is not published.
        connection.close(Reason.PACKET_TOO_LARGE, text, now_ms, with_will=False)
        return
    connection.keep_alive_ms = int(1000 * _KEEP_ALIVE_GRACE * keep_alive_s)
    connection.silent_until_ms = now_ms + connection.keep_alive_ms if keep_alive_s else NEVER_MS
    connection.state = State.CONNECTED
    connection.admit()
    connection.traffic.connected_ms = now_ms
    connection.connect = None
    connection.blocked = False
    hub.counters.connections_accepted += 1
    # CONNACK is the first packet of all [MQTT-3.2.0-1]; what is resumed is queued behind it.
    connection.send(answer)
    session.outbound.resume(connection, now_ms)
    hub.resume_histories(session)
    if hub.auto_subscriptions:
        subscribe_automatically(connection, now_ms)
    connection.proceed(now_ms)


def _check_client_id(limits: Limits, packet: Connect) -> None:
    fault = ""
    if len(packet.client_id.encode()) > limits.client_id_max_bytes:
        fault = f"client identifier longer than {limits.client_id_max_bytes} bytes"
    elif is_exclusive(packet.client_id):  # so that no session has the name of a filter
        fault = "a client identifier may not begin like an exclusive subscription"
    elif not packet.client_id and packet.version == V31:
        fault = "an empty client identifier"
    elif not packet.client_id and packet.version < V5 and not packet.clean_start:
        fault = "an empty client identifier needs a clean session"  # [MQTT-3.1.3-8] of 3.1.1
    if fault:
        raise ProtocolError(fault, Reason.CLIENT_IDENTIFIER_NOT_VALID)


def _expiry_s(connection: Connection, packet: Connect) -> int:
    """Seconds that the session outlives the connection; a 3.1.1 session that is not clean has no
    interval of its own and gets the longest allowed."""
    limits = connection.hub.limits
    if packet.version == V5:
        return min(packet.properties.session_expiry_s or 0, limits.session_expiry_max_s)
    return 0 if packet.clean_start else min(FOR_EVER_S, limits.session_expiry_max_s)


def _keep_alive_s(limits: Limits, packet: Connect) -> int:
    """The client's interval, or the server's own in version 5 [MQTT-3.2.2-22]."""
    longest = limits.keep_alive_max_s
    if packet.version == V5 and longest and not 0 < packet.keep_alive_s <= longest:
        return longest
    return packet.keep_alive_s


def _obey_client_limits(connection: Connection, asked: Properties) -> None:
    if asked.receive_maximum is not None:
        connection.window = min(connection.window, asked.receive_maximum)
    if asked.packet_max_bytes is not None:
        connection.packet_max_bytes = asked.packet_max_bytes
    aliases = min(asked.topic_alias_maximum or 0, connection.hub.limits.sent_topic_alias_max)
    connection.sent_aliases = SentAliases(aliases) if aliases else None


def _connack_properties(connection: Connection, packet: Connect, keep_alive_s: int) -> Properties:
    """What the server tells a version 5 client about itself and about what it changed."""
    if packet.version < V5:
        return NO_PROPERTIES
    limits, session, enhanced = connection.hub.limits, connection.session, connection.enhanced
    assert session is not None
    asked = packet.properties
    wants_information = asked.request_response_information and limits.response_information
    return Properties(
        session_expiry_s=(
            session.expiry_s if session.expiry_s != (asked.session_expiry_s or 0) else None
        ),
        receive_maximum=limits.receive_max,
        packet_max_bytes=limits.packet_max_bytes,
        topic_alias_maximum=limits.topic_alias_max,
        assigned_client_id=None if packet.client_id else connection.client_id,
        server_keep_alive_s=keep_alive_s if keep_alive_s != packet.keep_alive_s else None,
        response_information=limits.response_information if wants_information else None,
        authentication_method=enhanced.method if enhanced is not None else None,
        authentication_data=(enhanced.last_word or None) if enhanced is not None else None,
    )
