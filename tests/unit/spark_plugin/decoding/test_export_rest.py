"""Fields that can't be columns land in `_rest`: nothing of a record is lost without a word."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.spark_plugin.export.decoding import evolution
from lakemq.spark_plugin.export.decoding.column_types import REST, parse_schema
from lakemq.spark_plugin.export.decoding.decode import JsonDecoder
from lakemq.spark_plugin.export.decoding.evolution import evolve
from lakemq.spark_plugin.export.decoding.given_schema import infer_schema
from tests.support.seeds import examples
from tests.support.spark.lake_tables import FORMATS, places, read_table, target_in
from tests.unit.spark_plugin.decoding.test_export_evolution import export, rows, send
from tests.unit.spark_plugin.source.test_spark_corrupt_batches import audit


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


ODD = {
    "n": 1, "a b": 1, "a.b": "x", "x:y": [2], "": 3, "N": {"deep": True}, "_meta": 4, "_rest": 5,
    "x" * 200: 6, "in": {"p q": 1.5, "fine": 2, "FINE": 3},
    "list": [{"ok": 1}, {"ok": 2, "o k": 3}], "nothing": None, "empty": {"a b": []},
}  # fmt: skip
REST_OF_ODD = {
    "a b": 1, "a.b": "x", "x:y": [2], "": 3, "N": {"deep": True}, "_meta": 4, "_rest": 5,
    "x" * 200: 6, "in": {"p q": 1.5, "FINE": 3}, "list": [None, {"o k": 3}],
}  # fmt: skip


def test_names_that_no_table_takes_land_as_json(memory, target, caplog):
    send(memory, {"n": 0}, ODD)
    send(memory, {"n": 2, "fine": 1}, partition=1)
    with caplog.at_level(logging.WARNING, "lakemq.spark"):
        (report,) = export(target)
    found = rows(target)
    for row in found.values():
        row["list"] = row["list"] or None  # pyiceberg reads an empty list where a file has none
    assert json.loads(found[0, 1].pop(REST)) == REST_OF_ODD
    assert found == {
        (0, 0): {"n": 0, "fine": None, "in": None, "list": None, REST: None},
        (0, 1): {"n": 1, "fine": None, "in": {"fine": 2}, "list": [{"ok": 1}, {"ok": 2}]},
        (1, 0): {"n": 2, "fine": 1, "in": None, "list": None, REST: None},
    }
    assert report.rest_rows == 1
    (said,) = caplog.messages
    assert said.startswith("t: fields that can't be columns go to column _rest: ")
    for name in ("'a b'", "'a.b'", "''", "'N.deep'", "'in.p q'", "'in.FINE'", "'list[].o k'"):
        assert name in said
    assert len(said) < 500, "names are cut"


def test_each_field_is_named_once_and_rows_are_counted_always(memory, target, caplog):
    send(memory, {"n": 1}, {"n": 2, "a b": 1})
    with caplog.at_level(logging.WARNING, "lakemq.spark"):
        reports = export(target, commit_rows=1)
        send(memory, {"n": 3, "a b": {"c": 2}}, {"n": 4, "a b": "three"}, {"n": 5, "c d": 4})
        reports += export(target, commit_rows=1)
    assert [report.rest_rows for report in reports] == [0, 1, 1, 1, 1]
    assert [each.rpartition(" _rest: ")[2] for each in caplog.messages] == [
        "'a b'",
        "'a b.c'",
        "'a b'",
        "'c d'",
    ]
    assert [row[REST] for _, row in sorted(rows(target).items())] == [
        None,
        '{"a b":1}',
        '{"a b":{"c":2}}',
        '{"a b":"three"}',
        '{"c d":4}',
    ]
    memory.close = lambda: None
    first = audit(memory, target)[0]
    assert first.complete
    assert first.rest == 4
    assert "4 of them with fields in _rest" in first.sentence("t")


def test_a_table_with_too_many_columns(memory, target, monkeypatch):
    monkeypatch.setattr(evolution, "COLUMNS_MAX", 3)
    send(memory, {"n": 1, **{f"c{number}": number for number in range(5)}})
    export(target)
    ((_, row),) = rows(target).items()
    assert row == {"n": 1, "c0": 0, "c1": 1, REST: '{"c2":2,"c3":3,"c4":4}'}


def test_strict_takes_the_rest_where_the_schema_has_a_place_for_it(memory, target):
    send(memory, {"n": 1, "more": {"x": 2}}, {"n": 2})
    export(target, "n bigint, _rest string", evolve="strict")
    assert rows(target) == {
        (0, 0): {"n": 1, REST: '{"more":{"x":2}}'},
        (0, 1): {"n": 2, REST: None},
    }


def test_each_route_has_a_rest_of_its_own(memory, tmp_path, caplog):
    from tests.support.spark.lake_tables import routed_target_in

    target = routed_target_in(tmp_path, "delta")
    send(memory, {"n": 1, "a b": 1}, {"n": 2})
    (report,) = export(target, route_by="n")
    assert report.rest_rows == 1
    one, two = (read_table(target.of_route(each)) for each in "12")
    assert one.column(REST).to_pylist() == ['{"a b":1}']
    assert REST not in two.column_names


def test_a_bad_record_is_a_dead_letter_all_the_same(memory, target):
    send(memory, {"n": 1, "a b": 1}, {"n": "no number", "a b": 2})
    (report,) = export(target)
    assert (report.rows, report.dead_letters, report.rest_rows) == (1, 1, 1)
    assert places(read_table(target.dead_letters(""))) == [(0, 1)]


def test_a_field_that_is_there_twice_keeps_both_values(memory, tmp_path):
    memory.create_topic("t", 2)
    line = b'{"n":1,"a b":2,"a b":3}'
    memory.append_values("t", 0, line)
    target = target_in(tmp_path, "parquet")
    export(target)
    assert rows(target) == {(0, 0): {"n": 1, REST: line.decode()}}


def test_infer_names_what_it_has_no_column_for(memory, tmp_path, caplog):
    send(memory, {"n": 1, "a b": 1, "N": 2})
    with caplog.at_level(logging.WARNING, "lakemq.spark"):
        text = infer_schema(memory, "t", "json", ",", target_in(tmp_path, "delta"), "", False)
    assert text == "`n` bigint"
    assert caplog.messages == [
        "--infer: fields that can't be columns: 'a b', 'N'; --evolve add keeps them in column _rest"
    ]


NAMES = st.sampled_from(["a", "A", "b", "a b", "a.b", "", "_meta", "_rest", "é", "\0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "x", "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def leaves(value, path=()):
    """{(path, value)} of all that a JSON value tells."""
    if isinstance(value, dict):
        return set().union(*(leaves(each, (*path, name)) for name, each in value.items()))
    if isinstance(value, list):
        return set().union(*(leaves(each, (*path, place)) for place, each in enumerate(value)))
    return set() if value is None else {(path, json.dumps(value))}


@settings(max_examples=examples(200))
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=6))
def test_every_field_is_in_a_column_or_in_the_rest(records):
    values = pa.array([json.dumps(each).encode() for each in records], pa.binary())
    columns = parse_schema("a bigint")
    for _ in range(8):
        decoder = JsonDecoder(columns, find_new=True)
        decoded = decoder.decode(values)
        if not decoder.has_new_fields():
            break
        columns = evolve(columns, decoder.found)
    else:
        raise AssertionError(f"the columns did not stabilise: {columns}")
    bad = {each.row for each in decoded.bad}
    found = dict(zip(decoded.rows.to_pylist(), decoded.columns.to_pylist(), strict=True))
    for number, record in enumerate(records):
        if number not in bad:
            row = found[number]
            rest = row.pop(REST, None)
            in_rest = leaves(json.loads(rest)) if rest else set()
            assert leaves(row) | in_rest == leaves(record)
            assert not leaves(row) & in_rest
