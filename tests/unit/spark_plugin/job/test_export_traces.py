"""Goal: from the trace of a record to the commit that brought it into a table."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import TracedRecords
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tracing import CONTEXTS_MAX
from tests.support.spark.lake_tables import FORMATS, target_in


def headers(number: int, flags: str = "01") -> bytes:
    context = f"00-{number:032x}-{number:016x}-{flags}".encode()
    return encode_headers((("a", b"b"), ("traceparent", context), ("b", None)))


def fill(memory) -> None:
    memory.create_topic("t", 2)
    cells = [headers(1), b"", headers(2, "00"), headers(1), encode_headers((("traceparent", b""),))]
    memory.append("t", 0, Columns([b"v"] * 5, None, cells, [5] * 5))
    memory.append("t", 1, Columns([b"v"], None, [headers(3)], [5]))


def export(target: str, seen: list[TracedRecords]) -> int:
    """Commits."""

    def run(tasks):
        results = [
            result
            for task in tasks
            for result in write_task.run(WriteTask.from_json(task.to_json()))
        ]
        seen.extend(each for each in results if isinstance(each, TracedRecords))
        return results

    exporter = make_exporter(ExportSettings("memory", "t", target, export_id="e"), run)
    try:
        exporter.start()
        return len(list(iter(exporter.step, None)))
    finally:
        exporter.close()


@pytest.mark.parametrize("form", FORMATS)
def test_a_commit_is_linked_to_its_records(memory, form, tmp_path, monkeypatch) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    fill(memory)
    assert export(target_in(tmp_path, form), []) == 1
    (span,) = spans.get_finished_spans()
    assert span.name == "commit t"
    assert sorted(link.context.trace_id for link in span.links) == [1, 3]
    assert span.attributes["messaging.batch.message_count"] == 6
    version = {"delta": "version ", "iceberg": "snapshot ", "parquet": "manifest "}[form]
    assert span.attributes["lakemq.table.version"].startswith(version)


def test_without_a_provider_nothing_is_looked_for(memory, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    fill(memory)
    seen: list[TracedRecords] = []
    assert export(target_in(tmp_path, "parquet"), seen) == 1 and not seen


def test_contexts_are_bounded(memory, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", TracerProvider())
    memory.create_topic("t", 1)
    cells = [headers(number + 1) for number in range(1000)]
    memory.append("t", 0, Columns([b"v"] * 1000, None, cells, [5] * 1000))
    seen: list[TracedRecords] = []
    export(target_in(tmp_path, "parquet"), seen)
    assert {len(each.contexts) for each in seen} == {CONTEXTS_MAX}
