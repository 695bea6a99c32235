"""Goal: templates and JSON say what a record is, and what they don't take is told in one line."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.plugins.native.cli.record_text import as_json, headers_of, record_of_json, template
from lakemq.plugins.native.sdk import ConsumerRecord, NewRecord

RECORD = ConsumerRecord("air", 2, 7, 1_767_225_600_123, b"kitchen", b"21\xff", (("u", b"C"),))
USUAL = NewRecord(None, b"usual", (("h", b"1"),), 5)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%v", b"21\xff"),
        (r"%t/%p/%o %k=%v\n", b"air/2/7 kitchen=21\xff\n"),
        (r"%d %T\t%h%%\0\\", b"1767225600123 2026-01-01T00:00:00.123\tu=C%\0\\"),
        ("é", "é".encode()),
    ],
)
def test_a_template(text: str, printed: bytes) -> None:
    assert template(text)(RECORD) == printed


def test_a_record_without_key_and_value() -> None:
    bare = ConsumerRecord("air", 0, 0, 1 << 62, None, None, (("a", None),))
    assert template("[%k][%v][%h]%T")(bare) == b"[][][a=]4611686018427387904 ms"


@pytest.mark.parametrize(("text", "told"), [("%x", "'%x'"), ("a%", "'%'"), (r"\q", r"'\\q'")])
def test_what_is_no_template(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        template(text)
    assert told in str(error.value) and "%v value" in str(error.value)


def test_what_is_printed_can_be_produced_again() -> None:
    again = record_of_json(as_json(RECORD._replace(value=b"21.5")), 1, USUAL)
    assert again == NewRecord(b"21.5", b"kitchen", (("u", b"C"),), 1_767_225_600_123)


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ('{"value": "a"}', USUAL._replace(value=b"a")),
        ('{"value": null, "key": null}', USUAL._replace(value=None, key=None)),
        ('{"value": {"a": [1, 2]}}', USUAL._replace(value=b'{"a":[1,2]}')),
        ('{"value": 1, "headers": {"a": "b"}}', NewRecord(b"1", b"usual", (("a", b"b"),), 5)),
        ('{"value": 1, "timestamp_ms": 9}', USUAL._replace(value=b"1", timestamp_ms=9)),
    ],
)
def test_a_line_of_json(line: str, made: NewRecord) -> None:
    assert record_of_json(line.encode(), 1, USUAL) == made


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"", "line 3: Expecting value"),
        (b"[1]", "line 3: it takes an object"),
        (b'{"valeu": 1}', "line 3: 'valeu' is none of headers, key, timestamp_ms, value"),
        (b'{"key": "a"}', "line 3: 'value' is missing"),
        (b'{"value": 1, "timestamp_ms": "now"}', "line 3: timestamp_ms takes a whole number"),
        (b'{"value": 1, "headers": [["a"]]}', "line 3: headers takes an object or pairs"),
        (b"\xff", "line 3: "),
        (b"[" * 100_000, "line 3: "),
    ],
)
def test_what_is_no_record(line: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        record_of_json(line, 3, USUAL)
    assert str(error.value).startswith(told)


def test_headers_of_options() -> None:
    assert headers_of(["a=1", "b=x=y"]) == (("a", b"1"), ("b", b"x=y"))
    with pytest.raises(InvalidRequest, match="--header 'a': it takes NAME=VALUE"):
        headers_of(["a"])
