"""OpenTelemetry metrics of channels between nodes: plain numbers, read when they are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lakemq.broker_core.cluster.channels.channels import Channels, Talk


def register_channel_metrics(meter: Meter, channels: Channels) -> None:
    """Make the figures of a node's channels readable."""
    counters: list[tuple[str, Callable[[Talk], int], str, str]] = [
        ("channels.sent", lambda talk: talk.sent, "{message}",
         "Messages and requests of plugins to other nodes."),
        ("channels.sent_bytes", lambda talk: talk.bytes_sent, "By", "Their payloads."),
        ("channels.received", lambda talk: talk.received, "{message}",
         "Messages and requests of plugins of other nodes."),
        ("channels.received_bytes", lambda talk: talk.bytes_received, "By", "Their payloads."),
        ("channels.dropped", lambda talk: talk.dropped, "{message}",
         "Messages and requests for nodes that could not be reached, or took too long."),
    ]  # fmt: skip
    for name, value, unit, description in counters:
        meter.create_observable_counter(
            f"lakemq.{name}", [_read(channels, value)], unit, description
        )


def _read(
    channels: Channels, value: Callable[[Talk], int]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: [Observation(sum(map(value, channels.talks.values())))]
