"""Metrics as Prometheus reads them. Imported when they are asked for: `prometheus_client` brings a
web server with it."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Prometheus:
    """Text of what a reader collects; None: of nothing."""

    def __init__(self, reader: InMemoryMetricReader | None) -> None:
        # Not Prometheus' global registry: several nodes in one process, as in tests, must not meet
        # in it.
        self._registry = CollectorRegistry()
        if reader is not None:
            # A reader that comes late would not have what instruments counted before, so this one
            # asks the reader that was there, as it would ask the provider.
            translating = PrometheusMetricReader(registry=self._registry)
            translating._set_collect_callback(lambda *_, **__: _collected(reader))

    def text(self) -> bytes:
        """All metrics, as they are now."""
        return generate_latest(self._registry)


def _collected(reader: InMemoryMetricReader) -> Any:
    return reader.get_metrics_data()
