"""Which process may commit: epochs, tokens, and what earlier versions left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakemq.plugins.native.sdk.arrow import arrow_schema
from lakemq.spark_plugin.errors import ExportFenced
from lakemq.spark_plugin.export.job import exporter
from lakemq.spark_plugin.export.maintenance import dead_letters
from lakemq.spark_plugin.export.tables import delta_table, iceberg_table
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.table import ExportKey, Progress, commit, topic_mark
from tests.support.spark.lake_tables import FORMATS, target_in
from tests.unit.spark_plugin.job.test_export_loop import Export, all_places, fill, run_here


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


@pytest.fixture
def export(target):
    runs = Export(target)
    yield runs
    for each in runs.open:
        each.close()


def test_two_that_start_at_the_same_moment(memory, export, monkeypatch) -> None:
    """Both read the same state; the other one's commit comes first, and looks the same."""
    fill(memory)
    first, second = export.exporter(take_over=True), export.exporter(take_over=True)
    real = exporter.lake.commit

    def commit_after_the_other(*arguments):
        monkeypatch.setattr(exporter.lake, "commit", real)
        first.start()
        return real(*arguments)

    monkeypatch.setattr(exporter.lake, "commit", commit_after_the_other)
    with pytest.raises(ExportFenced, match="taken over by another process"):
        second.start()
    while first.step():
        pass
    assert export.rows() == all_places(memory)
    first.close()
    export.run()
    assert export.rows() == all_places(memory)


def test_an_older_process_that_makes_columns_is_fenced_all_the_same(
    memory, export, monkeypatch
) -> None:
    """Making columns reads the table anew, and thereby the newer process's epoch."""
    for module in (exporter, dead_letters):  # so that only the table itself can stop the older one
        monkeypatch.setattr(module, "delete_orphans", lambda *_: [])
    fill(memory)
    json_of = {"format": "json", "evolve": "add", "commit_rows": None}

    newer = export.exporter(take_over=True, **json_of)

    def overtaken(tasks):
        results = run_here(tasks)
        if not newer._started.epoch:
            newer.start()
        return results

    older = export.exporter(overtaken, **json_of)
    older.start()
    with pytest.raises(ExportFenced):
        older.step()
    while newer.step():
        pass
    assert export.rows() == all_places(memory)


TOKENS = ("process", "commit")


def _without_tokens(found):
    kept = {name: value for name, value in found.items() if name.split("/")[-1] not in TOKENS}
    assert len(kept) == len(found) - 2
    return kept


def test_tables_of_versions_without_tokens_go_on(memory, export, monkeypatch) -> None:
    """They have the same numbers, and no tokens."""
    fill(memory)
    topic_id = memory.describe_topic("t").topic_id
    key, mark = ExportKey("e", "t", topic_id, (0, 1)), topic_mark(topic_id)
    table = open_table(export.target, arrow_schema())
    with monkeypatch.context() as patch:
        for owner, name in (
            (delta_table, "_transactions"), (iceberg_table.IcebergTable, "_properties")
        ):  # fmt: skip
            made = getattr(owner, name)
            patch.setattr(owner, name, lambda *a, made=made: _without_tokens(made(*a)))
        table.append(key, [], Progress(4, 9, topic_mark=mark, offsets={0: 30, 1: 20}))
    for path in Path(export.target.path or ".").glob("_manifest/*2.json"):
        path.write_text(json.dumps(_without_tokens(json.loads(path.read_text()))))
    before = open_table(export.target, None).progress(key)
    assert before == Progress(4, 9, 0, 0, mark, {0: 30, 1: 20})
    export.run()
    after = open_table(export.target, None).progress(key)
    assert (after.epoch, after.attempt, dict(after.offsets)) == (5, 11, {0: 50, 1: 50})
    assert after.process
    assert after.commit
    assert export.rows() == [(0, n) for n in range(30, 50)] + [(1, n) for n in range(20, 50)]


def test_orphans_of_versions_without_tokens_are_deleted(memory, export, tmp_path) -> None:
    fill(memory)
    export.run()
    folder = exporter.Folder(open_table(export.target, None).location)
    for name in ("1-9", "1-2"):
        folder.create(f"lakemq-e/t/{name}")
    one = export.exporter()
    assert one.start() == ["1-9"]  # 1-2 was committed, as far as its number tells


def test_dead_letters_of_a_table_that_is_gone_do_not_stop_a_new_one(memory, export) -> None:
    """Their epochs are ahead of the new table's."""
    fill(memory)
    decoded = {"format": "json", "value_schema": "n bigint"}
    for _ in range(3):
        export.run(**decoded)
    new = Export(target_in(Path(export.target.path or ".").parent / "other", "parquet"))
    dead = export.target.dead_letters("")
    if dead.format != "parquet":
        return
    new.run(**decoded, dlq=dead.path)
    assert new.rows() == all_places(memory)


def test_a_commit_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="token"):
        commit(None, None, [], Progress(commit=3), Progress(commit=3), lambda _: None)  # type: ignore[arg-type]
