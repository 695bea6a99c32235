"""Goal: metrics are pushed by OTLP when OpenTelemetry's variables or the settings say so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.configuration.settings import TelemetrySettings
from lakemq.telemetry.otlp import otlp_push
from lakemq.telemetry.provider import Telemetry
from tests.support.node.otlp_collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        yield server


def settings(**given: object) -> TelemetrySettings:
    return TelemetrySettings.model_validate(given)


async def pushed(telemetry: Telemetry, collector: Collector) -> dict[str, float]:
    """Sums of the first push, with the resource's attributes under their names."""
    telemetry.meter("m").create_counter("lakemq.seen", "{record}").add(7)
    assert telemetry.push is not None
    telemetry.push.start()
    request = await asyncio.to_thread(collector.metrics.get, timeout=20)
    await telemetry.push.stop()
    telemetry.close()
    (resource,) = request.resource_metrics
    found = {
        metric.name: metric.sum.data_points[0].as_int
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    return found | {
        f"{each.key}={each.value.string_value}": 1 for each in resource.resource.attributes
    }


async def test_the_standard_variables_turn_it_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "site=seven")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    found = await pushed(Telemetry(settings(), "n1", "1"), collector)
    assert found["lakemq.seen"] == 7
    assert {"service.name=ours", "service.instance.id=n1", "site=seven"} <= set(found)


async def test_the_configuration_turns_it_on(collector: Collector) -> None:
    given = settings(otlp_endpoint=f"{collector.url}/v1/metrics", otlp_interval_ms=20)
    found = await pushed(Telemetry(given, "n1", "1"), collector)
    assert found["lakemq.seen"] == 7 and "service.name=lakemq" in found


async def test_a_node_that_stops_pushes_once_more(collector: Collector) -> None:
    given = settings(otlp_endpoint=f"{collector.url}/v1/metrics", otlp_interval_ms=3_600_000)
    telemetry = Telemetry(given, "n1", "1")
    telemetry.meter("m").create_counter("lakemq.seen").add(1)
    assert telemetry.push is not None
    telemetry.push.start()
    await telemetry.push.stop()
    telemetry.close()
    assert collector.metrics.get(timeout=20).resource_metrics


def test_nothing_is_pushed_unless_asked_for() -> None:
    on = {"OTEL_METRICS_EXPORTER": "otlp"}
    assert otlp_push(settings(), {}) is None
    assert otlp_push(settings(), {"OTEL_METRICS_EXPORTER": "none"}) is None
    assert otlp_push(settings(), {**on, "OTEL_SDK_DISABLED": "true"}) is None
    push = otlp_push(settings(), {"OTEL_METRICS_EXPORTER": "prometheus, otlp"})
    assert push is not None and push.interval_s == 60


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "udp", "is 'udp'; it takes http/protobuf or grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc", "pip install opentelemetry-exporter"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "is '1m'; it takes milliseconds"),
    ],
)
def test_what_cannot_be_is_told(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        otlp_push(settings(), {"OTEL_METRICS_EXPORTER": "otlp", name: value})
