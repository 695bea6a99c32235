"""What a batch costs where traces are on, in CPU time (us): the least of several rounds.

    python -m benchmarks.telemetry.traces

Where they are off none of this is called; the last two lines are QoS 1 publishes through the hub
with traces off, without sockets and storage, to be set beside those of another commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.tracing import NONE, Contexts, Traces, end, in_batch, in_columns
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.mqtt.wire.encoding import encode as encode_packet
from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, V5, Properties, Publish
from lakemq.telemetry.tracing import Tracing
from tests.support.mqtt.bench import Bench

RECORDS = 32
"""As many as the MQTT plugin gathers into an append under load."""
PLAIN = (("mqtt.client", b"sensor-12"), ("mqtt.qos", b"1"))
CONTEXT = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")

TAGGED = Properties(user_properties=(("a", "b"),))


class Nowhere(SpanExporter):
    """Takes spans and keeps none."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def least_us(work: Callable[[], object], count: int) -> float:
    rounds = []
    for _ in range(15):
        began = time.thread_time()
        for _ in range(count):
            work()
        rounds.append((time.thread_time() - began) / count * 1e6)
    return min(rounds)


def columns(*last: tuple[str, bytes]) -> Columns:
    cells = [encode_headers(PLAIN)] * (RECORDS - 1) + [encode_headers((*PLAIN, *last))]
    return Columns([b"x" * 100] * RECORDS, [b"k"] * RECORDS, cells)


def record(traces: Traces, contexts: Contexts) -> None:
    span = traces.begin("append", "mqtt", contexts)
    assert span is not None
    end(span)


def publish_us(properties: Properties) -> float:
    """Of one of 20 publishes that come together, until its PUBACK."""
    bench = Bench()
    device = bench.connect("device-1", version=V5)
    packets = [Publish("a/b", b"x" * 100, 1, packet_id=n + 1) for n in range(20)]
    for packet in packets:
        packet.properties = properties
    data = b"".join(encode_packet(packet, V5) for packet in packets)

    def publish() -> None:
        device.send_bytes(data)
        bench.store()
        bench.hub.outbox.take()
        device.connection.out.clear()

    return least_us(publish, 20) / len(packets)


def main() -> None:
    traces = Tracing(Nowhere(), 1e-9, 1_000_000_000, Resource.create()).traces
    plain, traced = columns(), columns(CONTEXT)
    contexts, large = in_columns(traced), encode(Columns([b"x" * 100] * 10_000))
    for name, work, count in (
        (f"look through {RECORDS} records, no context", lambda: in_columns(plain), 2000),
        (f"look through {RECORDS} records, one context", lambda: in_columns(traced), 2000),
        ("look at an encoded batch without headers", lambda: in_batch(large), 500),
        ("decide that no span is made", lambda: traces.begin("append", "mqtt", NONE), 2000),
        ("make a span and end it", lambda: record(traces, contexts), 300),
    ):
        print(f"{name:48} {least_us(work, count):8.1f}")
    for name, properties in (("plain", NO_PROPERTIES), ("with a user property", TAGGED)):
        print(f"publish, {name:39} {publish_us(properties):8.1f}")


if __name__ == "__main__":
    main()
