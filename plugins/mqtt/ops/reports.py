"""The hub as operators see it: clients, slow ones, bans, as values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub
    from lakemq.plugins.mqtt.state.sessions import Session

_NAMES = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def client_summary(session: Session) -> dict[str, Any]:
    """A client in a list."""
    connection, outbound = session.connection, session.outbound
    return {
        "client_id": session.client_id,
        "connected": connection is not None,
        "principal": session.principal.name,
        "peer_host": connection.peer_host if connection is not None else None,
        "protocol": _NAMES[connection.version] if connection is not None else None,
        "connected_ms": connection.traffic.connected_ms if connection is not None else None,
        "subscriptions": len(session.subscriptions),
        "inflight": len(outbound.inflight),
        "queued": len(outbound.queue or ()),
        "dropped": outbound.dropped,
    }


def client_report(session: Session) -> dict[str, Any]:
    """All about one client; times are ms since the epoch, counts those of its connection."""
    connection, outbound = session.connection, session.outbound
    report = client_summary(session) | {
        "session_expiry_s": session.expiry_s,
        "session_ends_ms": session.ends_ms,
        "queued_bytes": outbound.queue_bytes,
        "incoming_qos_2": len(session.incoming),
        "replays": list(session.histories or ()),
        "filters": {
            text: {"qos": one.options & 3, "identifier": one.identifier or None}
            for text, one in session.subscriptions.items()
        },
    }
    if connection is None:
        return report
    traffic = connection.traffic
    return report | {
        "listener": connection.arrival.listener,
        "keep_alive_ms": connection.keep_alive_ms,
        "slow": connection.blocked,
        "being_stored": connection.inflow.appends,
        "received": {
            "bytes": traffic.bytes_received,
            "packets": traffic.packets_received,
            "publishes": list(traffic.received),
        },
        "sent": {
            "bytes": traffic.bytes_sent,
            "packets": traffic.packets_sent,
            "publishes": list(traffic.sent),
        },
        "dropped_qos_0": traffic.dropped,
    }


def slow_report(hub: Hub, now_ms: int) -> list[dict[str, Any]]:
    """The slowest clients, slowest first, those that are slow right now among them."""
    for connection in hub.connections:
        if connection.blocked and connection.let_in:
            connection.note_blocked(now_ms)
    return [asdict(one) for one in hub.delivery.slow.top(now_ms)]
