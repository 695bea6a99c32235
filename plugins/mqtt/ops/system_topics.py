"""`$SYS` topics: the broker about itself, as retained QoS 0 messages.

Names are those that Mosquitto's users know, where there is one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakemq.plugins.mqtt.ops.reports import slow_report
from lakemq.plugins.mqtt.wire.messages import Message

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub

PREFIX: Final = "$SYS/broker/"
SLOW_MAX: Final = 20


def system_values(hub: Hub, version: str, started_ms: int, now_ms: int) -> dict[str, str]:
    """Topic name behind `$SYS/broker/` -> payload."""
    counters, delivery = hub.counters, hub.delivery
    connected = sum(1 for one in hub.sessions.values() if one.connection is not None)
    numbers = {
        "clients/connected": connected,
        "clients/disconnected": len(hub.sessions) - connected,
        "clients/total": len(hub.sessions),
        "connections/accepted": counters.connections_accepted,
        "connections/refused": counters.connections_refused,
        "messages/received": counters.publishes_received,
        "messages/sent": delivery.sent,
        "bytes/received": counters.bytes_received,
        "bytes/sent": counters.bytes_sent,
        "subscriptions/count": hub.index.count,
        "retained messages/count": hub.retained.count,
        "publish/messages/dropped": delivery.dropped_qos_0 + delivery.dropped_queue_full,
        "publish/messages/refused": counters.publishes_refused,
        "publish/messages/failed": counters.publishes_failed,
    }
    values = {name: str(number) for name, number in numbers.items()}
    slow = slow_report(hub, now_ms)[:SLOW_MAX]
    values["slow subscribers"] = json.dumps(
        [{name: one[name] for name in ("client_id", "latency_ms", "topic")} for one in slow]
    )
    values["version"] = f"LakeMQ {version}"
    values["uptime"] = f"{(now_ms - started_ms) // 1000} seconds"
    return values


def publish_system_topics(hub: Hub, version: str, started_ms: int, now_ms: int) -> None:
    """Tell subscribers what changed since the last time."""
    for name, payload in system_values(hub, version, started_ms, now_ms).items():
        topic = PREFIX + name
        before = hub.retained.get(topic)
        if before is None or before.payload != payload.encode():
            hub.route(Message(topic, payload.encode(), 0, True, now_ms), now_ms)
