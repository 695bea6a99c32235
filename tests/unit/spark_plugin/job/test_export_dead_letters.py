"""Dead letters: bad rows land once, whatever crashes between the two tables' commits."""

from __future__ import annotations

import pytest

from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance import dead_letters
from tests.support.spark.lake_tables import FORMATS, places, read_table, target_in


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def make(target, schema="n bigint", **settings):
    settings = {"format": "json", "value_schema": schema, "commit_rows": 30, **settings}
    return make_exporter(ExportSettings("memory", "t", target, "e", **settings), run_here)


def run(target, schema="n bigint"):
    export = make(target, schema)
    try:
        export.start()
        return list(iter(export.step, None))
    finally:
        export.close()


def fill(memory, count=50):
    """Every seventh value is no number."""
    for partition in range(2):
        values = [b'{"n":"x"}' if n % 7 == 3 else b'{"n":%d}' % n for n in range(count)]
        memory.append_values("t", partition, *values)


def bad(count=50):
    return sorted((p, n) for p in range(2) for n in range(count) if n % 7 == 3)


def good(count=50):
    return sorted((p, n) for p in range(2) for n in range(count) if n % 7 != 3)


@pytest.fixture
def topic(memory):
    memory.create_topic("t", 2)
    fill(memory)
    return memory


def test_good_and_bad_rows_part(topic, target):
    reports = run(target)
    assert sum(report.dead_letters for report in reports) == len(bad())
    assert places(read_table(target)) == good()
    dead = read_table(target.dead_letters(""))
    assert places(dead) == bad()
    assert set(dead["error_class"].to_pylist()) == {"wrong_type"}
    assert set(dead["value"].to_pylist()) == {b'{"n":"x"}'}
    assert set(dead["topic_id"].to_pylist()) == {topic.describe_topic("t").topic_id}


class Crash(Exception):
    pass


@pytest.mark.parametrize("times", [1, 2])
def test_a_crash_between_the_two_commits_repeats_no_dead_letter(topic, target, times, monkeypatch):
    run_commit = dead_letters.DeadLetters.commit
    for _ in range(times):
        export = make(target)
        export.start()

        def commit_and_crash(*arguments):
            run_commit(*arguments)
            raise Crash

        monkeypatch.setattr(dead_letters.DeadLetters, "commit", commit_and_crash)
        with pytest.raises(Crash):
            export.step()
        export.close()
        monkeypatch.setattr(dead_letters.DeadLetters, "commit", run_commit)
    assert places(read_table(target)) == []
    assert 0 < len(read_table(target.dead_letters(""))) < len(bad())

    run(target)
    assert places(read_table(target)) == good()
    assert places(read_table(target.dead_letters(""))) == bad()


def test_a_row_that_turns_bad_after_a_crash_is_not_taken_for_known(memory, target, monkeypatch):
    """Bad rows are known one by one, not up to an offset: the second run's columns take less."""
    memory.create_topic("t")
    memory.append_values("t", 0, b'{"n":1}', b'{"n":3000000000}', b"null")
    run_commit = dead_letters.DeadLetters.commit
    export = make(target, "n bigint")
    export.start()

    def commit_and_crash(*arguments):
        run_commit(*arguments)
        raise Crash

    monkeypatch.setattr(dead_letters.DeadLetters, "commit", commit_and_crash)
    with pytest.raises(Crash):
        export.step()
    export.close()
    monkeypatch.setattr(dead_letters.DeadLetters, "commit", run_commit)
    assert places(read_table(target.dead_letters(""))) == [(0, 2)]

    run(target, "n int")
    assert places(read_table(target)) == [(0, 0)]
    assert places(read_table(target.dead_letters(""))) == [(0, 1), (0, 2)]


def test_dead_letters_of_a_deleted_topic_are_not_taken_for_the_new_ones(topic, target, monkeypatch):
    run(target)
    topic.delete_topic("t")
    topic.create_topic("t", 2)
    fill(topic)
    export = make(target, accept_recreated=True)
    export.start()
    run_commit = dead_letters.DeadLetters.commit

    def commit_and_crash(*arguments):
        run_commit(*arguments)
        raise Crash

    monkeypatch.setattr(dead_letters.DeadLetters, "commit", commit_and_crash)
    with pytest.raises(Crash):
        export.step()
    export.close()
    monkeypatch.setattr(dead_letters.DeadLetters, "commit", run_commit)
    export = make(target, accept_recreated=True)
    export.start()
    while export.step():
        pass
    export.close()
    assert places(read_table(target)) == sorted(2 * good())
    assert places(read_table(target.dead_letters(""))) == sorted(2 * bad())


def test_a_run_without_bad_rows_leaves_no_dead_letter_commits(memory, target):
    memory.create_topic("t")
    memory.append_values("t", 0, *(b'{"n":%d}' % n for n in range(100)))
    run(target)
    assert places(read_table(target)) == [(0, n) for n in range(100)]
    assert len(read_table(target.dead_letters(""))) == 0
