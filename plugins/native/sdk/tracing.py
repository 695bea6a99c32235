"""Trace contexts of OpenTelemetry in record headers: the current one goes out with records, that of
a record can be taken up. Without a tracer provider in this process nothing is looked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.sdk.types import NewRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context

_VALUE_MAX_BYTES: Final = 8192
"""Of a header that is looked at: as long as W3C's baggage may be."""


def is_traced() -> bool:
    """Whether this process has set up a tracer provider."""
    # Who has set one up has imported this module; who has not shall not load it for us.
    api = sys.modules.get("opentelemetry.trace")
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def current_headers() -> Headers:
    """What OpenTelemetry's propagators (`OTEL_PROPAGATORS`) say of the current span: by default
    `traceparent`, `tracestate`, `baggage`. Empty outside of spans."""
    from opentelemetry.propagate import inject
    from opentelemetry.trace import get_current_span

    if not get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    inject(carrier)
    return tuple((name, value.encode()) for name, value in carrier.items())


def with_headers(record: NewRecord, added: Headers) -> NewRecord:
    """The record with these headers behind its own, but for those that it has already."""
    if not added:
        return record
    given = {name for name, _ in record.headers}
    # A record that is passed on stays in the trace in which it began, as a whole.
    if not given.isdisjoint(name for name, _ in added):
        return record
    return record._replace(headers=(*record.headers, *added))


def trace_context(headers: Headers) -> Context:
    """OpenTelemetry's context of a record, for `tracer.start_as_current_span(..., context=...)` or
    a `Link`; without a valid one the context is empty.

    Raises ImportError: the package opentelemetry-api is not installed.
    """
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract

    carrier = {
        name: value.decode("utf-8", "replace")
        for name, value in headers
        if value is not None and len(value) <= _VALUE_MAX_BYTES
    }
    return extract(carrier, Context())
