"""The span of a publish that carries a trace context: from PUBLISH until it is where it belongs.

Made of publishes with properties alone, and only where traces are on; the others come by no line of
this module.
"""

from __future__ import annotations

from opentelemetry.trace import Span, SpanKind

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.tracing import TEXT_MAX, TRACEPARENT, Attributes, Traces, end, parse
from lakemq.plugins.mqtt.state.appends import AppendCallback, Outcome
from lakemq.plugins.mqtt.wire.packets import Publish


def receive_span(traces: Traces, packet: Publish, client_id: str) -> Span | None:
    """Of a publish whose sender records the trace; None: it does not."""
    for name, value in packet.properties.user_properties:
        if name == TRACEPARENT:
            contexts = parse(value)
            if not contexts.sampled:
                return None
            attributes: Attributes = {
                "network.protocol.name": "mqtt",
                "messaging.client.id": client_id[:TEXT_MAX],
                "messaging.message.body.size": len(packet.payload),
                "lakemq.mqtt.qos": packet.qos,
            }
            return traces.begin(
                "receive", packet.topic, contexts, kind=SpanKind.SERVER, attributes=attributes
            )
    return None


class Receipt(AppendCallback):
    """Hears in a connection's place what became of one publish."""

    __slots__ = ("_receiver", "_span")

    def __init__(self, receiver: AppendCallback, span: Span) -> None:
        self._receiver = receiver
        self._span = span

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """End the span, then tell the connection."""
        end(self._span, outcome if isinstance(outcome, LakeMQError) else None)
        self._receiver.on_result(packet_id, qos, size_bytes, outcome, now_ms)
