"""Goal: a trace that a client begins can be followed through the broker to who gets the record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Final

import aiomqtt
import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import lakemq
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from tests.support.node.admin_api import ask
from tests.support.node.node import PORTS_FREE, NodeProcess, unique
from tests.support.node.otlp_collector import Collector

CONFIG: Final = PORTS_FREE + "[telemetry]\ntrace_ratio = 0.000000001\n"
"""As good as none of those that carry no context."""
DEVICE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
SERVICE: Final = "0af7651916cd43dd8448eb211c80319c"


def traceparent(trace_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-00f067aa0ba902b7-{flags}"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, Collector]]:
    with Collector() as collector:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with NodeProcess(tmp_path_factory.mktemp("traces"), CONFIG, told) as node:
            yield node, collector


async def through_mqtt(port: int, topic: str, qos: int, trace: str) -> list[tuple[str, str]]:
    """User properties as a subscriber gets them."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("traceparent", trace), ("tracestate", "vendor=1")]
    there = aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5, identifier=topic)
    async with there as client, asyncio.timeout(20):
        await client.subscribe(topic, qos=qos)
        await client.publish(topic, b"a secret", qos=qos, properties=properties)
        message = await anext(aiter(client.messages))
        found: list[tuple[str, str]] = message.properties.UserProperty
        return found


@pytest.mark.parametrize("qos", [1, 2])
def test_from_a_device_to_a_subscriber(traced: tuple[NodeProcess, Collector], qos: int) -> None:
    node, collector = traced
    collector.spans.clear()
    name = unique("d")
    got = asyncio.run(through_mqtt(node.mqtt_port, name, qos, traceparent(DEVICE)))
    assert got == [("traceparent", traceparent(DEVICE)), ("tracestate", "vendor=1")]
    receive, append, deliver = collector.wait_for(f"receive {name}", "append mqtt", "deliver mqtt")
    for span in (receive, append, deliver):
        assert (span.trace_id, span.parent_id) == (DEVICE, "00f067aa0ba902b7")
        assert span.attributes["messaging.system"] == "lakemq" and not span.failed
        assert "secret" not in repr(span)
    assert receive.attributes["messaging.client.id"] == name
    assert append.attributes["lakemq.offset"] == deliver.attributes["lakemq.offset"]
    # It ends when the record is durable, which the append tells.
    assert receive.duration_ns >= append.duration_ns > 0
    assert deliver.attributes["lakemq.mqtt.publishes_sent"] == 1


def test_what_is_not_stored_is_received(traced: tuple[NodeProcess, Collector]) -> None:
    node, collector = traced
    name = unique("q0")
    asyncio.run(through_mqtt(node.mqtt_port, name, 0, traceparent(DEVICE)))
    (receive,) = collector.wait_for(f"receive {name}")
    assert receive.attributes["lakemq.mqtt.qos"] == 0


def test_batches_of_a_service_are_linked(traced: tuple[NodeProcess, Collector]) -> None:
    node, collector = traced
    name = unique("t")
    with lakemq.connect(node.native, timeout_s=20) as client:
        client.create_topic(name)
        records = [
            lakemq.NewRecord(b"x", headers=(("traceparent", traceparent(trace).encode()),))
            for trace in (DEVICE, SERVICE)
        ]
        client.send_batch(name, records)
        with client.subscribe(name, group="g", start="earliest") as consumer:
            record = next(iter(consumer))
    assert dict(record.headers)["traceparent"] == traceparent(DEVICE).encode()
    for span in collector.wait_for(f"append {name}", f"fetch {name}"):
        assert span.links == [DEVICE, SERVICE] and not span.parent_id
        assert span.attributes["messaging.destination.partition.id"] == "0"
        assert span.attributes["lakemq.offset"] == 0


def test_what_its_sender_does_not_record_is_not_followed(
    traced: tuple[NodeProcess, Collector],
) -> None:
    node, collector = traced
    silent, heard = unique("s"), unique("h")
    asyncio.run(through_mqtt(node.mqtt_port, silent, 0, traceparent(DEVICE, "00")))
    asyncio.run(through_mqtt(node.mqtt_port, heard, 0, traceparent(DEVICE)))
    collector.wait_for(f"receive {heard}")
    assert silent not in repr(collector.spans)


def test_a_span_of_a_service_goes_on_behind_the_broker(
    traced: tuple[NodeProcess, Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, collector = traced
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider())
    tracer, name = trace.get_tracer("shop"), unique("o")
    with lakemq.connect(node.native, timeout_s=20) as client:
        client.create_topic(name)
        client.send(name, b"outside of spans")
        with tracer.start_as_current_span("order") as span:
            client.send(name, b"1")
            client.send_batch(name, [lakemq.NewRecord(b"2"), lakemq.NewRecord(b"3")])
            with client.transactional_producer("p") as producer, producer.transaction() as taken:
                taken.send(name, b"4")
            client.schedules.send(name, b"5", delay=timedelta(milliseconds=1))
            # One that is handed on keeps the trace that it came with.
            client.send(name, b"6", headers=(("traceparent", traceparent(DEVICE).encode()),))
        with client.subscribe(name, group="g", start="earliest") as consumer:
            records = list(islice(consumer, 7))
    found = {
        record.value: trace.get_current_span(lakemq.trace_context(record.headers))
        for record in records
    }
    order = span.get_span_context()
    assert not found.pop(b"outside of spans").get_span_context().is_valid
    assert f"{found.pop(b'6').get_span_context().trace_id:032x}" == DEVICE
    assert len(found) == 5
    for each in found.values():
        assert each.get_span_context().span_id == order.span_id
    (append,) = collector.wait_for(f"append {name}")
    assert append.trace_id == f"{order.trace_id:032x}"


def test_metadata_of_a_call_counts_where_records_say_nothing(
    traced: tuple[NodeProcess, Collector],
) -> None:
    """A batch is stored as its producer made it: what travels on is what stands in its records."""
    node, collector = traced
    name, said = unique("g"), (("traceparent", traceparent(DEVICE)),)
    plain = encode(lakemq.Columns([b"a"]))
    own = encode_headers((("traceparent", traceparent(SERVICE).encode()),))
    headed = encode(lakemq.Columns([b"b"], None, [own]))

    def append(data: bytes) -> None:
        request = pb.ProduceRequest(topic=name, batch=data, acks=1)
        (answer,) = stub.Produce(iter([request]), metadata=said, timeout=20)
        assert not answer.HasField("error")

    with (
        lakemq.connect(node.native, timeout_s=20) as client,
        grpc.insecure_channel(node.native) as channel,
    ):
        client.create_topic(name)
        stub = NativeStub(channel)
        append(plain)
        (appended,) = collector.wait_for(f"append {name}")
        assert (appended.trace_id, appended.parent_id) == (DEVICE, "00f067aa0ba902b7")
        fetched = stub.Fetch(pb.FetchRequest(topic=name), metadata=said, timeout=20)
        assert b"".join(answer.batches for answer in fetched)
        (fetch,) = collector.wait_for(f"fetch {name}")
        assert (fetch.trace_id, fetch.parent_id) == (DEVICE, "00f067aa0ba902b7")
        collector.spans.clear()
        append(headed)
        (appended,) = collector.wait_for(f"append {name}")
        assert appended.trace_id == SERVICE
        first, second = client.consume(name)
    assert not first.headers
    assert second.headers == (("traceparent", traceparent(SERVICE).encode()),)


def test_the_share_of_traces_is_reloaded(tmp_path: Path) -> None:
    """Only where traces are on: what they cost is decided when a node starts."""
    with Collector() as collector:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with (
            NodeProcess(tmp_path, CONFIG, told) as node,
            lakemq.connect(node.native, timeout_s=20) as client,
        ):
            before, after = unique("rare"), unique("all")
            for name in (before, after):
                client.create_topic(name)
            client.send(before, b"x")

            def reload(ratio: float) -> dict[str, list[dict[str, object]]]:
                text = re.sub("trace_ratio = .*", f"trace_ratio = {ratio}", CONFIG)
                node.config_file.write_text(text)
                found: dict[str, list[dict[str, object]]] = ask(
                    node, "POST", "nodes/node-1/reload"
                ).json
                return found

            (applied,) = reload(1.0)["applied"]
            assert (applied["setting"], applied["after"]) == ("telemetry.trace_ratio", 1.0)
            client.send(after, b"x")
            (append,) = collector.wait_for(f"append {after}")
            assert not append.parent_id and not append.links
            assert f"append {before}" not in [each.name for each in collector.spans]
            (pending,) = reload(0.0)["restart"]
            assert pending["setting"] == "telemetry.trace_ratio"
