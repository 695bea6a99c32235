"""Goal: a trace goes from a device and a service through broker and Spark into the table: its rows
hold the context, its commit is linked to the traces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiomqtt
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import lakemq
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.otlp_collector import Collector
from tests.support.spark.lake_tables import FORMATS, read_table, target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]
CONFIG: Final = f"{PORTS_FREE}[telemetry]\ntrace_ratio = 0.000000001\n" + "".join(
    f'[[plugins.mqtt.bindings]]\nfilter = "{kind}/#"\ntopic = "{kind}"\n' for kind in FORMATS
)
"""A topic for each format; traces where the sender records one."""
DEVICE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
UNSAMPLED: Final = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, Collector]]:
    with Collector() as collector:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with NodeProcess(tmp_path_factory.mktemp("traced"), CONFIG, told) as node:
            yield node, collector


async def publish(port: int, topic: str, *contexts: str) -> None:
    async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        for context in contexts:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("traceparent", context)]
            await client.publish(topic, b"device", qos=1, properties=properties)


@pytest.fixture
def provider(
    traced: tuple[NodeProcess, Collector], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TracerProvider]:
    """Of this process, which sends and exports, into the collector of the node."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"{traced[1].url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield provider
    provider.shutdown()


@pytest.mark.parametrize("kind", FORMATS)
def test_from_publishers_through_spark_to_rows_and_commit(
    spark, traced, provider: TracerProvider, kind: str, tmp_path: Path
) -> None:
    node, collector = traced
    contexts = [f"00-{DEVICE}-00f067aa0ba902b7-01", f"00-{UNSAMPLED}-00f067aa0ba902b7-00"]
    asyncio.run(publish(node.mqtt_port, f"{kind}/1", *contexts))
    with lakemq.connect(node.native, timeout_s=20) as client:
        with provider.get_tracer("shop").start_as_current_span("order") as span:
            client.send(kind, b"service")
        client.send(kind, b"outside of spans")
    settings = ExportSettings(node.native, kind, target_in(tmp_path, kind), "traces")
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        assert sum(report.rows for report in iter(exporter.step, None)) == 4
    finally:
        exporter.close()

    order = span.get_span_context()
    sent = f"00-{order.trace_id:032x}-{order.span_id:016x}-{order.trace_flags:02x}"
    rows = read_table(settings.target).select(["value", "headers"]).to_pylist()
    assert sorted((row["value"], context_of(row)) for row in rows) == [
        *((b"device", context) for context in sorted(contexts)),
        (b"outside of spans", ""),
        (b"service", sent),
    ]
    # Spans of the broker and of the export, of the same traces and in one collector.
    commit, append = collector.wait_for(f"commit {kind}", f"append {kind}")
    assert sorted(commit.links) == sorted([DEVICE, f"{order.trace_id:032x}"])
    assert append.trace_id == DEVICE
    assert commit.attributes["messaging.batch.message_count"] == 4
    assert commit.attributes["lakemq.table.version"] and not commit.failed


def context_of(row: dict[str, Any]) -> str:
    headers = {each["key"]: each["value"] for each in row["headers"] or ()}
    found: bytes = headers.get("traceparent", b"")
    return found.decode()
