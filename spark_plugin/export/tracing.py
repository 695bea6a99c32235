"""From the traces of records to the commit that brings them into a table.

Tasks note the contexts of records that are traced (W3C `traceparent`), the driver makes one span a
commit, linked to them. Only where the driver's program has a tracer provider of OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lakemq.plugins.native.sdk import trace_context
from lakemq.plugins.native.sdk.tracing import is_traced
from lakemq.spark_plugin.export.job.task_results import TaskResult, TracedRecords
from lakemq.spark_plugin.export.tables.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa

CONTEXTS_MAX: Final = 32
"""Of a task, and of a span."""
_HEADER: Final = "traceparent"
_LENGTH: Final = 55
"""Bytes of a context of version 00."""


class TracedContexts:
    """Notes contexts of the records that pass by."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches (column `headers`), unchanged."""
        for batch in batches:
            if len(self.found) < CONTEXTS_MAX:
                self._look(batch)
            yield batch

    def _look(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        headers = batch.column("headers").flatten()
        values = pc.struct_field(headers, "value").filter(
            pc.equal(pc.struct_field(headers, "key"), _HEADER)
        )
        values = values.filter(pc.equal(pc.binary_length(values), _LENGTH))
        for value in pc.unique(values)[: 4 * CONTEXTS_MAX].to_pylist():
            text = value.decode("ascii", "replace")
            # The lowest bit of the flags: its sender records the trace.
            if text[-1] in "13579bdf" and len(self.found) < CONTEXTS_MAX:
                self.found[text] = None


@contextmanager
def commit_span(
    topic: str, export_id: str, table: LakeTable, results: Sequence[TaskResult], rows: int
) -> Iterator[None]:
    """A span of one commit. `lakemq.table.version`: the table's state right behind it."""
    if not is_traced():
        yield
        return
    from opentelemetry.trace import Link, get_current_span, get_tracer

    noted = dict.fromkeys(
        text for each in results if isinstance(each, TracedRecords) for text in each.contexts
    )
    contexts = [
        get_current_span(trace_context(((_HEADER, text.encode()),))).get_span_context()
        for text in list(noted)[:CONTEXTS_MAX]
    ]
    with get_tracer("lakemq.export").start_as_current_span(
        f"commit {topic}",
        links=[Link(context) for context in contexts if context.is_valid],
        attributes={
            "messaging.system": "lakemq",
            "messaging.operation.name": "commit",
            "messaging.destination.name": topic,
            "messaging.batch.message_count": rows,
            "lakemq.export": export_id,
            "lakemq.table": table.location,
        },
    ) as span:
        yield
        if span.is_recording():
            table.reload()
            span.set_attribute("lakemq.table.version", table.version())
