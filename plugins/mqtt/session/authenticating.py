"""Enhanced authentication: an exchange of AUTH packets, at CONNECT and again while connected.

The mechanism itself (SCRAM, ...) is the broker's; here is what MQTT has around it. The engine takes
`dialogue.said` to the exchange and brings back a challenge, a principal or a refusal.

Source: MQTT 5.0 sections 3.15 and 4.12.
"""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.types import Credentials, Principal
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.progress import Dialogue, Enhanced
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.wire.packets import Auth, Properties
from lakemq.plugins.mqtt.wire.reasons import MqttError, ProtocolError, Reason

STEPS_MAX: Final = 16
"""Most steps of one exchange."""


def begin(connection: Connection, method: str, credentials: Credentials, data: bytes) -> None:
    """CONNECT named a method [MQTT-4.12.0-1]."""
    connection.state = State.AUTHENTICATING
    connection.enhanced = Enhanced(method, credentials)
    _say(connection, connection.enhanced, Dialogue(), data)


def _say(connection: Connection, enhanced: Enhanced, dialogue: Dialogue, data: bytes) -> None:
    dialogue.said = data
    dialogue.steps += 1
    enhanced.dialogue = dialogue
    connection.hub.outbox.exchanges.append(connection)


def auth(connection: Connection, packet: Auth, now_ms: int) -> None:
    """AUTH from a client, while it connects or later."""
    enhanced = connection.enhanced
    if enhanced is None:  # [MQTT-4.12.0-7]
        raise ProtocolError("AUTH without an authentication method in CONNECT")
    dialogue, method = enhanced.dialogue, packet.properties.authentication_method
    if method != enhanced.method:  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        raise ProtocolError("AUTH with another authentication method than CONNECT")
    data = packet.properties.authentication_data or b""
    if packet.reason == Reason.REAUTHENTICATE:
        if connection.state is not State.CONNECTED or dialogue is not None:
            raise ProtocolError("re-authentication may not begin now")
        _say(connection, enhanced, Dialogue(again=True), data)
        return
    if packet.reason != Reason.CONTINUE_AUTHENTICATION:  # [MQTT-4.12.0-3]
        raise ProtocolError(f"AUTH with reason {packet.reason:#04x} from a client")
    if dialogue is None or dialogue.said is not None:
        raise ProtocolError("AUTH that was not asked for")
    if dialogue.steps >= STEPS_MAX:
        raise ProtocolError("authentication takes too many steps", Reason.NOT_AUTHORIZED)
    # Re-authentication leaves the connection CONNECTED: the client may go on meanwhile (4.12.1).
    if not dialogue.again:
        connection.state = State.AUTHENTICATING
    _say(connection, enhanced, dialogue, data)


def challenged(connection: Connection, dialogue: Dialogue, data: bytes, now_ms: int) -> None:
    """The exchange asks for more [MQTT-4.12.0-2]."""
    if not _running(connection, dialogue):
        return
    dialogue.said = None
    if not dialogue.again:
        connection.state = State.CHALLENGED
    connection.send(Auth(Reason.CONTINUE_AUTHENTICATION, _properties(connection, data)))
    if not dialogue.again:  # bytes that came meanwhile were held, not decoded
        connection.proceed(now_ms)


def accepted(
    connection: Connection, dialogue: Dialogue, principal: Principal, data: bytes, now_ms: int
) -> None:
    """The exchange knows the client: let it in, or let it go on as whom it was."""
    enhanced = connection.enhanced
    if enhanced is None or not _running(connection, dialogue):
        return
    enhanced.dialogue = None
    if not dialogue.again:
        enhanced.last_word = data
        connection.authenticated(principal, now_ms)
        return
    # The session belongs to its principal, so its connection cannot change to another one.
    if (principal.kind, principal.name) != (connection.principal.kind, connection.principal.name):
        connection.close(Reason.NOT_AUTHORIZED, "authenticated as another principal", now_ms)
        return
    connection.hub.rights.note(connection, principal)
    principal = connection.hub.same_principal(principal)
    connection.principal = principal
    if connection.session is not None:
        connection.session.principal = principal
    # The new credentials may allow less: routes ask again with the next bytes.
    connection.routes_until_ms = 0
    connection.send(Auth(Reason.SUCCESS, _properties(connection, data)))


def refused(
    connection: Connection, dialogue: Dialogue, reason: Reason, text: str, now_ms: int
) -> None:
    """The exchange failed, and so the connection ends [MQTT-4.12.0-4] [MQTT-4.12.1-2]."""
    if _running(connection, dialogue):
        connection.refused(reason, text, now_ms)


def _running(connection: Connection, dialogue: Dialogue) -> bool:
    enhanced = connection.enhanced
    return enhanced is not None and enhanced.dialogue is dialogue and not connection.ended


def _properties(connection: Connection, data: bytes) -> Properties:
    if len(data) > 0xFFFF:
        raise MqttError(Reason.IMPLEMENTATION_ERROR, "authentication data are too long")
    assert connection.enhanced is not None
    method = connection.enhanced.method
    return Properties(authentication_method=method, authentication_data=data or None)
