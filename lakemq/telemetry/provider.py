"""OpenTelemetry: one meter provider, read when Prometheus scrapes and pushed by OTLP if wanted, and
one tracer provider if wanted."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.configuration.settings import TelemetrySettings
from lakemq.telemetry.otlp import OtlpPush, otlp_push
from lakemq.telemetry.tracing import Tracing, tracing


class Telemetry:
    """The node's metrics and traces. Without a reader every instrument is a no-op that costs
    nothing; without traces there is no tracer at all."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, settings: TelemetrySettings, node_id: str, version: str) -> None:
        """Raises ConfigError: metrics or traces shall be pushed and can't be."""
        attributes = {
            "service.name": "lakemq", "service.version": version, "service.instance.id": node_id,
        }  # fmt: skip
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes before what we say.
        said = OTELResourceDetector().detect().attributes
        resource = Resource.create({**attributes, **said})
        # Not Prometheus' global registry: several nodes in one process, as in tests, must not meet
        # in it.
        self._registry = CollectorRegistry()
        self.push: OtlpPush | None = otlp_push(settings)
        readers: list[MetricReader] = []
        if settings.prometheus:
            readers.append(PrometheusMetricReader(registry=self._registry))
        if self.push is not None:
            readers.append(self.push.reader)
        # `close` shuts it down; a handler at exit would keep every provider of a process alive.
        self._provider = MeterProvider(
            metric_readers=readers,
            resource=resource,
            shutdown_on_exit=False,
        )
        self.tracing: Tracing | None = tracing(settings, resource)
        self.traces: Traces | None = self.tracing.traces if self.tracing is not None else None
        """None: traces are off."""

    def reconfigure(self, settings: TelemetrySettings) -> None:
        """Use what is reloadable of other settings."""
        if self.tracing is not None:
            self.tracing.sampler.use(settings.trace_ratio)

    def meter(self, name: str) -> Meter:
        """The meter of one component; the same name gives the same meter."""
        return self._provider.get_meter(name)

    def prometheus_text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Shut the provider down; instruments then do nothing."""
        self._provider.shutdown()
