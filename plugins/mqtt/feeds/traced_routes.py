"""Spans of what is delivered: one a batch, not one a message. Only where traces are on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lakemq.broker_core.api.records.batch import read_header
from lakemq.broker_core.api.tracing import Traces, end, in_committed
from lakemq.broker_core.api.types import CommittedBatch
from lakemq.plugins.mqtt.state.delivery import DeliveryLimits

RouteBatch = Callable[[str, CommittedBatch], Iterator[None]]
"""Delivers a batch of a topic, with pauses."""


def traced(route: RouteBatch, traces: Traces, delivery: DeliveryLimits) -> RouteBatch:
    """`route`, with a span from the first record to the last: they are written to the sockets of
    subscribers by then, or wait in their queues."""

    def routed(topic: str, batch: CommittedBatch) -> Iterator[None]:
        columns = batch.columns
        count = read_header(batch.data).record_count if columns is None else len(columns.values)
        span = traces.begin(
            "deliver",
            topic,
            in_committed(batch),
            attributes={
                "network.protocol.name": "mqtt",
                "messaging.batch.message_count": count,
                "messaging.destination.partition.id": str(batch.partition),
                "lakemq.offset": batch.base_offset,
            },
        )
        sent = delivery.sent
        yield from route(topic, batch)
        if span is not None:
            span.set_attribute("lakemq.mqtt.publishes_sent", delivery.sent - sent)
            end(span)

    return routed
