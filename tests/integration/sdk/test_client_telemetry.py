"""Goal: a client's spans and metrics are those of OpenTelemetry's conventions for messaging, one
span a batch, joined to the traces of its records; they go to the providers that are given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, Tracer, get_current_span

import lakemq
from tests.support.node.node import NodeProcess, unique


class Seen(NamedTuple):
    given: lakemq.Telemetry
    tracer: Tracer
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """(attributes, point) of one metric."""
        found = self.reader.get_metrics_data()
        assert found is not None
        return [
            (dict(point.attributes), point)
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if metric.name == name
        ]


@pytest.fixture
def seen() -> Iterator[Seen]:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    yield Seen(lakemq.Telemetry(tracers, meters), tracers.get_tracer("shop"), exporter, reader)
    tracers.shutdown()
    meters.shutdown()


async def test_what_is_sent_and_received_is_told(node: NodeProcess, topic: str, seen: Seen) -> None:
    async with lakemq.Client(node.native, telemetry=seen.given) as client:
        async with await client.producer() as producer:
            with seen.tracer.start_as_current_span("order") as order:
                await producer.send(topic, b"1")
            with seen.tracer.start_as_current_span("other"):
                block = [lakemq.NewRecord(b"2"), lakemq.NewRecord(b"3")]
                await producer.send_batch(topic, block)
        async with client.subscribe(topic, group=topic) as consumer:
            found: list[lakemq.ConsumerRecord] = []
            while len(found) < 3:
                found += await consumer.get_many(timeout_s=30)
    first, second = seen.spans(f"send {topic}")
    assert first.kind is SpanKind.PRODUCER and first.status.status_code is StatusCode.UNSET
    assert first.attributes == {
        "messaging.system": "lakemq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": 1,
    }
    assert first.parent is not None and first.parent.span_id == order.get_span_context().span_id
    (other,) = seen.spans("other")
    assert second.parent is not None and second.parent.span_id == other.context.span_id
    received = seen.spans(f"receive {topic}")
    assert {each.kind for each in received} == {SpanKind.CLIENT}
    linked = {link.context.span_id for each in received for link in each.links}
    assert linked == {order.get_span_context().span_id, other.context.span_id}
    assert sum(each.attributes["messaging.batch.message_count"] for each in received) == 3  # type: ignore[index, misc]
    told = {"messaging.system": "lakemq", "messaging.destination.name": topic}
    sent = {**told, "messaging.operation.name": "send"}
    ((attributes, count),) = seen.points("messaging.client.sent.messages")
    assert (attributes, count.value) == (sent, 3)
    ((attributes, seconds),) = seen.points("messaging.client.operation.duration")
    assert (attributes, seconds.count) == (sent, 2) and 0 < seconds.sum < 60
    ((attributes, count),) = seen.points("messaging.client.consumed.messages")
    group = {"messaging.operation.name": "receive", "messaging.consumer.group.name": topic}
    assert (attributes, count.value) == ({**told, **group}, 3)


def test_a_batch_of_many_traces_is_linked_to_them(node: NodeProcess, seen: Seen) -> None:
    topic = unique("traces")
    with lakemq.connect(node.native, telemetry=seen.given) as client:
        client.create_topic(topic)
        with client.producer(linger_ms=500) as producer:
            for number in range(40):
                with seen.tracer.start_as_current_span(f"order {number}"):
                    producer.enqueue(topic, lakemq.NewRecord(b"x"))
            producer.flush()
        with client.queue(topic, group=topic) as queue:
            queue.ack(queue.next_batch(40, timeout_s=30))
    spans = seen.spans(f"send {topic}")
    orders = {each.context.span_id for each in seen.exporter.get_finished_spans()[:40]}
    for span in spans:
        assert len(span.links) <= 32 and {each.context.span_id for each in span.links} <= orders
    assert max(len(span.links) for span in spans) > 1
    assert seen.spans(f"receive {topic}")[0].links


def test_a_refusal_is_told_by_its_code(node: NodeProcess, seen: Seen) -> None:
    topic = unique("refused")
    ahead_ms = time.time_ns() // 1_000_000 + 10 * 86_400_000
    with lakemq.connect(node.native, telemetry=seen.given) as client:
        client.create_topic(topic)
        with pytest.raises(lakemq.InvalidTimestamp):
            client.send(topic, b"x", timestamp_ms=ahead_ms)
    (span,) = seen.spans(f"send {topic}")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None and span.attributes["error.type"] == "INVALID_TIMESTAMP"
    ((attributes, count),) = seen.points("messaging.client.sent.messages")
    assert attributes["error.type"] == "INVALID_TIMESTAMP" and count.value == 1


def test_a_transaction_ends_in_a_span(node: NodeProcess, seen: Seen) -> None:
    topic, name = unique("traced"), unique("orders")
    with (
        lakemq.connect(node.native, telemetry=seen.given) as client,
        client.transactional_producer(name) as producer,
    ):
        client.create_topic(topic)
        with seen.tracer.start_as_current_span("order") as order, producer.transaction() as open_:
            open_.send(topic, b"1")
            open_.send_batch(topic, [lakemq.NewRecord(b"2")])
        with suppress(ZeroDivisionError), producer.transaction() as open_:
            open_.send(topic, b"3")
            raise ZeroDivisionError
        with pytest.raises(lakemq.UnknownPartition), producer.transaction() as open_:
            open_.commit_offsets("g", {lakemq.TopicPartition(topic, 9): 1})
        found = list(client.consume(topic))
    (done, refused) = seen.spans(f"commit {name}")
    assert done.kind is SpanKind.CLIENT and done.status.status_code is StatusCode.UNSET
    assert done.attributes == {
        "messaging.system": "lakemq",
        "messaging.operation.name": "commit",
        "messaging.operation.type": "settle",
        "messaging.batch.message_count": 2,
        "lakemq.transaction.id": name,
    }
    assert done.parent is not None and done.parent.span_id == order.get_span_context().span_id
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "UNKNOWN_PARTITION"
    assert len(seen.spans(f"abort {name}")) == 2  # of the block that raised, of the refused commit
    sent_in = order.get_span_context().trace_id
    traces = [trace_context_of(each).trace_id for each in found]
    assert traces == [sent_in, sent_in]
    timed = {
        told["messaging.operation.name"]: point
        for told, point in seen.points("messaging.client.operation.duration")
        if "error.type" not in told
    }
    assert (timed["commit"].count, timed["abort"].count) == (1, 2)


def trace_context_of(record: lakemq.Record) -> SpanContext:
    return get_current_span(lakemq.trace_context(record.headers)).get_span_context()


async def test_a_schedule_is_told(node: NodeProcess, topic: str, seen: Seen) -> None:
    later = timedelta(hours=1)
    async with lakemq.Client(node.native, telemetry=seen.given) as client:
        with seen.tracer.start_as_current_span("order") as order:
            await client.schedules.send(topic, b"1", delay=later)
        with pytest.raises(lakemq.InvalidRequest):
            await client.schedules.send(topic, b"1", delay=timedelta(days=10_000))
    first, second = seen.spans(f"schedule {topic}")
    assert first.kind is SpanKind.PRODUCER
    assert first.parent is not None and first.parent.span_id == order.get_span_context().span_id
    assert first.attributes == {
        "messaging.system": "lakemq",
        "messaging.operation.name": "schedule",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": 1,
    }
    assert second.attributes is not None and second.attributes["error.type"] == "INVALID_REQUEST"
    sent = {told.get("error.type"): point.value for told, point in
            seen.points("messaging.client.sent.messages")}  # fmt: skip
    assert sent == {None: 1, "INVALID_REQUEST": 1}


async def test_what_has_no_outcome_ends_with_its_client(
    node: NodeProcess, topic: str, seen: Seen
) -> None:
    client = lakemq.Client(node.native, telemetry=seen.given)
    producer = await client.producer()
    await producer.enqueue(topic, lakemq.NewRecord(b"x"))
    telemetry = client.routes.telemetry
    assert telemetry is not None
    await asyncio.sleep(0)  # the batch goes out; no turn of the loop is left for an answer
    assert telemetry.under_way == 1
    await client.close()
    assert telemetry.under_way == 0
    (span,) = seen.spans(f"send {topic}")
    assert span.status.status_code is StatusCode.ERROR
