"""Compaction: fewer files, the same rows, and nothing left behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance import compaction
from lakemq.spark_plugin.export.maintenance.compaction import choose
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.table import LiveFile
from tests.support.spark.lake_tables import FORMATS, data_paths, places, read_table, target_in

SIZES = st.lists(st.tuples(st.integers(1, 100), st.sampled_from("ab")), max_size=30)


@given(SIZES)
def test_small_files_of_a_partition_are_grouped(sizes):
    files = [LiveFile(str(n), 1, size, (value,)) for n, (size, value) in enumerate(sizes)]
    groups = choose(files, 50)
    chosen = [file for group in groups for file in group]
    assert len(set(chosen)) == len(chosen)
    assert all(file.size_bytes < 25 for file in chosen)
    for group in groups:
        assert len(group) > 1
        assert len({file.partition_values for file in group}) == 1
        assert sum(file.size_bytes for file in group[:-1]) < 50
        assert group == sorted(group, key=files.index)
    for value in "ab":
        alone = [f for f in files if f.partition_values == (value,) and f.size_bytes < 25]
        assert len([f for f in alone if f not in chosen]) <= 1


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def make(target, **settings):
    settings = {"commit_rows": 20, "compact_files": 5, **settings}
    exporter = make_exporter(ExportSettings("memory", "t", target, "e", **settings), run_here)
    exporter.start()
    return exporter


def fill(memory, count=100):
    if "t" not in memory._ids:
        memory.create_topic("t", 2)
    for partition in range(2):
        memory.append_values("t", partition, *[b"value"] * count)


def everything(memory):
    return sorted((p, n) for p, found in memory.offsets("t").items() for n in found)


def live(target):
    return open_table(target, None).data_files()


def test_many_small_files_become_one_and_the_export_goes_on(memory, target):
    fill(memory)
    exporter = make(target)
    done = []
    while exporter.step():
        done.append(exporter.compact())
    assert [bool(each) for each in done] == [False, False, True] * 3 + [False]
    assert len(live(target)) <= 5
    assert places(read_table(target)) == everything(memory)
    exporter.close()
    fill(memory)
    exporter = make(target, commit_rows=None)
    assert exporter.step().rows == 200
    assert exporter.step() is None
    assert places(read_table(target)) == everything(memory)
    exporter.close()


def test_rows_keep_their_contents(memory, target):
    fill(memory)
    exporter = make(target)
    while exporter.step():
        pass
    before = read_table(target).sort_by([("partition", "ascending"), ("offset", "ascending")])
    exporter.compact()
    after = read_table(target).sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert after.to_pylist() == before.to_pylist()
    exporter.close()


def test_few_files_are_left_alone(memory, target):
    fill(memory)
    exporter = make(target, compact_files=20)
    while exporter.step():
        assert exporter.compact() is None
    never = make(target, compact_files=0, take_over=True)
    assert never.compact() is None
    exporter.close()
    never.close()


class Crash(Exception):
    pass


def test_a_crash_while_compacting_changes_nothing(memory, target, monkeypatch):
    if target.format == "delta":
        pytest.skip("delta-rs compacts, in a commit of its own")
    fill(memory)
    exporter = make(target)
    while exporter.step():
        pass
    named = live(target)

    def crash(*_):
        raise Crash

    monkeypatch.setattr(exporter._table, "append", crash)
    with pytest.raises(Crash):
        exporter.compact()
    exporter.close()
    assert live(target) == named
    assert len(data_paths(target)) > len(named)

    make(target).close()
    assert len(data_paths(target)) == len(named), "the next run deletes what was written"

    exporter = make(target)

    def land_and_crash(*arguments):
        commit_of = type(exporter._table).append
        commit_of(exporter._table, *arguments)
        raise Crash

    monkeypatch.setattr(exporter._table, "append", land_and_crash)
    assert exporter.compact().added == 1, "a commit that landed counts, whatever was raised"
    exporter.close()
    assert len(live(target)) == 1
    make(target).close()
    assert places(read_table(target)) == everything(memory)


def test_rows_that_are_lost_on_the_way_stop_it(memory, target, monkeypatch):
    if target.format == "delta":
        pytest.skip("delta-rs compacts")
    fill(memory)
    exporter = make(target)
    while exporter.step():
        pass
    monkeypatch.setattr(compaction.FileWriter, "write", lambda *_: None)
    with pytest.raises(Exception, match="rows were lost in compaction; nothing was changed"):
        exporter.compact()
    exporter.close()
    assert places(read_table(target)) == everything(memory)


def test_others_who_commit_meanwhile_win(memory, target, monkeypatch):
    """Another export appends, and another compaction takes the same files out."""
    fill(memory)
    exporter = make(target)
    while exporter.step():
        pass
    rewrite = compaction._write_together
    raced = []

    def race(*arguments):
        written = rewrite(*arguments)
        if not raced:
            raced.append(True)
            rival = make_exporter(
                ExportSettings("memory", "t", target, "rival", commit_rows=30, compact_files=1),
                run_here,
            )
            rival.start()
            rival.step()
            rival.compact()
            rival.close()
        return written

    monkeypatch.setattr(compaction, "_write_together", race)
    outcome = exporter.compact()
    exporter.close()
    if target.format != "delta":
        assert raced and outcome is None
    rows = places(read_table(target))
    assert len(rows) == 200 + (30 if raced else 0)
    assert sorted(set(rows)) == everything(memory)
