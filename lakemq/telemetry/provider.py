"""OpenTelemetry: one meter provider, read when Prometheus scrapes and pushed by OTLP if wanted, and
one tracer provider if wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.configuration.settings import TelemetrySettings
from lakemq.telemetry.otlp import OtlpPush, otlp_push

if TYPE_CHECKING:
    from lakemq.telemetry.prometheus import Prometheus
    from lakemq.telemetry.tracing import Tracing


class Telemetry:
    """The node's metrics and traces. Without a reader every instrument is a no-op that costs
    nothing; without traces there is no tracer at all."""

    def __init__(self, settings: TelemetrySettings, node_id: str, version: str) -> None:
        """Raises ConfigError: metrics or traces shall be pushed and can't be."""
        attributes = {
            "service.name": "lakemq", "service.version": version, "service.instance.id": node_id,
        }  # fmt: skip
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes before what we say.
        said = OTELResourceDetector().detect().attributes
        resource = Resource.create({**attributes, **said})
        self.push: OtlpPush | None = otlp_push(settings)
        # Prometheus' own reader comes with a web server: it is imported for the first scrape.
        self._scraped = InMemoryMetricReader() if settings.prometheus else None
        self._prometheus: Prometheus | None = None
        readers: list[MetricReader] = [] if self._scraped is None else [self._scraped]
        if self.push is not None:
            readers.append(self.push.reader)
        # `close` shuts it down; a handler at exit would keep every provider of a process alive.
        self._provider = MeterProvider(
            metric_readers=readers,
            resource=resource,
            shutdown_on_exit=False,
        )
        self.tracing: Tracing | None = _tracing(settings, resource)
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
        if self._prometheus is None:
            from lakemq.telemetry.prometheus import Prometheus

            self._prometheus = Prometheus(self._scraped)
        return self._prometheus.text()

    @property
    def content_type(self) -> str:
        """Of that text."""
        from lakemq.telemetry.prometheus import CONTENT_TYPE

        return CONTENT_TYPE

    def close(self) -> None:
        """Shut the provider down; instruments then do nothing."""
        self._provider.shutdown()


def _tracing(settings: TelemetrySettings, resource: Resource) -> Tracing | None:
    if not settings.trace_ratio:
        return None
    from lakemq.telemetry.tracing import tracing

    return tracing(settings, resource)
