"""The audit: journal and table compared offset by offset."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.errors import NoTable, TableError
from lakemq.spark_plugin.export.job import run, write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.runs import clip, describe, merge, runs_of, size, subtract
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.source.planning import OffsetRange
from tests.support.spark.lake_tables import FORMATS, target_in

OFFSETS = st.lists(st.integers(0, 40), max_size=30)


def flat(runs):
    return [offset for run in runs for offset in range(run.start, run.end)]


def normal(runs):
    return all(run.start < run.end for run in runs) and all(
        one.end < other.start for one, other in zip(runs, runs[1:], strict=False)
    )


@given(OFFSETS, OFFSETS, st.integers(0, 40), st.integers(0, 40))
def test_runs_do_what_sets_do(one, other, start, end):
    runs = runs_of(np.array(one, np.int64))
    assert flat(runs) == one
    all_of, twice = merge(runs)
    others, _ = merge(runs_of(np.array(other, np.int64)))
    assert normal(all_of) and normal(twice)
    assert flat(all_of) == sorted(set(one))
    assert flat(twice) == sorted({each for each in one if one.count(each) > 1})
    left = subtract(all_of, others)
    assert normal(left)
    assert flat(left) == sorted(set(one) - set(other))
    assert flat(clip(all_of, start, end)) == [n for n in sorted(set(one)) if start <= n < end]
    assert size(all_of) == len(set(one))


def test_runs_are_named():
    runs = merge(runs_of(np.array([1, 2, 3, 7, 9, 10], np.int64)))[0]
    assert describe(runs) == "1 to 3, 7, 9 to 10"
    assert describe(runs, most=1) == "1 to 3 and 2 more ranges"


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


@pytest.fixture
def connected(memory, monkeypatch):
    """Commands reach the broker in memory."""

    class Connected:
        __enter__ = lambda _: memory  # noqa: E731 - a context manager in a line
        __exit__ = lambda *_: None  # noqa: E731 - as above

    monkeypatch.setattr(run, "connect", lambda *_: Connected())


@pytest.fixture
def audit(connected, target):
    """Sentences of an audit of topic `t`."""

    def sentences(**options):
        options = {"by_key": False, **options}
        found = run.audit_target("memory", "t", target, "e", "", **options)
        return [each.sentence("t") for each in found]

    return sentences


def export(target, **settings):
    exporter = make_exporter(ExportSettings("memory", "t", target, "e", **settings), run_here)
    exporter.start()
    while exporter.step():
        pass
    exporter.close()


def fill(memory, count=100):
    memory.create_topic("t", 2)
    for partition in range(2):
        memory.append_values("t", partition, *(b'{"n":%d}' % n for n in range(count)))


def test_a_table_may_be_partitioned_by_what_the_audit_compares(memory, target, audit):
    """Delta keeps these columns in its log, and in no file."""
    fill(memory, 10)
    export(target, partition_by="topic, partition")
    assert audit(by_key=True) == [
        f"t-{p}: complete up to offset 9 (10 records, 10 rows)" for p in range(2)
    ]


def test_a_complete_table_is_said_to_be(memory, target, audit):
    fill(memory)
    export(target, commit_rows=70)
    memory.append_values("t", 1, b"later")
    assert audit() == [
        "t-0: complete up to offset 99 (100 records, 100 rows)",
        "t-1: complete up to offset 99 (100 records, 100 rows, 1 offsets not exported yet)",
    ]
    assert audit(by_key=True) == audit()


def test_dead_letters_count(memory, target, audit):
    fill(memory)
    memory.append_values("t", 0, b"poison")
    export(target, format="json", value_schema="n bigint")
    assert audit(by_key=True)[0] == (
        "t-0: complete up to offset 100 (101 records, 101 rows, 1 of them dead letters)"
    )


def test_gaps_of_compaction_are_not_missing(memory, target, audit):
    fill(memory)
    memory.append("t", 0, Columns([b"x"]), gap=10)
    export(target)
    assert "complete up to offset 110 (101 records, 101 rows)" in audit()[0]


def test_what_is_missing_twice_or_strange_is_named(memory, target, audit):
    """Files written past the export, as a broken exporter would."""
    fill(memory)
    export(target)
    topic_id = memory.describe_topic("t").topic_id
    # The exporter skips offsets 100 to 109 of partition 0, and writes some of 1 again.
    for partition in range(2):
        memory.append_values("t", partition, *[b"more"] * 20)
    exporter = make_exporter(ExportSettings("memory", "t", target, "e"), run_here)
    wrong = [OffsetRange("t", topic_id, 0, 110, 120), OffsetRange("t", topic_id, 1, 95, 120)]
    exporter._plan = lambda *_: (wrong, 20)
    exporter.start()
    exporter.step()
    exporter.close()
    assert audit() == [
        "t-0: NOT COMPLETE: 10 missing, offsets: 100 to 109 (120 records, 110 rows)",
        "t-1: NOT COMPLETE: 5 twice, offsets: 95 to 99 (120 records, 125 rows)",
    ]
    memory._batches["t", 0] = memory._batches["t", 0][:1]
    assert "10 not in the journal, offsets: 110 to 119" in audit()[0]


def test_what_retention_took_is_not_compared(memory, target, audit):
    fill(memory)
    export(target)
    memory.append_values("t", 0, b"a")
    memory.truncate_front("t", 0, 100)
    assert audit()[0] == (
        "t-0: complete up to offset 99 (0 records, 100 rows, 1 offsets not exported yet, journal "
        "begins at offset 100)"
    )


def test_keys_that_differ_are_named(memory, target, audit):
    memory.create_topic("t")
    memory.append("t", 0, Columns([b"1", b"2", b"3"], [b"a", b"a", None]))
    export(target)
    memory._batches["t", 0] = []
    memory.append("t", 0, Columns([b"1", b"2", b"3"], [b"a", b"b", None]))
    assert "complete up to offset 2" in audit()[0]
    assert audit(by_key=True)[0] == (
        "t-0: NOT COMPLETE: key b'a' has 1 records and 2 rows; key b'b' has 1 records and 0 rows "
        "(3 records, 3 rows)"
    )


def test_a_table_that_is_not_there(memory, target, audit):
    fill(memory)
    with pytest.raises(NoTable, match="there (is|are) no"):
        audit()


def test_the_status_of_a_table_is_how_far_it_is_behind(memory, target, connected):
    fill(memory)
    export(target, commit_rows=70)
    memory.append_values("t", 1, b"later", b"and later")
    found = run.status_target("memory", "t", target, "e")
    assert (found.export_id, found.topic, found.format) == ("e", "t", target.format)
    assert (found.lag, found.commit) == (2, 3)
    assert [(each.next_offset, each.high_watermark, each.lag) for each in found.partitions] == [
        (100, 100, 0), (100, 102, 2),
    ]  # fmt: skip
    with pytest.raises(TableError, match="no export 'other' of topic t"):
        run.status_target("memory", "t", target, "other")
    # What retention has taken can't be exported any more.
    memory.truncate_front("t", 1, 101)
    assert [each.lag for each in run.status_target("memory", "t", target, "e").partitions] == [0, 1]
