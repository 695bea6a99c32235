"""What operators do to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakemq.plugins.mqtt.routing.bans import Ban, BanRules, Bans
from lakemq.plugins.mqtt.wire.reasons import Reason

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub
    from lakemq.plugins.mqtt.state.peer import Peer
    from lakemq.plugins.mqtt.state.sessions import Session


def kick(hub: Hub, session: Session, now_ms: int, *, end: bool) -> None:
    """End a client's connection, and its session where `end`."""
    if session.connection is not None:
        session.connection.close(Reason.ADMINISTRATIVE_ACTION, "an operator ended it", now_ms)
    if end and hub.sessions.get(session.client_id) is session:
        hub.session_table.end(session, now_ms)


def banned(hub: Hub, ban: Ban, now_ms: int) -> list[Peer]:
    """The connections that a new ban is about."""
    # This ban alone: the others were enforced when they were made.
    alone = Bans(BanRules())
    alone.impose(ban)
    return [
        one
        for one in hub.connections
        if alone.reason_to_refuse(one.client_id, one.principal.name, one.peer_host, now_ms)
    ]


def enforce(hub: Hub, ban: Ban, now_ms: int) -> int:
    """End the connections that a new ban is about; returns their number."""
    found = banned(hub, ban, now_ms)
    for connection in found:
        connection.close(Reason.BANNED, "banned by an operator", now_ms)
    return len(found)
