"""Metrics of the bridges, read from plain numbers on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.plugins.mqtt.bridge.runner import Bridge

Read = Callable[[Bridge], int]

GROWING: dict[str, tuple[Read, str]] = {
    "forwarded": (lambda one: one.outbox.sent, "records that the remote broker has"),
    "received": (lambda one: one.inbox.received, "publishes of the remote broker stored here"),
    "repeated": (lambda one: one.inbox.repeated, "QoS 2 publishes that came again, stored once"),
    "refused": (lambda one: one.receiver.refused, "publishes that can never be stored"),
    "unasked": (lambda one: one.receiver.unasked, "publishes that no rule takes"),
    "lost": (lambda one: one.source.lost, "records deleted here before they went out"),
    "unreadable": (lambda one: one.source.unreadable, "records without a readable topic name"),
    "connects": (lambda one: one.connects, "links that were made"),
    "failures": (lambda one: one.failures, "attempts that failed and links that ended"),
}
LEVELS: dict[str, tuple[Read, str]] = {
    "connected": (lambda one: int(one.connected), "1 while the link stands"),
    "lag": (lambda one: one.source.lag, "records that may still have to go out"),
    "inflight": (lambda one: len(one.outbox), "publishes that the remote broker has not answered"),
}


def register_metrics(meter: Meter, bridges: Sequence[Bridge]) -> None:
    """One instrument per number, one series per link."""
    for name, (read, description) in GROWING.items():
        meter.create_observable_counter(
            f"bridge.{name}", [_callback(read, bridges)], description=description
        )
    for name, (read, description) in LEVELS.items():
        meter.create_observable_gauge(
            f"bridge.{name}", [_callback(read, bridges)], description=description
        )


def _callback(
    read: Read, bridges: Sequence[Bridge]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(read(one), {"link": one.settings.name}) for one in bridges]
