"""`$SYS` topics: the broker about itself, as retained QoS 0 messages.

Names are those that Mosquitto's users know, where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lakemq.plugins.mqtt.ops.reports import slow_report
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot, unpacked_map
from lakemq.plugins.mqtt.wire.messages import Message

if TYPE_CHECKING:
    from lakemq.plugins.mqtt.routing.hub import Hub

PREFIX: Final = "$SYS/broker/"
NODES_PREFIX: Final = "$SYS/brokers/"
"""In front of the id of a node."""
SLOW_MAX: Final = 20
SUMMED: Final = (
    "clients/connected", "clients/disconnected", "clients/total", "connections/accepted",
    "connections/refused", "messages/received", "messages/sent", "bytes/received", "bytes/sent",
    "subscriptions/count", "publish/messages/dropped", "publish/messages/refused",
    "publish/messages/failed", "publish/messages/received", "publish/messages/sent",
)  # fmt: skip
"""Numbers that each node has for itself."""
OWN: Final = ("retained messages/count", "slow subscribers", "version", "uptime")
MESSAGE_MAX_BYTES: Final = 256 * 1024
VALUE_CHARS_MAX: Final = 64 * 1024
DIGITS_MAX: Final = 20
Values = dict[str, str]
"""Topic name behind the prefix -> payload."""


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
        # Mosquitto's names for what `messages/...` counts here; there it counts all packets.
        "publish/messages/received": counters.publishes_received,
        "publish/messages/sent": delivery.sent,
    }
    values = {name: str(number) for name, number in numbers.items()}
    slow = slow_report(hub, now_ms)[:SLOW_MAX]
    values["slow subscribers"] = json.dumps(
        [{name: one[name] for name in ("client_id", "latency_ms", "topic")} for one in slow]
    )
    values["version"] = f"LakeMQ {version}"
    values["uptime"] = f"{(now_ms - started_ms) // 1000} seconds"
    return values


def publish_system_topics(
    hub: Hub,
    version: str,
    started_ms: int,
    now_ms: int,
    node_id: str = "",
    others: Mapping[str, Values] | None = None,
) -> Values:
    """Tell subscribers what changed since the last time; returns the values of this node.

    `others`: those of other nodes, as `read_values` gave them: each node's own are
    told besides, and the broker is all nodes together. None: there are no other nodes."""
    own = system_values(hub, version, started_ms, now_ms)
    told = {PREFIX + name: value for name, value in summed(own, others or {}).items()}
    for node, values in ({node_id: own, **others} if others is not None else {}).items():
        told |= {f"{NODES_PREFIX}{node}/{name}": value for name, value in values.items()}
    for topic, payload in told.items():
        before = hub.retained.get(topic)
        if before is None or before.payload != payload.encode():
            hub.route(Message(topic, payload.encode(), 0, True, now_ms), now_ms)
    return own


def summed(own: Values, others: Mapping[str, Values]) -> Values:
    """The numbers that nodes have apart are added; the rest is this node's."""
    found = dict(own)
    for name in SUMMED:
        numbers = [int(values[name]) for values in (own, *others.values()) if name in values]
        found[name] = str(sum(numbers))
    return found


def read_values(data: bytes) -> Values:
    """What another node has sent as its values, without what this one does not know. Raises
    BadSnapshot."""
    if len(data) > MESSAGE_MAX_BYTES:
        raise BadSnapshot(f"{len(data)} bytes; {MESSAGE_MAX_BYTES} are the most")
    found = unpacked_map(data)
    values: Values = {}
    for name in (*SUMMED, *OWN):
        value = found.get(name, "")
        if not isinstance(value, str) or len(value) > VALUE_CHARS_MAX:
            raise BadSnapshot(f"{name} is no text of {VALUE_CHARS_MAX} characters at most")
        is_number = value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX
        if value and (is_number or name not in SUMMED):
            values[name] = value
    return values


def forget_node(hub: Hub, node: str) -> None:
    """The node is gone: nothing is told of it any more."""
    gone = list(hub.retained.match(f"{NODES_PREFIX}{node}/#", 0))
    for message in gone:
        hub.retained.forget(message.topic)
