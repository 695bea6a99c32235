"""Spans and metrics of a client, by OpenTelemetry's conventions for messaging
(https://opentelemetry.io/docs/specs/semconv/messaging/): one span a batch or a call, never one a
record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.sdk.tracing import is_traced, trace_context

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

LINKS_MAX: Final = 32
"""Traces that a span names: the parent, or links."""
LOOKED_AT: Final = 1024
"""Records of a batch whose contexts are looked for."""
_NAME: Final = "lakemq"
_TRACEPARENT: Final = "traceparent"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where a client's spans and metrics go, in place of the program's own providers."""

    tracer_provider: TracerProvider | None = None
    """None: the one that the program has set up; without one there are no spans."""
    meter_provider: MeterProvider | None = None
    """None: the one that the program has set up; without one there are no metrics."""


class ClientTelemetry:
    """What a client measures. Made by `client_telemetry`, and only where it has somewhere to go."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self.traced = tracers is not None
        """Whether records get the current trace context."""
        self._tracer = None if tracers is None else tracers.get_tracer(_NAME)
        self._sending: dict[int, tuple[Span | None, float]] = {}
        self._seconds = self._sent = self._consumed = None
        if meters is not None:
            meter = meters.get_meter(_NAME)
            self._seconds = meter.create_histogram(
                "messaging.client.operation.duration", "s", "Time until a batch is acknowledged"
            )
            self._sent = meter.create_counter(
                "messaging.client.sent.messages", "{message}", "Records that were sent"
            )
            self._consumed = meter.create_counter(
                "messaging.client.consumed.messages", "{message}", "Records that have come"
            )

    @property
    def under_way(self) -> int:
        """Batches without an outcome."""
        return len(self._sending)

    def sending(
        self, batch: object, topic: str, partition: int, count: int, headers: Iterable[Headers]
    ) -> None:
        """`batch` goes out for the first time; `sent` tells how it ended. Sending it again is part
        of that."""
        span = None
        if self._tracer is not None:
            span = self._span("send", "PRODUCER", topic, partition, count, headers, {})
        self._sending[id(batch)] = span, time.perf_counter()

    def sent(self, batch: object, topic: str, count: int, error: LakeMQError | None) -> None:
        """`batch` has its outcome."""
        started = self._sending.pop(id(batch), None)
        if started is None:
            return
        span, at_s = started
        told = _attributes("send", topic)
        if error is not None:
            told["error.type"] = _error_type(error)
        if self._seconds is not None and self._sent is not None:
            self._seconds.record(time.perf_counter() - at_s, told)
            self._sent.add(count, told)
        if span is not None:
            _end(span, error)

    @contextmanager
    def scheduling(self, topic: str, partition: int, count: int) -> Iterator[None]:
        """Around the call that schedules records."""
        told = _attributes("schedule", topic)
        counts: dict[str, str | int] = {
            "messaging.operation.type": "send",
            "messaging.destination.partition.id": str(partition),
            "messaging.batch.message_count": count,
        }
        try:
            with self._call(f"schedule {topic}", "PRODUCER", told, counts):
                yield
        finally:
            if self._sent is not None:
                self._sent.add(count, told)

    @contextmanager
    def ending(self, operation: str, transactional_id: str) -> Iterator[dict[str, int]]:
        """Around the `commit` or `abort` of a transaction. Takes further attributes."""
        told = {"messaging.system": _NAME, "messaging.operation.name": operation}
        added: dict[str, int] = {}
        of_span: dict[str, str | int] = {
            "messaging.operation.type": "settle",
            "lakemq.transaction.id": transactional_id,
        }
        with self._call(f"{operation} {transactional_id}", "CLIENT", told, of_span, added):
            yield added

    @contextmanager
    def _call(
        self, name: str, kind: str, told: dict[str, str], of_span: Mapping[str, str | int],
        added: Mapping[str, int] | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """A span, child of the current one, and its time. `told`: also of metrics, gets the error;
        `added`: of the span, as it is at the end."""
        span, at_s = None, time.perf_counter()
        if self._tracer is not None:
            from opentelemetry.trace import SpanKind

            span = self._tracer.start_span(
                name, kind=SpanKind[kind], attributes={**told, **of_span}
            )
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
            told["error.type"] = _error_type(caught)
            raise
        finally:
            if self._seconds is not None:
                self._seconds.record(time.perf_counter() - at_s, told)
            if span is not None:
                span.set_attributes(added or {})
                _end(span, error)

    def received(
        self, topic: str, partition: int, group: str, headers: list[Headers], started_ns: int
    ) -> None:
        """Records, by their headers, are ready for the application; they were looked at since
        `started_ns` (`time.time_ns`)."""
        told = {"messaging.consumer.group.name": group} if group else {}
        if self._consumed is not None:
            self._consumed.add(len(headers), _attributes("receive", topic) | told)
        if self._tracer is not None:
            span = self._span(
                "receive", "CLIENT", topic, partition, len(headers), headers, told, started_ns
            )
            span.end()

    def _span(
        self, operation: str, kind: str, topic: str, partition: int, count: int,
        headers: Iterable[Headers], told: Mapping[str, str], started_ns: int | None = None,
    ) -> Span:  # fmt: skip
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, get_current_span

        assert self._tracer is not None
        contexts = _contexts(headers)
        # Sent records are their sender's doing; received ones come of many, and are linked.
        is_child = operation == "send" and len(contexts) == 1
        spans = [get_current_span(each).get_span_context() for each in contexts]
        return self._tracer.start_span(
            f"{operation} {topic}",
            contexts[0] if is_child else Context(),
            SpanKind[kind],
            {
                **_attributes(operation, topic),
                **told,
                "messaging.operation.type": operation,
                "messaging.destination.partition.id": str(partition),
                "messaging.batch.message_count": count,
            },
            links=[] if is_child else [Link(each) for each in spans if each.is_valid],
            start_time=started_ns,
        )


def _attributes(operation: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": _NAME,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }


def _contexts(headers: Iterable[Headers]) -> list[Context]:
    """Of the first records, each context once."""
    found: dict[bytes, Headers] = {}
    for each in islice(headers, LOOKED_AT):
        if each and len(found) < LINKS_MAX:
            parent = dict(each).get(_TRACEPARENT)
            if parent is not None:
                found.setdefault(parent, each)
    return [trace_context(each) for each in found.values()]


def _error_type(error: BaseException) -> str:
    return (error.code if isinstance(error, LakeMQError) else "") or type(error).__name__


def _end(span: Span, error: BaseException | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if error is not None:
        span.set_attribute("error.type", _error_type(error))
        span.set_status(Status(StatusCode.ERROR, str(error)[:200]))
    span.end()


def client_telemetry(given: Telemetry | None) -> ClientTelemetry | None:
    """None: neither this client nor the program has a provider."""
    given = given or Telemetry()
    tracers, meters = given.tracer_provider, given.meter_provider
    if tracers is None and is_traced():
        from opentelemetry.trace import get_tracer_provider

        tracers = get_tracer_provider()
    if meters is None:
        meters = _program_meters()
    return None if tracers is None and meters is None else ClientTelemetry(tracers, meters)


def _program_meters() -> MeterProvider | None:
    # Who has set one up has imported this module; who has not shall not load it for us.
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    found: MeterProvider = api.get_meter_provider()
    # Those of the API itself, which stand for none, are in packages below it.
    return None if type(found).__module__.startswith("opentelemetry.metrics") else found
