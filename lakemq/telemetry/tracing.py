"""Makes spans and pushes them by OTLP, as `OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_*` and
`OTEL_BSP_*` say (OpenTelemetry, environment variable specification)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.span import TraceState
from opentelemetry.util.types import Attributes

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.tracing import Traces
from lakemq.broker_core.configuration.settings import TelemetrySettings
from lakemq.telemetry.otlp import is_disabled, otlp_exporter

_LAST_S: Final = 5.0
"""How long the last push of a node that stops may take."""


class LinkedSampler(Sampler):
    """As the parent decided. Without one: what is linked to recorded spans is recorded, of the
    rest a share."""

    def __init__(self, ratio: float) -> None:
        self.use(ratio)

    def use(self, ratio: float) -> None:
        """Another share, from now on."""
        self._alone = ParentBased(TraceIdRatioBased(ratio))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """As `Sampler.should_sample`."""
        linked = any(link.context.trace_flags.sampled for link in links or ())
        chosen = ALWAYS_ON if linked else self._alone
        return chosen.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """For people."""
        return "LinkedSampler"


class Tracing:
    """One tracer provider. A thread of OpenTelemetry's SDK sends; what it has no room for is
    dropped (`OTEL_BSP_MAX_QUEUE_SIZE`)."""

    def __init__(
        self, exporter: SpanExporter, ratio: float, spans_per_s: int, resource: Resource
    ) -> None:
        self.sampler = LinkedSampler(ratio)
        self._provider = TracerProvider(self.sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self.traces = Traces(
            self._provider.get_tracer("lakemq"),
            spans_per_s,
            lambda: time.monotonic_ns() // 1_000_000,
        )

    async def stop(self) -> None:
        """Send what there is; give up after a while where nothing listens."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done.set)

        # A thread that nothing waits for: a collector that does not answer must not keep the
        # process.
        threading.Thread(target=shut_down, daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _LAST_S)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def tracing(
    settings: TelemetrySettings, resource: Resource, environment: Mapping[str, str] = os.environ
) -> Tracing | None:
    """None unless settings ask for it. Raises ConfigError."""
    asked = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if not settings.trace_ratio or asked == "none" or is_disabled(environment):
        return None
    if asked != "otlp":
        raise ConfigError(f"OTEL_TRACES_EXPORTER is {asked!r}; it takes otlp or none")
    return Tracing(
        otlp_exporter("traces", "", environment),
        settings.trace_ratio,
        settings.trace_spans_max_per_s,
        resource,
    )
