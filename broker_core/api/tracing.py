"""Trace contexts of records (W3C Trace Context, `traceparent` of version 00), and the spans that a
broker makes of them, named by OpenTelemetry's conventions for messaging.

A context travels as a record header, which every protocol passes on unchanged. The broker reads it
only where traces are on. Spans are made per batch: a child of the one context that it holds, or
linked to several. Clients choose what they send, so all that is read of it is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.limits.rates import Bucket
from lakemq.broker_core.api.records.batch import (
    HAS_HEADERS,
    HEADER_BYTES,
    column_places,
    raw_body,
    read_header,
)
from lakemq.broker_core.api.records.headers import NULL_LENGTH
from lakemq.broker_core.api.types import Columns, CommittedBatch, Compression

Attributes = Mapping[str, str | int]
"""Of a span, by name."""
TRACEPARENT: Final = "traceparent"
"""Record header, MQTT user property and gRPC metadata key of the context."""
LINKS_MAX: Final = 32
"""Contexts of one span."""
SCANNED_MAX_BYTES: Final = 1024 * 1024
"""Encoded headers of one batch that are looked at; a compressed body above it is not opened."""
SCANNED_MAX: Final = 4096
"""Records of one batch that are looked at."""
TEXT_MAX: Final = 128
"""Characters of an attribute that a client chose."""
_VALUE: Final = rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
_TEXT: Final = re.compile(_VALUE)
_ENCODED: Final = re.compile(rb"\x0b\x00traceparent\x37\x00\x00\x00" + _VALUE)
"""An encoded record header (`records.headers`)."""


class Contexts(NamedTuple):
    """What was found in the headers of some records."""

    sampled: Sequence[SpanContext] = ()
    """Those whose sender records the trace, each once, at most `LINKS_MAX`."""
    decided: bool = False
    """Whether there is any: then the senders have decided, and no ratio does."""


NONE: Final = Contexts()


def parse(value: str | bytes) -> Contexts:
    """The context of one `traceparent`; none, where it is malformed."""
    text = value.encode("utf-8", "replace") if isinstance(value, str) else value
    match = _TEXT.fullmatch(text)
    return NONE if match is None else _contexts((match,))


def in_headers(cells: Sequence[bytes]) -> Contexts:
    """Contexts in the encoded headers of records."""
    return _in_blob(b"".join(cells[:SCANNED_MAX]))


def in_columns(columns: Columns) -> Contexts:
    """Contexts of records that are to be appended."""
    return NONE if columns.headers is None else in_headers(columns.headers)


def in_batch(data: bytes | memoryview) -> Contexts:
    """Contexts of an encoded record batch at the start of `data`. None are found in one that is
    corrupt, or compressed and larger than `SCANNED_MAX_BYTES`."""
    import numpy as np  # here: a node is ready before it is needed

    try:
        header = read_header(data)
        packed = header.compression is not Compression.NONE
        if not header.attributes & HAS_HEADERS or (
            packed and header.raw_body_bytes > SCANNED_MAX_BYTES
        ):
            return NONE
        body = raw_body(header, memoryview(data)[HEADER_BYTES : header.total_bytes])
        # Headers are the last of the columns: values, which may be long, are not looked through.
        places = column_places(header)
        lengths = np.frombuffer(body[places.header_lengths : places.blobs], np.uint32)
    except (CorruptBatch, ValueError):
        return NONE
    size = int(lengths[lengths != NULL_LENGTH].sum(dtype=np.uint64))
    return _in_blob(body[max(places.blobs, len(body) - size) :])


def in_committed(batch: CommittedBatch) -> Contexts:
    """Contexts of a batch that became readable."""
    return in_batch(batch.data) if batch.columns is None else in_columns(batch.columns)


def joined(found: Iterable[Contexts]) -> Contexts:
    """Of several batches, at most `LINKS_MAX`."""
    sampled: dict[tuple[int, int], SpanContext] = {}
    decided = False
    for each in found:
        decided |= each.decided
        sampled |= {(one.trace_id, one.span_id): one for one in each.sampled}
    return Contexts(tuple(islice(sampled.values(), LINKS_MAX)), decided)


def _in_blob(blob: bytes | memoryview) -> Contexts:
    found = _ENCODED.finditer(blob, 0, SCANNED_MAX_BYTES)
    return _contexts(islice(found, SCANNED_MAX))


def _contexts(matches: Iterable[re.Match[bytes]]) -> Contexts:
    sampled: dict[tuple[bytes, bytes], SpanContext] = {}
    decided = False
    for match in matches:
        trace_id, span_id, flags = match.groups()
        context = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(1))
        decided |= context.is_valid
        if context.is_valid and int(flags, 16) & 1:
            sampled[trace_id, span_id] = context
            if len(sampled) == LINKS_MAX:
                break
    return Contexts(tuple(sampled.values()), decided)


class Traces:
    """Makes spans. There is none of these where traces are off."""

    def __init__(self, tracer: Tracer, spans_per_s: int, now_ms: Callable[[], int]) -> None:
        """`spans_per_s`: the most; what would be more is left out, since any client may ask for
        its messages to be traced."""
        self._tracer = tracer
        self._now_ms = now_ms
        self._bucket = Bucket(spans_per_s, now_ms())

    def begin(
        self,
        operation: str,
        topic: str,
        contexts: Contexts,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        start_ns: int | None = None,
        attributes: Attributes | None = None,
    ) -> Span | None:
        """A span of what is done with records of a topic; None: it is not recorded. `start_ns`:
        when it began, since the epoch (ns); None: now."""
        sampled = contexts.sampled
        if contexts.decided and not sampled:
            return None
        parent = Context() if sampled else get_current()
        if len(sampled) == 1:
            parent = set_span_in_context(NonRecordingSpan(sampled[0]), parent)
        span = self._tracer.start_span(
            f"{operation} {topic[:TEXT_MAX]}",
            parent,
            kind,
            {
                "messaging.system": "lakemq",
                "messaging.operation.name": operation,
                "messaging.destination.name": topic[:TEXT_MAX],
                **(attributes or {}),
            },
            [Link(context) for context in sampled] if len(sampled) > 1 else None,
            start_ns,
        )
        # After the ratio has decided, so that what is not recorded uses nothing up.
        return span if span.is_recording() and self._bucket.take(self._now_ms()) else None


def end(span: Span, error: BaseException | None = None) -> None:
    """End a span, as failed if there is an error: its class and not its text, which may name
    users."""
    if error is not None:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
