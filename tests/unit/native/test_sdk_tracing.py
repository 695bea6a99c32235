"""Goal: a producer adds the current trace context where a program is traced, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from lakemq.plugins.native.sdk.telemetry import client_telemetry
from lakemq.plugins.native.sdk.tracing import (
    current_headers,
    is_traced,
    trace_context,
    with_headers,
)
from lakemq.plugins.native.sdk.types import NewRecord

CONTEXT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_without_a_provider_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    assert not is_traced()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider())
    assert is_traced()


def test_the_client_loads_no_propagator() -> None:
    code = (
        "import sys, lakemq; lakemq.Client; from lakemq.plugins.native.sdk import tracing;"
        "from lakemq.plugins.native.sdk.telemetry import client_telemetry;"
        "assert not tracing.is_traced(); assert client_telemetry(None) is None;"
        "assert not [each for each in sys.modules if each.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_providers_of_the_program_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", None)
    assert client_telemetry(None) is None
    meters = MeterProvider()
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", meters)
    found = client_telemetry(None)
    assert found is not None and not found.traced
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider())
    found = client_telemetry(None)
    assert found is not None and found.traced
    meters.shutdown()


def test_the_current_span_goes_with_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider())
    assert current_headers() == ()
    with trace.get_tracer("t").start_as_current_span("order") as span:
        added = current_headers()
    record = with_headers(NewRecord(b"v", headers=(("a", b"1"),)), added)
    assert record.headers[0] == ("a", b"1")
    found = trace.get_current_span(trace_context(record.headers)).get_span_context()
    assert found.span_id == span.get_span_context().span_id and found.is_remote


def test_a_context_that_is_there_stays() -> None:
    record = NewRecord(b"v", headers=(("traceparent", CONTEXT),))
    assert with_headers(record, (("traceparent", b"x"), ("tracestate", b"y"))) is record
    assert with_headers(record, ()) is record


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"00-zz", CONTEXT + b"x" * 9000])
def test_headers_that_are_no_context_are_none(value: bytes | None) -> None:
    found = trace.get_current_span(trace_context((("traceparent", value), ("tracestate", b"=;"))))
    assert not found.get_span_context().is_valid
