"""Trace contexts of calls, and spans of what is fetched. Only where traces are on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

import grpc
from opentelemetry.context import attach
from opentelemetry.trace import NonRecordingSpan, SpanKind, set_span_in_context

from lakemq.broker_core.api.records.batch import HEADER_BYTES, read_header
from lakemq.broker_core.api.tracing import (
    NONE,
    TRACEPARENT,
    Contexts,
    Traces,
    end,
    in_batch,
    joined,
    parse,
)
from lakemq.plugins.native.services.fetch_many import FetchAnswer

_Context = grpc.aio.ServicerContext[object, object]
_BATCHES_MAX: Final = 64
"""Batches of one answer that are looked at."""


class TracedCalls:
    """Of the native protocol."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def take_context(self, call: _Context) -> None:
        """What this task does for the call belongs to the caller's trace, unless its records say
        otherwise."""
        for context in _said(call).sampled:
            attach(set_span_in_context(NonRecordingSpan(context)))

    async def fetched(
        self, answers: AsyncGenerator[FetchAnswer, None], call: _Context
    ) -> AsyncGenerator[FetchAnswer, None]:
        """The answers, each with records in a span: from when they are read until the client has
        taken them, so with waits for its quota and for its network."""
        said = _said(call)
        async with aclosing(answers):
            async for answer in answers:
                data, asked = answer.batches, answer.asked
                if not data:
                    yield answer
                    continue
                span = self._traces.begin(
                    "fetch",
                    asked.topic,
                    joined([said, *map(in_batch, _batches(data))]),
                    kind=SpanKind.SERVER,
                    attributes={
                        "network.protocol.name": "grpc",
                        "messaging.destination.partition.id": str(asked.partition),
                        "lakemq.offset": read_header(data).base_offset,
                        "lakemq.next_offset": answer.next_offset,
                        "lakemq.fetched_bytes": len(data),
                    },
                )
                try:
                    yield answer
                finally:
                    if span is not None:
                        end(span)


def _said(call: _Context) -> Contexts:
    """What the metadata of a call says."""
    for key, value in call.invocation_metadata() or ():
        if key == TRACEPARENT:
            return parse(value)
    return NONE


def _batches(data: bytes) -> Iterator[memoryview]:
    """The first batches of an answer."""
    view, position = memoryview(data), 0
    for _ in range(_BATCHES_MAX):
        if position + HEADER_BYTES > len(data):
            return
        size = read_header(data, position).total_bytes
        yield view[position : position + size]
        position += size
