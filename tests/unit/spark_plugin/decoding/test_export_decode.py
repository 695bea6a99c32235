"""JSON values to columns, and what becomes of those that don't decode."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.schemas.types import framed
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.column_types import Type, parse_schema
from lakemq.spark_plugin.export.decoding.decode import JsonDecoder
from tests.support.seeds import examples

ALL_TYPES = (
    "s string, b boolean, i int, l bigint, t tinyint, f float, d double, day date, at timestamp, "
    "ms timestamp_ms, sec timestamp_s, many array<int>, in struct<x: int, y: string>"
)


def decode(schema, *values):
    decoded = JsonDecoder(parse_schema(schema)).decode(pa.array(values, pa.binary()))
    decoded.columns.validate(full=True)
    bad = {each.row: (each.error_class, each.error) for each in decoded.bad}
    good = dict(zip(decoded.rows.to_pylist(), decoded.columns.to_pylist(), strict=True))
    assert sorted([*good, *bad]) == list(range(len(values))), "every row is good or bad"
    return good, bad


def test_every_type():
    value = {
        "s": "ü", "b": True, "i": -1, "l": 2**62, "t": 7, "f": 0.5, "d": 1, "day": "2024-02-29",
        "at": "2024-01-01T00:00:00.5+02:00", "ms": 1700000000123, "sec": 1700000000.25,
        "many": [1, None], "in": {"x": 1, "z": "left out"}, "unknown": {},
    }  # fmt: skip
    good, bad = decode(ALL_TYPES, json.dumps(value).encode())
    assert bad == {}
    at = datetime.datetime(2023, 12, 31, 22, 0, 0, 500_000, datetime.UTC)
    assert good[0] == {
        "s": "ü", "b": True, "i": -1, "l": 2**62, "t": 7, "f": 0.5, "d": 1.0,
        "day": datetime.date(2024, 2, 29), "at": at,
        "ms": datetime.datetime.fromtimestamp(1700000000.123, datetime.UTC),
        "sec": datetime.datetime.fromtimestamp(1700000000.25, datetime.UTC),
        "many": [1, None], "in": {"x": 1, "y": None},
    }  # fmt: skip


def test_a_frame_of_a_schema_registry_is_left_out():
    """Ids of all kinds of bytes, and among values without a frame."""
    ids = (1, 10, 0x7B7B7B7B, 0xFFFFFFFF)
    values = [framed(each, b'{"i":%d}' % row) for row, each in enumerate(ids)]
    good, bad = decode("i int", *values, b'{"i":4}', None, b"\0", framed(7, b""), framed(7, b"[]"))
    assert good == {row: {"i": row} for row in range(5)}
    assert {row: error for row, (error, _) in bad.items()} == {
        5: "null_value", 6: "not_json", 7: "not_json", 8: "not_json",
    }  # fmt: skip
    growing = JsonDecoder((), find_new=True)
    growing.decode(pa.array(values, pa.binary()))
    assert growing.found == {"i": Type("bigint")}


def test_what_a_record_lacks_is_null():
    good, bad = decode(ALL_TYPES, b"{}", b'{"s":null,"ms":null,"day":null,"in":null}')
    assert bad == {}
    assert set(good[0].values()) == set(good[1].values()) == {None}


@pytest.mark.parametrize(
    ("value", "error_class", "error"),
    [
        (None, "null_value", "has no value"),
        (b"\xff{}", "not_utf8", "invalid start byte at byte 0"),
        (b"null", "not_json", "a JSON object is wanted, not NoneType"),
        (b"[]", "not_json", "a JSON object is wanted, not list"),
        (b"", "not_json", "Expecting value"),
        (b"   ", "not_json", "Expecting value"),
        (b'{"i":1', "not_json", "Missing a comma"),
        (b'{"i":1}{"i":2}', "not_json", "2 values in one record"),
        (b'{"i":1} null', "not_json", "2 values in one record"),
        (b"[" * 100_000, "not_json", "recursion"),
        (b'{"i":1}\n{"i":2}', "not_json", "Extra data"),
        (b'{"s":"a\nb"}', "not_json", "Invalid control character"),
        (b'{"s":"\\ud800"}', "not_json", "surrogate"),
        (b'{"i":1,"i":2}', "not_json", "twice"),
        (b'{"i":"1"}', "wrong_type", "changed from number to string"),
        (b'{"i":1.0}', "wrong_type", "couldn't parse:1.0"),
        (b'{"i":3000000000}', "wrong_type", "couldn't parse:3000000000"),
        (b'{"day":"x"}', "wrong_type", "Failed to parse string: 'x'"),
        (b'{"at":"x"}', "wrong_type", "couldn't parse:x"),
        (b'{"ms":99999999999999999}', "wrong_type", "overflow"),
        (b'{"sec":1e300}', "wrong_type", "Float value 1"),
        (b'{"many":[1,"x"]}', "wrong_type", "changed from number to string"),
        (b'{"in":{"x":true}}', "wrong_type", "changed from number to boolean"),
    ],
)
def test_what_does_not_decode_is_told_apart(value, error_class, error):
    good, bad = decode(ALL_TYPES, value)
    assert bad[0][0] == error_class
    assert error in bad[0][1]
    assert len(bad[0][1]) <= 300

    # Neighbours stay good, wherever the bad row stands, and keep their own numbers.
    for place in range(4):
        values = [b'{"i":%d}' % n for n in range(4)]
        values[place] = value
        good, bad = decode("i int, " + ALL_TYPES.replace("i int, ", ""), *values)
        assert list(bad) == [place]
        assert {row: each["i"] for row, each in good.items()} == {
            n: n for n in range(4) if n != place
        }


def test_a_value_that_would_hide_a_neighbours_loss_is_noticed():
    """Two documents in one record and none in the next make the right number of rows."""
    good, bad = decode("i int", b'{"i":1}{"i":2}', b"", b'{"i":3}')
    assert {row: each["i"] for row, each in good.items()} == {2: 3}
    assert sorted(bad) == [0, 1]


@pytest.mark.parametrize("opened, closed", [(b'{"a":', b"}"), (b"[", b"]")])
def test_a_value_of_too_many_levels_is_bad_where_fields_become_columns(opened, closed):
    """Arrow's types for what it finds have a level for each of the value's, until there is no stack
    left; brackets within text are none."""
    deep = b'{"i": 1, "new": ' + opened * 100_000 + b"1" + closed * 100_000 + b"}"
    text = json.dumps({"i": 2, "new": "\\\\" + "[{" * 1000, "x": '"'}).encode()
    decoder = JsonDecoder(parse_schema("i int"), find_new=True)
    decoded = decoder.decode(pa.array([text, deep, None, text], pa.binary()))
    assert decoded.rows.to_pylist() == [0, 3]
    assert [(each.row, each.error) for each in decoded.bad] == [
        (1, "more than 100 levels"),
        (2, "the record has no value"),
    ]
    assert decoder.found == {"i": Type("int"), "new": Type("string"), "x": Type("string")}
    good, bad = decode("i int", text, deep)  # nobody looks at the new field
    assert list(good) == [0, 1]


def test_pretty_printed_objects_decode():
    good, bad = decode("i int", b'{\n  "i": 5\n}\n', b'\t {"i":6}\r')
    assert bad == {}
    assert [each["i"] for each in good.values()] == [5, 6]


def test_many_bad_rows_are_sorted_out_and_named():
    values = [b'{"i":"x"}' if n % 3 else b'{"i":%d}' % n for n in range(1000)]
    good, bad = decode("i int", *values)
    assert {row: each["i"] for row, each in good.items()} == {n: n for n in range(0, 1000, 3)}
    assert bad[1] == ("wrong_type", 'i is int; "x" is not')


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["i", "s", "in", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["i", "d", "s", "many", "in", "at"]), JSON, max_size=4)
VALUES = st.lists(
    OBJECTS.map(json.dumps).map(str.encode)
    | JSON.map(json.dumps).map(str.encode)
    | st.binary(max_size=8)
    | st.none(),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(VALUES)
def test_a_row_decodes_the_same_alone_and_among_others(values):
    """In whatever company: halving and sorting out never change a verdict or a value."""
    good, bad = decode(ALL_TYPES, *values)
    for row, value in enumerate(values):
        alone, _ = decode(ALL_TYPES, value)
        assert (row in good) == bool(alone)
        if alone:
            assert good[row] == alone[0]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(OBJECTS, min_size=2, max_size=20))
def test_what_is_called_a_mismatch_is_one_for_arrow_too(objects):
    """The quick check must not condemn what the parser would take."""
    from lakemq.spark_plugin.export.decoding import decode as module

    columns = parse_schema(ALL_TYPES)
    decoder = JsonDecoder(columns)
    for value in objects:
        line = json.dumps(value)
        if module._mismatch_in(line, columns):
            with pytest.raises(pa.ArrowInvalid):
                decoder._parse_block(pa.array([line]))


def test_a_column_list_is_parsed():
    inner = Type("struct", (("x", Type("bigint")), ("y", Type("string"))))
    assert parse_schema("a INT,`b c` array<struct<x: bigint, y string>>") == (
        ("a", Type("int")),
        ("b c", Type("array", (("element", inner),))),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a column name is missing"),
        ("a", "there is no type"),
        ("a itn", "there is no type itn; did you mean int?"),
        ("a int b int", "'b' is not expected"),
        ("a array<int", "'the end' is not '>'"),
        ("a array<timestamp_ms>", "can't stand inside array or struct"),
        ("a int, a int", "column a is there twice"),
        ("_meta int", "_meta is taken"),
        ("a int; b int", "';' is not expected"),
    ],
)
def test_a_column_list_that_is_wrong_is_explained(text, problem):
    with pytest.raises(OptionError, match=problem.replace("?", r"\?")):
        parse_schema(text)
