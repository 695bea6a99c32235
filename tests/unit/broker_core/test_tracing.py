"""Goal: trace contexts are found in records whatever they come in, nothing that a client sends
costs more than a bound, and spans belong where the contexts say."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from lakemq.broker_core.api import tracing
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.tracing import NONE, Contexts, Traces, end, in_batch, in_columns, parse
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.telemetry.tracing import Tracing


def traceparent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def headers(number: int, flags: str = "01") -> bytes:
    value = traceparent(number, flags).encode()
    return encode_headers((("a", b"x" * 40), ("traceparent", value), ("tracestate", b"k=v")))


def ids(contexts: Contexts) -> list[int]:
    return [each.trace_id for each in contexts.sampled]


class Exported(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[tuple[str, SpanContext, SpanContext | None, list[int]]] = []

    def export(self, spans: object) -> SpanExportResult:
        for span in spans:  # type: ignore[attr-defined]
            links = [link.context.trace_id for link in span.links]
            self.spans.append((span.name, span.context, span.parent, links))
        return SpanExportResult.SUCCESS


def spans_of(*found: Contexts, ratio: float = 1e-9) -> list[tuple[int, list[int]]]:
    """Trace id and links of the spans that these make; 0: an id of its own."""
    exported = Exported()
    made = Tracing(exported, ratio, 1000, Resource.create())
    for contexts in found:
        span = made.traces.begin("append", "t", contexts)
        if span is not None:
            end(span)
    made._provider.shutdown()
    return [
        (parent.trace_id if parent is not None else 0, links)
        for _, _, parent, links in exported.spans
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "00", traceparent(1) + "-more", traceparent(1).upper() + "x", " " + traceparent(1),
        traceparent(1).replace("00-", "ff-", 1), f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01", traceparent(1, "0g"), "\ud800", "é" * 55,
    ],
)  # fmt: skip
def test_malformed_contexts_are_none(text: str) -> None:
    assert parse(text) == NONE


def test_a_context_is_read() -> None:
    (context,) = parse(traceparent(0xAB)).sampled
    assert context == SpanContext(0xAB, 0xAB, True, context.trace_flags)
    assert parse(traceparent(1, "00")) == Contexts((), decided=True)
    # Only the lowest bit is known; the others are of later versions.
    assert ids(parse(traceparent(7, "ff"))) == [7]


@pytest.mark.parametrize("codec", list(Compression))
def test_contexts_of_a_batch_are_those_of_its_columns(codec: Compression) -> None:
    cells = [headers(1), b"", headers(2), headers(1), headers(3, "00")]
    # A value may hold what looks like a header: it is none.
    columns = Columns([headers(9), None, b"x", b"", b"y"], [b"k"] * 5, cells)
    assert ids(in_columns(columns)) == [1, 2]
    assert in_batch(encode(columns, compression=codec)) == in_columns(columns)
    assert in_batch(encode(Columns([headers(9)]), compression=codec)) == NONE


def test_what_is_broken_has_none() -> None:
    data = encode(Columns([b"x"], None, [headers(1)]), compression=Compression.ZSTD)
    for cut in (0, 10, len(data) - 5):
        assert in_batch(data[:cut]) == NONE
    assert in_batch(data[:-5] + b"\0" * 5) == NONE


def test_what_is_looked_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Columns([b""] * 5000, None, [headers(number + 1) for number in range(5000)])
    assert ids(in_columns(many)) == list(range(1, tracing.LINKS_MAX + 1))
    assert ids(tracing.joined([in_columns(many), parse(traceparent(9999))])) == ids(
        in_columns(many)
    )
    late = [headers(1, "00")] * tracing.SCANNED_MAX + [headers(1)]
    assert in_columns(Columns([b""] * len(late), None, late)) == Contexts((), decided=True)
    long = encode_headers((("x", bytes(tracing.SCANNED_MAX_BYTES)),)) + headers(1)
    assert in_columns(Columns([b""], None, [long])) == NONE
    # What packs well is not unpacked.
    packed = encode(Columns([b""], None, [headers(1) + long]), compression=Compression.ZSTD)
    assert in_batch(packed) == NONE


def test_a_span_is_a_child_of_one_context_and_linked_to_several() -> None:
    two = Contexts((*parse(traceparent(1)).sampled, *parse(traceparent(2)).sampled), True)
    assert spans_of(parse(traceparent(1)), two) == [(1, []), (0, [1, 2])]


def test_senders_decide_and_the_ratio_where_they_say_nothing() -> None:
    unsampled = parse(traceparent(1, "00"))
    assert spans_of(unsampled, NONE, ratio=1) == [(0, [])]
    assert spans_of(unsampled, NONE) == []


def test_spans_are_bounded_whatever_clients_ask_for() -> None:
    now_ms = 0
    made = Tracing(Exported(), 1, 3, Resource.create())
    traces = Traces(made._provider.get_tracer("x"), 3, lambda: now_ms)

    def count() -> int:
        return sum(traces.begin("append", "t", NONE) is not None for _ in range(10))

    assert count() == 3
    now_ms = 1000
    assert count() == 3
    made._provider.shutdown()
