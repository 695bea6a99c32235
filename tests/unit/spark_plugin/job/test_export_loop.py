"""The export loop over every table format, with tasks run in this process."""

from __future__ import annotations

import os
import time

import pytest

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.errors import (
    DataLossError,
    ExportError,
    ExportFenced,
    ExportRunning,
    OptionError,
    TableError,
    TopicRecreated,
)
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import DataFile
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables.files import STRAY_AGE_MIN_S
from lakemq.spark_plugin.source import broker_reader
from tests.support.spark.lake_tables import (
    FORMATS,
    data_paths,
    named_files,
    places,
    read_table,
    target_in,
)

SCHEMA = "device string, n bigint"


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


class Export:
    """Runs of one export, each as if in a new process."""

    def __init__(self, target, **settings):
        self.target = target
        self.settings = {"export_id": "e", "commit_rows": 40, **settings}
        self.open = []

    def exporter(self, run=run_here, **settings):
        settings = ExportSettings("memory", "t", self.target, **{**self.settings, **settings})
        exporter = make_exporter(settings, run)
        self.open.append(exporter)
        return exporter

    def run(self, run=run_here, **settings):
        """Until caught up; the reports."""
        exporter = self.exporter(run, **settings)
        try:
            exporter.start()
            return list(iter(exporter.step, None))
        finally:
            exporter.close()

    def rows(self):
        return places(read_table(self.target))


@pytest.fixture
def export(target):
    runs = Export(target)
    yield runs
    for exporter in runs.open:
        exporter.close()


def fill(memory, partitions=2, batches=5, size=10):
    memory.create_topic("t", partitions)
    more(memory, partitions, batches, size)


def more(memory, partitions=2, batches=5, size=10):
    for partition in range(partitions):
        for _ in range(batches):
            start = memory.high_watermark("t", partition)
            values = [b'{"device":"d%d","n":%d}' % (partition, start + n) for n in range(size)]
            memory.append_values("t", partition, *values)


def all_places(memory):
    return sorted((p, each) for p, found in memory.offsets("t").items() for each in found)


def test_everything_lands_once_over_several_runs(memory, export):
    fill(memory)
    reports = export.run()
    assert [report.rows for report in reports] == [40, 40, 20]
    assert [report.lag for report in reports] == [100, 60, 20]
    assert export.rows() == all_places(memory)
    assert export.run() == []
    more(memory)
    assert sum(report.rows for report in export.run(commit_rows=None)) == 100
    assert export.rows() == all_places(memory)


def test_columns_hold_what_the_records_hold(memory, export):
    memory.create_topic("t")
    memory.append("t", 0, Columns([b"v", None], [None, b"k"], [b"\1\0a\1\0\0\0b", b""], [5, 7]))
    export.run()
    rows = sorted(read_table(export.target).to_pylist(), key=lambda row: row["offset"])
    assert [row.pop("timestamp").timestamp() for row in rows] == [0.005, 0.007]
    assert rows == [
        {
            "topic": "t", "partition": 0, "offset": 0, "key": None, "value": b"v",
            "headers": [{"key": "a", "value": b"b"}],
        },
        {
            "topic": "t", "partition": 0, "offset": 1, "key": b"k", "value": None, "headers": [],
        },
    ]  # fmt: skip


def test_gaps_of_compaction_are_kept(memory, export):
    memory.create_topic("t")
    for gap in (0, 7, 0, 100):
        memory.append("t", 0, Columns([b"a", b"b"]), gap=gap)
    export.run(commit_rows=5)
    assert export.rows() == [(0, n) for n in (0, 1, 9, 10, 11, 12, 113, 114)]


def test_a_run_stops_where_the_topic_ended_when_it_began(memory, export):
    fill(memory, partitions=1, batches=1)
    exporter = export.exporter(commit_rows=None)
    exporter.start()
    more(memory, partitions=1)
    assert exporter.step().rows == 10
    assert exporter.step() is None


def test_a_live_run_follows_the_topic(memory, export):
    fill(memory, partitions=1, batches=1)
    exporter = export.exporter(commit_rows=None, trigger_s=1.0)
    exporter.start()
    assert exporter.step().rows == 10
    assert exporter.step() is None
    more(memory, partitions=1)
    assert exporter.step().rows == 50


def test_a_broker_that_goes_away_is_asked_again_without_doubles(memory, export, monkeypatch):
    monkeypatch.setattr("lakemq.spark_plugin.source.broker_reader._RETRY_MIN_MS", 0)
    fill(memory)
    memory.failures = [Unavailable("gone"), Unavailable("gone")]
    export.run()
    assert export.rows() == all_places(memory)


def test_partitions_of_a_topic_may_grow(memory, export):
    fill(memory, partitions=1)
    export.run()
    memory._partitions["t"] = 2
    memory._batches["t", 1], memory._log_starts["t", 1] = [], 0
    more(memory, partitions=2)
    export.run()
    assert export.rows() == all_places(memory)


class Crash(Exception):
    """Stands for kill -9."""


def crash_after_tasks(tasks):
    run_here(tasks)
    raise Crash


def crash_midway(tasks):
    run_here(tasks[:1])
    raise Crash


@pytest.mark.parametrize("run", [crash_after_tasks, crash_midway])
def test_a_crash_before_the_commit_leaves_orphans_that_the_next_run_deletes(memory, export, run):
    fill(memory)
    export.run(commit_rows=None)
    committed = data_paths(export.target)
    more(memory)
    exporter = export.exporter(run)
    exporter.start()
    with pytest.raises(Crash):
        exporter.step()
    assert data_paths(export.target) > committed
    exporter.close()

    exporter = export.exporter()
    deleted = exporter.start()
    assert [name[:4] for name in deleted] == ["2-2-"]
    assert data_paths(export.target) == committed
    while exporter.step():
        pass
    assert export.rows() == all_places(memory)


def test_a_crash_after_the_commit_repeats_nothing(memory, export, monkeypatch):
    fill(memory)
    exporter = export.exporter()
    exporter.start()

    def crash(*_):
        raise Crash

    monkeypatch.setattr("lakemq.spark_plugin.export.job.landing.note_strays", crash)
    with pytest.raises(Crash):
        exporter.step()
    monkeypatch.undo()
    monkeypatch.setitem(broker_reader._clients, "memory", memory)
    exporter.close()
    assert len(export.rows()) == 40
    export.run()
    assert export.rows() == all_places(memory)


def test_tasks_that_run_twice_at_the_same_time_do_not_disturb_each_other(memory, export, tmp_path):
    """As with speculation: both runs of a task have their files open at once; one is cut off."""

    def run_twice(tasks):
        text = [task.to_json() for task in tasks]
        losers = [write_task.run(WriteTask.from_json(each)) for each in text]
        for loser in losers:
            next(loser)  # wrote its file; its answer never counts
        for task in tasks:
            folder = write_task.Folder(task.location).full_path(task.folder)
            with open(f"{folder}/cut.parquet", "wb") as file:
                file.write(b"PAR1 and no more")
        return run_here(tasks)

    fill(memory)
    export.run(run_twice)
    assert export.rows() == all_places(memory)
    strays = data_paths(export.target) - named_files(export.target)
    assert len(strays) == 9  # of each of 5 tasks one loser, and 4 that were cut off
    export.run()
    assert data_paths(export.target) >= strays  # they are young: a task may still write them
    for path in strays:
        os.utime(path, (time.time() - STRAY_AGE_MIN_S - 1,) * 2)
    export.run()
    assert data_paths(export.target) == named_files(export.target)
    assert not list(tmp_path.rglob("*.strays"))
    assert export.rows() == all_places(memory)


@pytest.mark.parametrize("orphans", ["deleted", "left"])
def test_an_older_process_is_fenced_while_its_job_runs(memory, export, orphans, monkeypatch):
    if orphans == "left":  # so that only the table itself can stop the older one
        monkeypatch.setattr("lakemq.spark_plugin.export.job.exporter.delete_orphans", lambda *_: [])
    fill(memory)
    reports = []

    def overtaken(tasks):
        results = run_here(tasks)
        reports.extend(export.run(take_over=True, commit_rows=None))
        return results

    older = export.exporter(overtaken)
    older.start()
    with pytest.raises(ExportFenced, match="taken over by another process"):
        older.step()
    assert sum(report.rows for report in reports) == 100
    assert export.rows() == all_places(memory)
    with pytest.raises(ExportFenced):
        older.step()


def test_a_newer_process_does_not_lose_to_a_commit_under_way(memory, export):
    """The older process commits between the newer one's look at the table and its new epoch."""
    fill(memory)
    older, newer = export.exporter(), export.exporter(take_over=True)
    older.start()
    seen = newer._table.progress

    def late(key):
        found = seen(key)
        newer._table.progress = seen
        older.step()
        return found

    newer._table.progress = late
    with pytest.raises(ExportFenced):
        newer.start()
    older.close()
    export.run()
    assert export.rows() == all_places(memory)


def test_a_second_process_is_refused_while_the_first_lives(memory, export):
    fill(memory)
    first = export.exporter()
    first.start()
    with pytest.raises(ExportRunning, match="run by process .* pass --take-over"):
        export.exporter().start()
    first.close()
    export.run()
    assert export.rows() == all_places(memory)


def test_exports_of_other_names_share_a_table(memory, export):
    fill(memory)
    other = []

    def meanwhile(tasks):
        results = run_here(tasks)
        if not other:
            other.extend(export.run(export_id="other", commit_rows=None))
        return results

    export.run(meanwhile)
    assert export.rows() == sorted(2 * all_places(memory))


def test_a_recreated_topic_is_an_error_unless_told_to_go_on(memory, export):
    fill(memory)
    export.run()
    memory.delete_topic("t")
    fill(memory, batches=1)
    with pytest.raises(TopicRecreated, match="--accept-recreated"):
        export.run()
    assert len(export.rows()) == 100
    export.run(accept_recreated=True)
    assert len(export.rows()) == 120
    assert export.run() == []


def test_records_that_retention_took_are_an_error_unless_told_to_go_on(memory, export):
    fill(memory, partitions=1)
    export.run(commit_rows=None)
    more(memory, partitions=1)
    memory.truncate_front("t", 0, 70)
    with pytest.raises(DataLossError, match="offsets 50 to 69 are gone"):
        export.run()
    export.run(fail_on_data_loss=False)
    assert export.rows() == [(0, n) for n in (*range(50), *range(70, 100))]


def test_a_journal_that_lost_records_is_noticed(memory, export):
    fill(memory, partitions=1)
    export.run()
    memory._batches["t", 0] = memory._batches["t", 0][:3]
    with pytest.raises(DataLossError, match="ends at offset 30, before offset 50"):
        export.run()


def test_a_topic_that_is_not_there(memory, export):
    with pytest.raises(OptionError, match="unknown topic t at memory"):
        export.run()


def test_a_table_with_other_columns_is_refused(memory, export):
    fill(memory)
    export.run()
    with pytest.raises(TableError, match="it lacks device, n, _meta; it also has topic"):
        export.run(format="json", value_schema=SCHEMA)


def test_tasks_that_do_not_answer_for_everything_are_noticed(memory, export):
    fill(memory)
    lose_one = lambda tasks: run_here(tasks)[:-1]  # noqa: E731 - shorter here
    with pytest.raises(ExportError, match="tasks covered offsets up to"):
        export.run(lose_one)

    def lose_a_file(tasks):
        results = run_here(tasks)
        return results[1:] if isinstance(results[0], DataFile) else results

    with pytest.raises(ExportError, match="records were read"):
        export.run(lose_a_file)
    assert export.rows() == []
