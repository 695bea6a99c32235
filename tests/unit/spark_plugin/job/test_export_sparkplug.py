"""Goal: Sparkplug's aliases get their names in tables of every format, each metric once, however
the export stops and starts, and whatever is born again meanwhile."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import ExportError
from lakemq.spark_plugin.export.decoding import births
from lakemq.spark_plugin.export.decoding.births import BirthCache
from lakemq.spark_plugin.export.job import exporter as export_loop
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.exporter import Exporter
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.source import birth_reader
from lakemq.spark_plugin.union.rows import Values, own_columns, rows_of_records
from tests.support.memory_journal import MemoryJournal
from tests.support.spark.lake_tables import FORMATS, read_table, target_in

AT_MS = 1_704_067_200_000
Row = tuple[int, str | None, int | None, str, float | int | None]


@pytest.fixture
def target(request: Any, tmp_path: Any) -> Target:
    """Plain Parquet, unless a test says otherwise: what is tested does not depend on the table."""
    return target_in(tmp_path, getattr(request, "param", "parquet"))


every_format = pytest.mark.parametrize("target", FORMATS, indirect=True)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of other tests, and a look backwards takes several steps."""
    monkeypatch.setattr(birth_reader, "_cache", BirthCache())
    monkeypatch.setattr(births, "_LOOK_BACK", 2)


class Edge:
    """What edge nodes publish, as records of topic `t`."""

    def __init__(self, memory: MemoryJournal, by_client: bool = False) -> None:
        self.memory = memory
        self.by_client = by_client
        memory.create_topic("t", 1)

    def publish(self, name: str, *metrics: dict[str, Any], bad: bool = False) -> int:
        """Its offset."""
        payload = Payload(timestamp=AT_MS, seq=1)
        for metric in metrics:
            payload.metrics.add(**metric)
        value = b"\xff" if bad else payload.SerializeToString()
        topic = f"spBv1.0/plant/{name}".encode()
        keys, headers = [topic], None
        if self.by_client:
            keys = [b"client-1"]
            headers = [encode_headers((("mqtt.client", b"client-1"), ("mqtt.topic", topic)))]
        self.memory.append("t", 0, Columns([value], keys, headers))
        return self.memory.high_watermark("t", 0) - 1

    def birth(self, name: str, **aliases: int) -> int:
        return self.publish(
            name,
            *(
                {"name": each, "alias": alias, "datatype": 3, "int_value": alias}
                for each, alias in aliases.items()
            ),
        )

    def data(self, name: str, alias: int, value: int) -> int:
        return self.publish(name, {"alias": alias, "int_value": value % 2**32})


def run_here(tasks: Sequence[WriteTask]) -> list[TaskResult]:
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


def make(target: Target, run: Any = run_here, **settings: Any) -> Exporter:
    settings = {"format": "sparkplug", "commit_rows": 5, **settings}
    return make_exporter(ExportSettings("memory", "t", target, "e", **settings), run)


def export(target: Target, run: Any = run_here, **settings: Any) -> None:
    """As a process of its own, until caught up."""
    birth_reader._cache = BirthCache()
    made = make(target, run, **settings)
    try:
        made.start()
        for _ in iter(made.step, None):
            pass
    finally:
        made.close()


def rows(target: Target) -> list[Row]:
    return rows_in(read_table(target))


def rows_in(table: pa.Table) -> list[Row]:
    return sorted(
        (row["_meta"]["offset"], row["metric"], row["alias"], row["datatype"], row["long_value"])
        for row in table.to_pylist()
    )


def script(edge: Edge) -> list[Row]:
    """Births, data, births again with other aliases; the rows that come of it."""
    found: list[Row] = []

    def born(name: str, **aliases: int) -> None:
        offset = edge.birth(name, **aliases)
        found.extend((offset, each, alias, "Int32", alias) for each, alias in aliases.items())

    def sent(name: str, alias: int, value: int, metric: str) -> None:
        found.append((edge.data(name, alias, value), metric, alias, "Int32", value))

    born("NBIRTH/e1", load=1, fan=2)
    born("DBIRTH/e1/press", bar=7)
    born("NBIRTH/e2", load=2)
    for number in range(3):
        sent("NDATA/e1", 1, -number, "load")
        sent("DDATA/e1/press", 7, number, "bar")
        sent("NDATA/e2", 2, number, "load")
    born("NBIRTH/e1", fan=1, load=2)
    born("DBIRTH/e1/press", bar=8, rpm=7)
    for number in range(3):
        sent("NDATA/e1", 1, number, "fan")
        sent("DDATA/e1/press", 7, -1 - number, "rpm")
        sent("NDATA/e2", 2, number, "load")
    return sorted(found)


@every_format
@pytest.mark.parametrize("by_client", [False, True])
@pytest.mark.parametrize("cache", [None, BirthCache(0)], ids=["cached", "not"])
def test_aliases_get_the_names_of_the_births_before_them(
    memory: MemoryJournal, target: Target, by_client: bool, cache: BirthCache | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    expected = script(Edge(memory, by_client))
    made = make(target)
    if cache is not None:
        monkeypatch.setattr(birth_reader, "_cache", cache)
    made.start()
    for _ in iter(made.step, None):
        pass
    made.close()
    assert rows(target) == expected


@every_format
def test_each_commit_by_another_process(memory: MemoryJournal, target: Target) -> None:
    """What the one before knew is found again."""
    edge = Edge(memory)
    expected = script(edge)
    for end in range(1, memory.high_watermark("t", 0) + 1, 6):
        export(target, as_of=str(end))
    export(target)
    assert rows(target) == expected


def test_a_range_is_split_into_tasks(
    memory: MemoryJournal, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Births that lie in another task's part of the commit."""
    monkeypatch.setattr(export_loop, "_TASK_MIN_BYTES", 1)
    expected = script(Edge(memory))
    tasks: list[WriteTask] = []

    def run(some: Sequence[WriteTask]) -> list[TaskResult]:
        tasks.extend(some)
        return run_here(list(reversed(some)))

    settings = ExportSettings("memory", "t", target, "e", format="sparkplug", commit_rows=9)
    made = make_exporter(settings, run, parallelism=3)
    made.start()
    for _ in iter(made.step, None):
        pass
    made.close()
    assert len(tasks) > 6 and tasks[-1].births is not None
    assert rows(target) == expected


def test_a_commit_that_fails_is_repeated(memory: MemoryJournal, target: Target) -> None:
    edge = Edge(memory)
    expected = script(edge)
    left = [2, 1, 1, 3]

    def run(tasks: Sequence[WriteTask]) -> list[TaskResult]:
        done = run_here(tasks)
        if left and not left[0]:
            left.pop(0)
            raise ExportError("the job failed behind its files")
        if left:
            left[0] -= 1
        return done

    for _ in range(4):
        with pytest.raises(ExportError, match="behind its files"):
            export(target, run, commit_rows=2)
    export(target, run, commit_rows=2)
    assert rows(target) == expected


def test_no_birth_loses_nothing(memory: MemoryJournal, target: Target) -> None:
    edge = Edge(memory)
    early = edge.data("NDATA/e1", 1, 5)
    edge.birth("NBIRTH/e1", load=2)
    other = edge.data("NDATA/e1", 1, 6)
    device = edge.data("DDATA/e1/press", 2, 7)
    export(target)
    assert [row for row in rows(target) if row[1] is None] == [
        (early, None, 1, "Unknown", 5), (other, None, 1, "Unknown", 6),
        (device, None, 2, "Unknown", 7),
    ]  # fmt: skip


def test_a_birth_that_retention_has_deleted(memory: MemoryJournal, target: Target) -> None:
    edge = Edge(memory)
    edge.birth("NBIRTH/e1", load=1)
    first = edge.data("NDATA/e1", 1, 5)
    export(target)
    memory.truncate_front("t", 0, first + 1)
    last = edge.data("NDATA/e1", 1, 6)
    export(target)
    assert rows(target)[1:] == [
        (first, "load", 1, "Int32", 5), (last, None, 1, "Unknown", 6),
    ]  # fmt: skip


def test_a_birth_that_cannot_be_read_ends_the_one_before(
    memory: MemoryJournal, target: Target
) -> None:
    edge = Edge(memory)
    edge.birth("NBIRTH/e1", load=1)
    edge.publish("NBIRTH/e1", bad=True)
    first = edge.data("NDATA/e1", 1, 5)
    export(target)
    second = edge.data("NDATA/e1", 1, 6)
    export(target)
    assert rows(target)[1:] == [
        (first, None, 1, "Unknown", 5), (second, None, 1, "Unknown", 6),
    ]  # fmt: skip
    assert read_table(target.dead_letters("")).num_rows == 1


def test_a_type_that_only_the_birth_tells(memory: MemoryJournal, target: Target) -> None:
    """Metrics with their names need their birth, too: an Int32 of -5 came as 2**32 - 5."""
    edge = Edge(memory)
    edge.publish("NBIRTH/e1", {"name": "load", "datatype": 3}, {"name": "at", "datatype": 13})
    sent = edge.publish(
        "NDATA/e1", {"name": "load", "int_value": 2**32 - 5}, {"name": "at", "long_value": AT_MS}
    )
    export(target)
    (load, at) = sorted(
        (row for row in read_table(target).to_pylist() if row["_meta"]["offset"] == sent),
        key=lambda row: row["_meta"]["part"],
    )
    assert (load["metric"], load["datatype"], load["long_value"]) == ("load", "Int32", -5)
    assert at["time_value"] == datetime.datetime.fromtimestamp(AT_MS / 1000, datetime.UTC)


def test_a_journal_that_fails_makes_no_dead_letters(memory: MemoryJournal, target: Target) -> None:
    edge = Edge(memory)
    edge.birth("NBIRTH/e1", load=1)
    sent = edge.data("NDATA/e1", 1, 5)
    export(target, as_of="1")
    describe: Callable[..., Any] = memory.describe_topic
    asked = 0

    def failing(name: str) -> Any:
        nonlocal asked
        asked += 1
        # The loop's own two looks succeed; a task asks from where the log begins.
        if asked == 3:
            raise Unavailable("no leader")
        return describe(name)

    memory.describe_topic = failing  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        export(target, retry_timeout_s=0)
    assert asked == 3
    export(target)
    assert rows(target)[1:] == [(sent, "load", 1, "Int32", 5)]
    assert read_table(target.dead_letters("")).num_rows == 0


def test_rows_of_the_journal_beside_the_table(memory: MemoryJournal, target: Target) -> None:
    """What `lakemq.read` shows before the export has come so far."""
    from lakemq.spark_plugin.export.tables.open_table import open_table
    from lakemq.spark_plugin.source.birth_reader import BirthsOf
    from lakemq.spark_plugin.source.broker_reader import client_of, read_arrow
    from lakemq.spark_plugin.source.planning import OffsetRange

    expected = script(Edge(memory))
    export(target, as_of="6")
    topic = memory.describe_topic("t")
    tail = OffsetRange("t", topic.topic_id, 0, 6, memory.high_watermark("t", 0))
    values = Values("sparkplug")
    client = client_of("memory")

    def found() -> Iterator[pa.RecordBatch]:
        records = read_arrow(client, tail, columns=write_task.RAW_COLUMNS, batch_rows=3)
        whole = own_columns(open_table(target, None), values)
        yield from rows_of_records(values, whole, records, BirthsOf([tail], Access(), client))

    assert rows(target) + rows_in(pa.Table.from_batches(found())) == expected
