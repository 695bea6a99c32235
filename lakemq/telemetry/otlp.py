"""Pushes metrics by OTLP, as `OTEL_METRICS_EXPORTER`, `OTEL_EXPORTER_OTLP_*` and
`OTEL_METRIC_EXPORT_INTERVAL` say (OpenTelemetry, environment variable specification).

OpenTelemetry's own periodic reader collects in a thread, where a callback would walk sets that the
event loop changes: here the loop collects, and a thread sends.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricsData

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.configuration.settings import TelemetrySettings

_log: Final = logging.getLogger(__name__)
_EXPORTERS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""Protocol -> name of its entry point."""
_LAST_S: Final = 5.0
"""How long the last push of a node that stops may take."""


class OtlpPush:
    """Collects every `interval_s` and sends what was collected, one push at a time."""

    def __init__(self, exporter: MetricExporter, interval_s: float) -> None:
        self.interval_s = interval_s
        # The exporter knows what OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE asks for, and
        # tells readers so by these.
        self.reader = InMemoryMetricReader(
            exporter._preferred_temporality, exporter._preferred_aggregation
        )
        self._exporter = exporter
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call on the loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Send once more what there is, while instruments can still be read."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        with suppress(TimeoutError):
            await asyncio.wait_for(self._push(), _LAST_S)
        await asyncio.to_thread(self._exporter.shutdown)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            await self._push()

    async def _push(self) -> None:
        data = self.reader.get_metrics_data()
        if isinstance(data, MetricsData):
            try:
                # The exporter logs what it could not send; the sums go out with the next push.
                await asyncio.to_thread(self._exporter.export, data)
            except Exception:  # code of a library: metrics must not end the node
                _log.exception("metrics could not be pushed")


def otlp_push(
    settings: TelemetrySettings, environment: Mapping[str, str] = os.environ
) -> OtlpPush | None:
    """None unless settings or variables ask for it. Raises ConfigError."""
    asked = environment.get("OTEL_METRICS_EXPORTER", "").split(",")
    if is_disabled(environment) or not (settings.otlp_endpoint or "otlp" in map(str.strip, asked)):
        return None
    interval_ms = settings.otlp_interval_ms or _interval_ms(environment)
    exporter: MetricExporter = otlp_exporter("metrics", settings.otlp_endpoint, environment)
    return OtlpPush(exporter, interval_ms / 1000)


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether `OTEL_SDK_DISABLED` says that nothing shall be sent."""
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def otlp_exporter(signal: str, endpoint: str, environment: Mapping[str, str]) -> Any:
    """What sends `metrics` or `traces` with the protocol that the variables name; `endpoint` empty:
    where they say. ConfigError: no such protocol, or it is not installed."""
    protocol = (
        environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    name = _EXPORTERS.get(protocol)
    if name is None:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; it takes {' or '.join(_EXPORTERS)}"
        )
    found = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
    if not found:
        package = f"opentelemetry-exporter-{name.replace('_', '-')}"
        raise ConfigError(
            f"{signal} shall be pushed by OTLP ({protocol}), and {package} is not installed: "
            f"pip install {package}"
        )
    (point, *_) = found
    return point.load()(**({"endpoint": endpoint} if endpoint else {}))


def _interval_ms(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or "60000"
    if not text.isdecimal() or not int(text):
        raise ConfigError(
            f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}; it takes milliseconds, such as 60000"
        )
    return int(text)
