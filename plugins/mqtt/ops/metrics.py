"""Plain numbers of the hub -> OpenTelemetry observable instruments, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.plugins.mqtt.routing.history import History
from lakemq.plugins.mqtt.routing.hub import Hub

Read = Callable[[], int]


def register_metrics(meter: Meter, hub: Hub) -> None:
    """One instrument per number; nothing is done until they are read."""
    for name, (read, unit, description) in _growing(hub).items():
        meter.create_observable_counter(f"lakemq.mqtt.{name}", [_callback(read)], unit, description)
    for name, (read, unit, description) in _levels(hub).items():
        meter.create_observable_gauge(f"lakemq.mqtt.{name}", [_callback(read)], unit, description)


def _callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(read())]


def _growing(hub: Hub) -> dict[str, tuple[Read, str, str]]:
    return {**_taken(hub), **_express(hub), **_handed_on(hub)}


def _express(hub: Hub) -> dict[str, tuple[Read, str, str]]:
    counters = hub.counters
    return {
        "express.sent": (
            lambda: counters.express_sent, "{message}",
            "Publishes that no topic takes, to other nodes whose clients want them.",
        ),
        "express.received": (
            lambda: counters.express_received, "{message}", "The same, from other nodes."
        ),
        "express.dropped": (
            lambda: counters.express_dropped, "{message}",
            "Those for nodes that could not be reached or were slow.",
        ),
    }  # fmt: skip


def _taken(hub: Hub) -> dict[str, tuple[Read, str, str]]:
    counters, delivery = hub.counters, hub.delivery
    return {
        "connections.accepted": (
            lambda: counters.connections_accepted, "{connection}", "CONNECTs let in."
        ),
        "connections.refused": (
            lambda: counters.connections_refused, "{connection}", "CONNECTs refused."
        ),
        "connections.redirected": (
            lambda: counters.connections_redirected, "{connection}",
            "CONNECTs sent to another node.",
        ),
        "credentials.ended": (
            lambda: hub.rights.ended, "{connection}", "Connections whose credentials ended."
        ),
        "subscriptions.withdrawn": (
            lambda: hub.rights.withdrawn, "{subscription}", "Subscriptions lost to rules."
        ),
        "publishes.received": (
            lambda: counters.publishes_received, "{message}", "PUBLISH packets from clients."
        ),
        "publishes.refused": (
            lambda: counters.publishes_refused, "{message}", "Publishes without permission."
        ),
        "publishes.failed": (
            lambda: counters.publishes_failed, "{message}", "Publishes that were not stored."
        ),
        "publishes.not_led": (
            lambda: counters.publishes_not_led, "{message}",
            "Publishes not stored because no node led the partition.",
        ),
        "publishes.sent": (lambda: delivery.sent, "{message}", "PUBLISH packets to clients."),
        "packets.invalid": (
            lambda: counters.packets_invalid, "{connection}", "Connections ended by a bad packet."
        ),
        "keep_alive.timeouts": (
            lambda: counters.keep_alive_timeouts, "{connection}", "Clients silent too long."
        ),
        "wills.published": (lambda: counters.wills_published, "{message}", "Wills published."),
        "sessions.expired": (
            lambda: counters.sessions_expired, "{session}", "Sessions that ran out."
        ),
        "sessions.taken": (
            lambda: counters.sessions_taken, "{session}", "Sessions that came from other nodes."
        ),
        "sessions.left": (
            lambda: counters.sessions_left, "{session}", "Sessions that went on at other nodes."
        ),
        "batches.corrupt": (
            lambda: counters.batches_corrupt, "{batch}", "Batches left out: corrupt inside."
        ),
        "records.unreadable": (
            lambda: counters.records_unreadable, "{record}",
            "Records of the broker's own topics left out: unreadable.",
        ),
        "received": (lambda: counters.bytes_received, "By", "Bytes read from clients."),
        "sent": (lambda: counters.bytes_sent, "By", "Bytes written to clients."),
    }  # fmt: skip


def _handed_on(hub: Hub) -> dict[str, tuple[Read, str, str]]:
    delivery, retained, delays = hub.delivery, hub.retained, hub.delays
    return {
        "dropped.queue_full": (
            lambda: delivery.dropped_queue_full, "{message}", "Dropped: queue full."
        ),
        "dropped.expired": (
            lambda: delivery.dropped_expired, "{message}", "Dropped: message expired."
        ),
        "dropped.too_large": (
            lambda: delivery.dropped_too_large, "{message}", "Dropped: too large for client."
        ),
        "dropped.qos_0": (
            lambda: delivery.dropped_qos_0, "{message}", "QoS 0 dropped: client slow or gone."
        ),
        "dropped.gone": (
            lambda: delivery.dropped_gone, "{message}", "Dropped: no more in the journal."
        ),
        "delayed.published": (
            lambda: delays.published, "{message}", "Delayed publishes that were published."
        ),
        "delayed.refused": (
            lambda: delays.refused, "{message}", "Delayed publishes not taken, or not allowed."
        ),
        "subscribers.slow": (
            lambda: hub.delivery.slow.noted, "{client}", "Times that a client was slow."
        ),
        "retained.refused": (
            lambda: retained.refused, "{message}", "Retained messages not kept: full."
        ),
    }  # fmt: skip


def _levels(hub: Hub) -> dict[str, tuple[Read, str, str]]:
    return {
        "connections": (lambda: len(hub.connections), "{connection}", "Network connections."),
        "connections.unauthenticated": (
            lambda: sum(not one.let_in for one in hub.connections),
            "{connection}",
            "Network connections that are not let in yet.",
        ),
        "sessions": (lambda: len(hub.sessions), "{session}", "Sessions, connected or not."),
        "subscriptions": (lambda: hub.index.count, "{subscription}", "Subscriptions."),
        "delayed": (
            lambda: len(hub.delays),
            "{message}",
            "Publishes that wait for their time, in the cluster.",
        ),
        "delayed.bytes": (
            lambda: hub.delays.size_bytes,
            "By",
            "Bytes of publishes that wait for their time.",
        ),
        "replays": (
            lambda: sum(isinstance(one, History) for one in hub.histories),
            "{subscription}",
            "Subscriptions that read history now.",
        ),
        "retained": (lambda: hub.retained.count, "{message}", "Retained messages."),
        "retained.bytes": (lambda: hub.retained.size_bytes, "By", "Bytes of retained messages."),
    }
