"""Replay of dead letters, and vacuum."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.cli.commands import dlq_app
from lakemq.spark_plugin.errors import ExportRunning, NoTable
from lakemq.spark_plugin.export.job import exporter as loop
from lakemq.spark_plugin.export.job import run, write_task
from lakemq.spark_plugin.export.job.run import audit_target, make_exporter, replay_target
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.vacuum import vacuum
from lakemq.spark_plugin.export.tables.open_table import open_table
from tests.support.spark.lake_tables import FORMATS, data_paths, places, read_table, target_in


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def settings(target, schema="", **more):
    more = {"format": "json" if schema else "raw", "value_schema": schema, **more}
    return ExportSettings("memory", "t", target, "e", **more)


def export(given):
    exporter = make_exporter(given, run_here)
    exporter.start()
    while exporter.step():
        exporter.compact()
    exporter.close()


# -- replay


@pytest.fixture
def bad_numbers(memory, target):
    """An export that could not decode two of four records: no int is that large."""
    memory.create_topic("t", 1)
    values = [b'{"n":1}', b'{"n":3000000000}', b"poison", b'{"n":4}']
    memory.append("t", 0, Columns(values, [b"k0", b"k1", b"k2", b"k3"]))
    # The table takes bigint, so that it can hold the number once it decodes.
    open_table(target, run.decoded_schema(settings(target, "n bigint")))
    export(settings(target, "n int"))
    assert places(read_table(target)) == [(0, 0), (0, 3)]
    return memory


def audited(memory, target, monkeypatch, by_key=True):
    class Connected:
        def __enter__(self):
            return memory

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(run, "connect", lambda *_: Connected())
    (found,) = audit_target("memory", "t", target, "e", "", by_key=by_key)
    return found.sentence("t")


def test_what_decodes_by_now_lands_once(bad_numbers, target, monkeypatch):
    done = replay_target(settings(target, "n bigint"))
    assert (done.landed, done.before, done.still_bad) == (1, 0, 1)
    done = replay_target(settings(target, "n bigint"))
    assert (done.landed, done.before, done.still_bad) == (0, 1, 1)
    rows = read_table(target).to_pylist()
    assert sorted((row["n"], row["_meta"]["offset"], row["_meta"]["key"]) for row in rows) == [
        (1, 0, b"k0"),
        (4, 3, b"k3"),
        (3_000_000_000, 1, b"k1"),
    ]
    # The audit counts a replayed dead letter once, and the export goes on where it was.
    assert audited(bad_numbers, target, monkeypatch) == (
        "t-0: complete up to offset 3 (4 records, 4 rows, 1 of them dead letters)"
    )
    bad_numbers.append("t", 0, Columns([b'{"n":5}'], [b"k4"]))
    export(settings(target, "n bigint"))
    assert "complete up to offset 4 (5 records, 5 rows" in audited(bad_numbers, target, monkeypatch)


def test_a_replay_that_crashes_leaves_nothing_half(bad_numbers, target, monkeypatch):
    class Crash(Exception):
        pass

    committed = loop.lake.commit
    for moment in ("before", "after"):
        calls = []

        def commit(*arguments, calls=calls, moment=moment):
            calls.append(arguments)
            if len(calls) == 3:  # epoch of the table, epoch of the dead letters, the rows
                if moment == "after":
                    committed(*arguments)
                raise Crash
            committed(*arguments)

        monkeypatch.setattr(loop.lake, "commit", commit)
        with pytest.raises(Crash):
            replay_target(settings(target, "n bigint"))
        monkeypatch.setattr(loop.lake, "commit", committed)
        expected = [(0, 0), (0, 3)] if moment == "before" else [(0, 0), (0, 1), (0, 3)]
        assert places(read_table(target)) == expected
    assert replay_target(settings(target, "n bigint")).before == 1


def test_no_replay_while_the_export_runs(bad_numbers, target):
    exporter = make_exporter(settings(target, "n int"), run_here)
    exporter.start()
    with pytest.raises(ExportRunning):
        replay_target(settings(target, "n bigint"))
    exporter.close()


def test_a_replay_makes_no_table(memory, target):
    memory.create_topic("t", 1)
    with pytest.raises(NoTable):
        replay_target(settings(target, "n bigint"))


@pytest.mark.parametrize("partition_by", ["", "day(_meta.timestamp), device, month(at), topic_no"])
def test_a_replay_makes_columns_and_lets_them_grow(memory, target, partition_by, caplog):
    """And it needs not be told how the table is partitioned."""
    schema = "n int, device string, at timestamp_ms, topic_no int"
    memory.create_topic("t", 1)
    same = b'"device":"d","at":1767225600000,"topic_no":7'
    values = [
        b'{"n":1,%s}' % same,
        b'{"n":3000000000,"new":"x","a b":2,%s}' % same,
        b'{"n":"x",%s}' % same,
    ]
    memory.append("t", 0, Columns(values))
    given = dataclasses.replace(settings(target, schema), partition_by=partition_by)
    export(given)
    assert places(read_table(target)) == [(0, 0)]
    table = open_table(target, None)
    assert table.partition_by() == partition_by

    def replay(evolve):
        opened = dataclasses.replace(
            settings(target, schema), evolve="add" if evolve == "strict" else evolve
        )
        done = replay_target(opened, evolve=evolve)
        return done.landed, done.before, done.still_bad

    assert replay("strict") == (0, 0, 2)
    assert replay("add") == (0, 0, 2)
    assert replay("widen") == (1, 0, 1)
    assert replay("widen") == (0, 1, 1)
    (row,) = [each for each in read_table(target).to_pylist() if each["n"] != 1]
    assert (row["n"], row["new"], row["device"]) == (3_000_000_000, "x", "d")
    assert row["_rest"] == '{"a b":2}'
    assert "'a b'" in caplog.text


def test_how_a_replay_may_change_columns_is_checked():
    answer = CliRunner().invoke(
        dlq_app, ["replay", "--topic", "t", "--to", "delta", "--path", "x", "--evolve", "wide"]
    )
    assert answer.exit_code == 2
    assert "--evolve is 'wide'; it takes strict, add, widen; did you mean widen?" in answer.stderr


# -- vacuum


def age(target, days):
    then = time.time() - days * 86_400
    for path in data_paths(target) | set(Path(target.path or ".").glob("*.parquet")):
        if target.path or "lakemq-" in str(path):
            os.utime(path, (then, then))


def test_only_files_that_no_state_names_and_that_are_old_are_deleted(memory, target):
    memory.create_topic("t", 1)
    memory.append_values("t", 0, *[b"v"] * 100)
    export(settings(target, commit_rows=10, compact_files=5))
    folder = next(iter(data_paths(target))).parent
    stray = folder / "stray.parquet"
    stray.write_bytes(b"of a task that ran twice")
    named = set(open_table(target, None).data_files())
    before = data_paths(target)
    assert len(before) > len(named)

    for retention_s in (7 * 86_400.0, 1_800.0):
        assert vacuum(open_table(target, None), retention_s).deleted == 0
    age(target, 8)
    vacuum(open_table(target, None), 7 * 86_400.0)
    assert not stray.exists()
    assert places(read_table(target)) == [(0, n) for n in range(100)]
    if target.format == "iceberg":  # its states of the last 7 days can still be read
        assert len(data_paths(target)) > len(named)
        vacuum(open_table(target, None), 0.0)
    if target.format != "delta":  # which counts from when a file left the table
        assert {str(path) for path in data_paths(target)} == named
    assert places(read_table(target)) == [(0, n) for n in range(100)]
    export(settings(target))
