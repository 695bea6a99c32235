"""`--mode upsert`: the table has the last value of each key, whatever the commits, files and
partitions."""

from __future__ import annotations

import contextlib
import random

import pytest

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.cli.explained_table import ExplainedTable
from lakemq.spark_plugin.cli.options import ExportIdOptions, TableOptions
from lakemq.spark_plugin.errors import ExportFenced, OptionError, TableError
from lakemq.spark_plugin.export.job import run
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.tables import delta_table, iceberg_table
from lakemq.spark_plugin.union import read as union
from tests.support.spark.lake_tables import data_paths, named_files, read_table, target_in
from tests.unit.spark_plugin.job.test_export_loop import Export, run_here

SCHEMA = "device string, room string, n bigint"


@pytest.fixture(params=["delta", "iceberg"])
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


one_format = pytest.mark.parametrize("target", ["delta"], indirect=True)


@pytest.fixture
def export(target):
    runs = Export(target, format="json", value_schema=SCHEMA, upsert_key="key", compact_files=0)
    yield runs
    for exporter in runs.open:
        exporter.close()


def row(key: bytes, n: int, room: str | None = "r") -> tuple[bytes, bytes]:
    room_text = "null" if room is None else f'"{room}"'
    return key, b'{"device":"%s","room":%s,"n":%d}' % (key, room_text.encode(), n)


def append(memory, partition, *records):
    keys, values = zip(*records, strict=True)
    memory.append("t", partition, Columns(list(values), list(keys)))


def table_of(export, *names):
    rows = read_table(export.target).to_pylist()
    return sorted(tuple(each[name] for name in names) for each in rows)


class Model:
    """What the table must hold, record by record."""

    def __init__(self, key) -> None:
        self.key = key
        self.rows = {}

    def apply(self, record_key, value):
        if value is None:
            self.rows = {k: v for k, v in self.rows.items() if v[0] != record_key}
        else:
            self.rows[self.key(value)] = (record_key, value)

    def table(self):
        return sorted(value for _, value in self.rows.values())


def lives(memory, export, seed, key_of, key, **settings):
    """Records of few keys in rounds; after each the table is what the model says."""
    chance = random.Random(seed)
    model = Model(key_of)
    for _ in range(3):
        for _ in range(chance.randrange(10, 40)):
            device, room = f"d{chance.randrange(8)}", f"r{chance.randrange(3)}"
            value = (device, room, chance.randrange(100))
            record_key = (device if key == "key" else f"{device}/{room}").encode()
            if chance.random() < 0.25:
                append(memory, 0, (record_key, None))
                model.apply(record_key, None)
            else:
                append(memory, 0, (record_key, row(device.encode(), value[2], room)[1]))
                model.apply(record_key, value)
        export.run(commit_rows=chance.choice([15, 1000]), upsert_key=key, **settings)
        assert table_of(export, "device", "room", "n") == model.table(), f"seed {seed}"


def test_table_has_the_last_value_of_each_record_key(memory, export):
    memory.create_topic("t", 1)
    lives(memory, export, 1, lambda value: value[0], "key")


@pytest.mark.parametrize("partition_by", ["", "day(_meta.timestamp), room"])
def test_columns_as_key(memory, export, partition_by):
    memory.create_topic("t", 1)
    key = "device, room"
    lives(memory, export, 3, lambda value: value[:2], key, partition_by=partition_by)


@one_format
def test_parts_of_a_key_are_kept_apart(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, (b"k", b'{"device":"1:a","room":"b","n":1}'))
    append(memory, 0, (b"k", b'{"device":"1","room":"a1:b","n":2}'))
    append(memory, 0, (b"k", b'{"device":"a","room":"","n":3}'))
    append(memory, 0, (b"k", b'{"device":"","room":"a","n":4}'))
    export.run(upsert_key="device, room")
    assert [each[0] for each in table_of(export, "n")] == [1, 2, 3, 4]


@one_format
def test_order_is_that_of_offsets_however_tasks_are_cut(memory, export):
    memory.create_topic("t", 3)
    for number in range(30):
        append(memory, number % 3, *(row(b"d%d" % (number % 3), 10 * number + n) for n in range(5)))

    def backwards(tasks):
        return list(reversed(run_here(tasks)))

    export.run(backwards, commit_rows=1000)
    assert table_of(export, "device", "n") == [("d0", 274), ("d1", 284), ("d2", 294)]


def test_tombstone_deletes_what_came_before_it_only(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1), (b"a", None), row(b"b", 2), (b"b", None), row(b"b", 3))
    append(memory, 0, (b"never", None), row(b"c", 4))
    reports = export.run(commit_rows=1000)
    assert table_of(export, "device", "n") == [("b", 3), ("c", 4)]
    assert [(each.records, each.rows, each.tombstones) for each in reports] == [(7, 2, 3)]
    append(memory, 0, (b"c", None), (b"b", None))
    export.run()
    assert table_of(export, "device") == []
    assert export.run() == []


@one_format
def test_records_without_a_key_are_dead_letters(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1), (None, b'{"device":"x","room":"r","n":1}'), (None, None))
    append(memory, 0, row(b"b", 2, None), (b"b", b"no json"))
    export.run()
    dead = [each["error_class"] for each in read_table(export.target.dead_letters("")).to_pylist()]
    assert sorted(dead) == ["no_key", "no_key", "not_json"]
    assert table_of(export, "device") == [("a",), ("b",)]
    export.run(export_id="f", upsert_key="room")
    dead = read_table(export.target.dead_letters("")).to_pylist()
    assert "column room of --key is null" in [each["error"] for each in dead]


@one_format
def test_columns_grow_and_files_of_before_are_rewritten(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1), row(b"b", 2))
    export.run(evolve="widen")
    append(memory, 0, (b"b", b'{"device":"b","n":3,"hot":true}'))
    export.run(evolve="widen")
    assert table_of(export, "device", "n", "hot") == [("a", 1, None), ("b", 3, True)]


@one_format
def test_file_without_a_changed_key_is_left_alone(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1), row(b"b", 2))
    export.run()
    before = data_paths(export.target)
    append(memory, 0, row(b"c", 3))
    export.run()
    assert before < data_paths(export.target)
    assert before <= named_files(export.target)


def test_compaction_and_upsert_take_turns(memory, export):
    """Delta names compacted files by partition values, with characters that URLs escape."""
    memory.create_topic("t", 1)
    rooms = ["a b/c", "100%"]
    for number in range(6):
        append(memory, 0, row(b"d%d" % number, number, rooms[number % 2]))
        export.run(partition_by="room")
    exporter = export.exporter(compact_files=2, trigger_s=1.0, partition_by="room")
    exporter.start()
    assert exporter.compact() is not None
    append(memory, 0, row(b"d3", 33, rooms[0]), (b"d4", None))
    assert exporter.step().rows == 1
    wanted = [("d0", 0), ("d1", 1), ("d2", 2), ("d3", 33), ("d5", 5)]
    assert table_of(export, "device", "n") == wanted


def test_upsert_of_another_export_in_between_is_seen(memory, export, monkeypatch):
    """Two exports of one key into one table: the second commit has to see the first one's row."""
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1))
    first, second = export.exporter(export_id="one"), export.exporter(export_id="two")
    first.start(), second.start()
    kind = {"delta": delta_table.DeltaLakeTable, "iceberg": iceberg_table.IcebergTable}
    live_files, waiting = kind[export.target.format].live_files, [second]

    def look(table):
        found = live_files(table)
        if waiting:  # the other one commits when this one has looked
            waiting.pop().step()
        return found

    monkeypatch.setattr(kind[export.target.format], "live_files", look)
    assert first.step().rows == 1
    assert table_of(export, "device", "n") == [("a", 1)]


@one_format
@pytest.mark.parametrize("landed", [True, False])
def test_commit_whose_answer_is_lost(memory, export, monkeypatch, landed):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1), row(b"b", 2))
    export.run()
    append(memory, 0, row(b"a", 3), (b"b", None))
    exporter = export.exporter()
    exporter.start()
    kind = type(exporter._table)
    commit, answers = kind.append, ["lost"]

    def lost(table, key, files, after, removed=()):
        if not answers or landed:
            commit(table, key, files, after, removed)
        if answers:
            answers.clear()
            raise OSError("no answer")

    monkeypatch.setattr(kind, "append", lost)
    if landed:
        assert exporter.step() is not None
    else:
        with pytest.raises(OSError, match="no answer"):
            exporter.step()
    exporter.close()
    export.run()
    assert table_of(export, "device", "n") == [("a", 3)]


@one_format
def test_process_that_was_fenced_changes_nothing(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1))
    old = export.exporter()
    old.start()
    export.run(take_over=True)
    append(memory, 0, row(b"a", 2))
    with pytest.raises(ExportFenced):
        old.step()
    assert table_of(export, "n") == [(1,)]


@one_format
def test_mode_and_key_of_an_export_stay(memory, export, target, monkeypatch):
    monkeypatch.setattr(run, "connect", lambda *_: contextlib.nullcontext(memory))
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1))
    export.run()
    with pytest.raises(OptionError, match="was begun with --mode upsert and another --key"):
        export.run(upsert_key="device")
    with pytest.raises(OptionError, match="was begun with --mode upsert: go on"):
        export.run(upsert_key="")
    with pytest.raises(OptionError, match="is an upsert, whose table has only the last"):
        run.audit_target("memory", "t", target, "e", "", by_key=False)
    monkeypatch.setattr(union, "open_client", lambda *_: contextlib.nullcontext(memory))
    with pytest.raises(TableError, match="is an upsert: its table has not all records"):
        union.read("t", bootstrap="memory", path=target.path, export_id="e", format="json")
    with pytest.raises(OptionError, match="are not replayed"):
        run.replay_target(
            ExportSettings("memory", "t", target, "e", format="json", value_schema=SCHEMA)
        )
    export.run(export_id="appended", upsert_key="")
    with pytest.raises(OptionError, match="was begun with --mode append"):
        export.run(export_id="appended")
    export.run(upsert_key=" key ")


@one_format
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"upsert_key": "device,"}, "--key is 'device,'; it takes key"),
        ({"upsert_key": "n,n"}, "a column is there twice"),
        ({"upsert_key": "devise"}, "no column devise; did you mean device"),
        ({"upsert_key": "_meta"}, "_meta is struct"),
        ({"format": "raw", "value_schema": ""}, "not with --format raw"),
        ({"sql": "SELECT 1"}, "does not go with --sql"),
    ],
)
def test_wrong_settings_are_one_sentence(export, memory, settings, sentence):
    memory.create_topic("t", 1)
    with pytest.raises(OptionError, match=sentence):
        export.run(**settings)


def test_plain_parquet_has_no_upsert(tmp_path):
    with pytest.raises(OptionError, match="is for --to delta and --to iceberg"):
        ExportSettings(
            "memory", "t", target_in(tmp_path, "parquet"), "e", format="json",
            value_schema=SCHEMA, upsert_key="key",
        )  # fmt: skip


@one_format
def test_rows_that_another_engine_deleted_stop_the_upsert(memory, export, monkeypatch):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1))
    export.run()
    append(memory, 0, row(b"a", 2))
    exporter = export.exporter()
    exporter.start()
    monkeypatch.setattr(type(exporter._table), "live_files", lambda table: [])
    with pytest.raises(TableError, match="compact the table with that engine first"):
        exporter.step()


@one_format
def test_explain_tells_that_a_later_record_took_the_place(memory, export):
    memory.create_topic("t", 1)
    append(memory, 0, row(b"a", 1), row(b"b", 2), row(b"a", 3))
    export.run()
    table = TableOptions(to="delta", path=export.target.path)
    explained = ExplainedTable(table, ExportIdOptions(export_id="e"))

    def station(offset):
        message = {"topic": "t", "partition": 0, "offset": offset}
        (found,) = explained.stations(message, memory.describe_topic("t").topic_id)
        return found["state"], found["what"]

    assert [station(offset)[0] for offset in range(4)] == ["unknown", "ok", "ok", "waiting"]
    assert "keeps the last record of each key" in station(0)[1]
