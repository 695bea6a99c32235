"""OpenTelemetry: one meter provider, read when Prometheus scrapes."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from lakemq.broker_core.configuration.settings import TelemetrySettings


class Telemetry:
    """The node's metrics. Without a reader every instrument is a no-op that costs nothing."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, settings: TelemetrySettings, node_id: str, version: str) -> None:
        resource = Resource.create(
            {"service.name": "lakemq", "service.version": version, "service.instance.id": node_id}
        )
        # Not Prometheus' global registry: several nodes in one process, as in tests, must not meet
        # in it.
        self._registry = CollectorRegistry()
        readers = []
        if settings.prometheus:
            readers.append(PrometheusMetricReader(registry=self._registry))
        # `close` shuts it down; a handler at exit would keep every provider of a process alive.
        self._provider = MeterProvider(
            metric_readers=readers, resource=resource, shutdown_on_exit=False
        )

    def meter(self, name: str) -> Meter:
        """The meter of one component; the same name gives the same meter."""
        return self._provider.get_meter(name)

    def prometheus_text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Shut the provider down; instruments then do nothing."""
        self._provider.shutdown()
