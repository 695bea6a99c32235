"""Goal: device, number and time are found where the rule says, and nothing that a device sends can
stop the count: what can't be read is None."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.records.ledger_rule import LedgerRule, ledger_rule
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.ledger.reading import Reading, readings

NOW_MS = 1_700_000_000_000


def rule_of(text: str) -> LedgerRule:
    rule = ledger_rule(text)
    assert rule is not None
    return rule


def read(
    rule: str, value: bytes | None, key: bytes | None = b"dev", headers: tuple[Any, ...] = ()
) -> Reading:
    columns = Columns([value], [key], [encode_headers(headers)])
    (found,) = readings(rule_of(rule), encode(columns, now_ms=NOW_MS), "t", 0, 0)
    return found


def test_places() -> None:
    value = json.dumps({"id": 7, "n": {"seq": 41.0}, "at": "2023-11-14T22:13:19Z"}).encode()
    found = read("device=$.id; sequence=$.n.seq; time=$.at", value)
    assert found == Reading(0, NOW_MS, "7", 41, NOW_MS - 1000)
    found = read(
        "device=client; sequence=header:seq", b"\xff",
        headers=(("mqtt.client", b"c1"), ("seq", b"12"), ("seq", b"13")),
    )  # fmt: skip
    assert found == Reading(0, NOW_MS, "c1", 12, None)
    assert read("interval=1s", None, key=b"a\xff").device == "a\\xff"


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (0, 0), ("17", 17), (2**53 - 1, 2**53 - 1), (2**53, None), (-1, None), (1.5, None),
        (True, None), (None, None), ([1], None), ("x", None), ("٣", None), ("9" * 30, None),
        (1e300, None), (float("inf"), None), (float("nan"), None),
    ],
)  # fmt: skip
def test_numbers(given: object, number: int | None) -> None:
    assert read("sequence=$.n", json.dumps({"n": given}).encode()).number == number


@pytest.mark.parametrize(
    ("given", "time_ms"),
    [
        (1_700_000_000, NOW_MS), (NOW_MS, NOW_MS), (1_700_000_000.5, NOW_MS + 500),
        ("1700000000", NOW_MS), ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-14T23:13:20+01:00", NOW_MS), ("1850-01-01", None), ("soon", None),
        (-5, None), (True, None), (float("nan"), None), (1e300, None), ("1e400", None), ({}, None),
    ],
)  # fmt: skip
def test_times(given: object, time_ms: int | None) -> None:
    assert read("interval=1s; time=$.t", json.dumps({"t": given}).encode()).time_ms == time_ms


@pytest.mark.parametrize(
    "value",
    [b"", b"no JSON", b"[1]", b'"x"', b"[" * 60_000, b'{"n": ' + b" " * 70_000 + b"1}", b"\xff"],
)
def test_values_that_hold_no_number(value: bytes) -> None:
    assert read("sequence=$.n", value).number is None


def test_names_that_are_none() -> None:
    for device in ("x" * 257, "\ud800", None, True, 2**60, {}):
        value = json.dumps({"d": device, "n": 1}).encode()
        assert read("device=$.d; sequence=$.n", value).device is None
    assert read("sequence=$.n", b"{}", key=None).device is None


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_nothing_that_is_sent_stops_the_count(value: bytes, key: bytes) -> None:
    read("device=$.a; sequence=header:a; time=$.b.c", value, key)
    read("device=key; interval=1s; time=$.b", value, key)


def test_records_before_the_start_are_left_out() -> None:
    batch = encode(Columns([b"{}"] * 5, [b"d"] * 5), now_ms=1, base_offset=10)
    found = readings(rule_of("interval=1s"), batch, "t", 0, 13)
    assert [each.offset for each in found] == [13, 14]
