"""Plain numbers of the hub -> OpenTelemetry observable instruments, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.plugins.mqtt.routing.hub import Hub

Read = Callable[[], int]


def register_metrics(meter: Meter, hub: Hub) -> None:
    """One instrument per number; nothing is done until they are read."""
    for name, (read, description) in _growing(hub).items():
        meter.create_observable_counter(f"mqtt.{name}", [_callback(read)], description=description)
    for name, (read, description) in _levels(hub).items():
        meter.create_observable_gauge(f"mqtt.{name}", [_callback(read)], description=description)


def _callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(read())]


def _growing(hub: Hub) -> dict[str, tuple[Read, str]]:
    counters, delivery, retained, delays = hub.counters, hub.delivery, hub.retained, hub.delays
    return {
        "connections.accepted": (lambda: counters.connections_accepted, "CONNECTs let in"),
        "connections.refused": (lambda: counters.connections_refused, "CONNECTs refused"),
        "connections.redirected": (lambda: counters.connections_redirected, "sent elsewhere"),
        "credentials.ended": (lambda: hub.rights.ended, "connections whose credentials ended"),
        "subscriptions.withdrawn": (lambda: hub.rights.withdrawn, "subscriptions lost to rules"),
        "publishes.received": (lambda: counters.publishes_received, "PUBLISH packets from clients"),
        "publishes.refused": (lambda: counters.publishes_refused, "publishes without permission"),
        "publishes.failed": (lambda: counters.publishes_failed, "publishes that were not stored"),
        "publishes.not_led": (
            lambda: counters.publishes_not_led,
            "those of them whose partition no node led",
        ),
        "publishes.sent": (lambda: delivery.sent, "PUBLISH packets to clients"),
        "packets.invalid": (lambda: counters.packets_invalid, "connections ended by a bad packet"),
        "keep_alive.timeouts": (lambda: counters.keep_alive_timeouts, "clients silent too long"),
        "wills.published": (lambda: counters.wills_published, "wills published"),
        "sessions.expired": (lambda: counters.sessions_expired, "sessions that ran out"),
        "batches.corrupt": (lambda: counters.batches_corrupt, "batches left out: corrupt inside"),
        "records.unreadable": (
            lambda: counters.records_unreadable,
            "records of the broker's own topics left out: unreadable",
        ),
        "bytes.received": (lambda: counters.bytes_received, "bytes read from clients"),
        "bytes.sent": (lambda: counters.bytes_sent, "bytes written to clients"),
        "dropped.queue_full": (lambda: delivery.dropped_queue_full, "dropped: queue full"),
        "dropped.expired": (lambda: delivery.dropped_expired, "dropped: message expired"),
        "dropped.too_large": (lambda: delivery.dropped_too_large, "dropped: too large for client"),
        "dropped.qos_0": (lambda: delivery.dropped_qos_0, "QoS 0 dropped: client slow or gone"),
        "dropped.gone": (lambda: delivery.dropped_gone, "dropped: no more in the journal"),
        "delayed.published": (lambda: delays.published, "delayed publishes that were published"),
        "delayed.refused": (lambda: delays.refused, "delayed publishes not taken, or not allowed"),
        "subscribers.slow": (lambda: hub.delivery.slow.noted, "times that a client was slow"),
        "retained.refused": (lambda: retained.refused, "retained messages not kept: full"),
    }


def _levels(hub: Hub) -> dict[str, tuple[Read, str]]:
    return {
        "connections": (lambda: len(hub.connections), "network connections"),
        "connections.unauthenticated": (
            lambda: sum(not one.let_in for one in hub.connections),
            "network connections that are not let in yet",
        ),
        "sessions": (lambda: len(hub.sessions), "sessions, connected or not"),
        "subscriptions": (lambda: hub.index.count, "subscriptions"),
        "delayed": (lambda: len(hub.delays), "publishes that wait for their time"),
        "delayed.bytes": (lambda: hub.delays.size_bytes, "bytes of them"),
        "replays": (lambda: len(hub.histories), "subscriptions that read history now"),
        "retained": (lambda: hub.retained.count, "retained messages"),
        "retained.bytes": (lambda: hub.retained.size_bytes, "bytes of retained messages"),
    }
