"""Goal: devices are counted apart, their number is bounded, and a table that was stored goes on as
if it had never stopped."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.records.ledger_rule import ledger_rule
from lakemq.plugins.ledger.device_table import DeviceTable, stored_rule
from lakemq.plugins.ledger.reading import DEVICE_MAX_BYTES, Reading

SEQUENCE = "sequence=$.n"
INTERVAL = "interval=10s"
TIMED = "interval=10s; time=$.t"


def table_of(text: str, devices_max: int = 100) -> DeviceTable:
    rule = ledger_rule(text)
    assert rule is not None
    return DeviceTable(rule, text, devices_max)


def fed(table: DeviceTable, numbers: Iterable[tuple[str | None, int | None]]) -> DeviceTable:
    for name, number in numbers:
        offset = table.position
        table.take(Reading(offset, 1000 * offset, name, number, None))
    return table


def timed(table: DeviceTable, times: Iterable[int]) -> DeviceTable:
    for time_ms in times:
        table.take(Reading(table.position, time_ms, "d", None, None))
    return table


def moved(table: DeviceTable) -> DeviceTable:
    """What is stored of it, read by a new life."""
    copy = table_of(table.rule_text, 100)
    copy.restore_head(table.stored_head("t", 0))
    for name in sorted(table.devices):
        copy.restore(table.stored(name, "t", 0) or b"")
    copy.restored()
    return copy


def test_devices_are_counted_apart() -> None:
    table = fed(table_of(SEQUENCE), [("a", 1), ("b", 7), ("a", 3), ("b", 8), ("b", 8), ("a", 2)])
    a, b = table.devices["a"].window, table.devices["b"].window
    assert (a.missing, a.gaps, a.late, a.duplicates) == (0, 1, 1, 0)
    assert (b.missing, b.gaps, b.late, b.duplicates) == (0, 0, 0, 1)
    assert (table.position, table.records) == (6, 6)
    assert table.last_number(table.devices["a"]) == 3


def test_what_can_not_be_read_is_counted_and_makes_no_device() -> None:
    table = fed(table_of(SEQUENCE), [(None, 1), ("a", None), ("a", 1)])
    assert (table.skipped.unread, table.records, list(table.devices)) == (2, 3, ["a"])
    table = table_of(TIMED)
    table.take(Reading(0, 5, "a", None, None))
    assert table.skipped.unread == 1


def test_the_device_that_was_silent_longest_is_forgotten() -> None:
    table = fed(table_of(SEQUENCE, 2), [("a", 1), ("b", 1), ("a", 2), ("c", 1)])
    assert list(table.devices) == ["a", "c"]
    assert table.skipped.evicted == 1
    assert table.stored("b", "t", 0) is None
    assert "b" in table.changed, "its row must go too"


def test_intervals() -> None:
    jitter = [0, 12_000, 19_000, 31_000]
    table = timed(table_of(INTERVAL), [*jitter, 71_000, 50_000, 71_500])
    device = table.devices["d"]
    window = device.window
    assert (window.missing, window.gaps, window.late, window.duplicates) == (2, 1, 1, 1)
    assert table.last_number(device) is None
    assert table.overdue(device, 71_000 + 14_000) == 0
    assert table.overdue(device, 71_000 + 36_000) == 3
    assert table_of(SEQUENCE).overdue(device, 10**12) is None


def test_a_clock_that_drifts_misses_nothing() -> None:
    table = timed(table_of(INTERVAL), (n * 10_900 for n in range(500)))
    assert counts(table) == (0, 0, 0, 0)


def counts(table: DeviceTable) -> tuple[int, int, int, int]:
    window = table.devices["d"].window
    return window.missing, window.late, window.duplicates, window.strays


def test_times_of_the_device_tell_how_late_it_was() -> None:
    table = table_of(TIMED)
    for offset, (at_ms, taken_ms) in enumerate([(1_000, 900), (61_000, 11_000), (61_001, 61_500)]):
        table.take(Reading(offset, at_ms, "d", None, taken_ms))
    device = table.devices["d"]
    assert (device.delay_ms, device.delay_max_ms) == (-499, 50_000)
    assert (device.newest_ms, device.window.missing) == (61_500, 4)


def test_what_retention_deleted_is_told() -> None:
    table = fed(table_of(SEQUENCE), [("a", 1)])
    table.skip_to(10)
    assert (table.skipped.deleted, table.position) == (9, 10)


NUMBERS = st.lists(
    st.tuples(st.sampled_from(["a", "b/c", "ü", None]), st.integers(0, 4000) | st.none()),
    max_size=30,
)


@given(NUMBERS, NUMBERS, st.sampled_from([SEQUENCE, SEQUENCE + "; wrap=256", INTERVAL]))
def test_a_table_that_was_stored_goes_on_as_if_it_had_not_stopped(
    before: list[tuple[str | None, int | None]],
    after: list[tuple[str | None, int | None]],
    rule: str,
) -> None:
    whole = fed(table_of(rule), [*before, *after])
    copy = fed(moved(fed(table_of(rule), before)), after)
    assert copy.devices == whole.devices
    assert list(copy.devices) == list(whole.devices), "the order in which they are forgotten"
    assert copy.stored_head("t", 0) == whole.stored_head("t", 0)


def test_a_smaller_limit_counts_for_what_is_stored_too() -> None:
    table = fed(table_of(SEQUENCE), [("a", 1), ("b", 1), ("c", 1)])
    small = table_of(SEQUENCE, 1)
    for name in ("c", "a", "b"):
        small.restore(table.stored(name, "t", 0) or b"")
    small.restored()
    assert list(small.devices) == ["c"]
    assert (small.skipped.evicted, sorted(small.changed)) == (2, ["a", "b"])


@pytest.mark.parametrize("name", ["offset", "records", "newest_ms", "window", "unread"])
@pytest.mark.parametrize("value", [b"1e999", b'"x"', b'[1e999,0,"f",null]', b"{}"])
def test_numbers_that_are_none_are_refused_when_they_are_read(name: str, value: bytes) -> None:
    """And not later, as by the order of devices: the node would not start."""
    table = fed(table_of(SEQUENCE), [("d", 1)])
    is_head = name == "unread"
    stored = table.stored_head("t", 0) if is_head else table.stored("d", "t", 0) or b""
    field = name.encode()
    wrong = re.sub(rb'"%b":(\[.*?\]|[^,}]*)' % field, b'"%b":%b' % (field, value), stored)
    assert wrong != stored
    with pytest.raises(ValueError, match=r"."):
        (table.restore_head if is_head else table.restore)(wrong)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"v":1}', b'{"v":2}', b"[" * 50_000])
def test_values_of_others_are_refused(value: bytes) -> None:
    table = table_of(SEQUENCE)
    with pytest.raises(ValueError, match=r"."):
        table.restore(value)
    with pytest.raises(ValueError, match=r"."):
        table.restore_head(value)
    if value != b'{"v":1}':
        with pytest.raises(ValueError, match=r"."):
            stored_rule(value)


DEVICES = 2_000


def memory_of(devices_max: int, names: Iterable[str]) -> float:
    """Bytes per device of a table that has counted some numbers of each name, in rounds."""
    tracemalloc.start()
    try:
        table = table_of("sequence=$.n; time=$.t", devices_max)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        kept = list(names)
        gc.collect()
        own, _ = tracemalloc.get_traced_memory()
        for number in (2**52, 2**52 + 3, 2**52 + 900, 2**52 + 5, 2**52 + 2000, 9, 2**52 + 1999):
            for name in kept:
                at_ms = 1_700_000_000_000 + table.position
                table.take(Reading(table.position, at_ms, name, number, at_ms - 7))
            table.changed.clear()  # as when they are stored
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        assert len(table.devices) == devices_max
        # Names that are kept here are the table's, too.
        return (after - own + (own - before) * devices_max / len(kept)) / devices_max
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "most"),
    [("d-{:08d}", 800), ("{:0256d}", 1024), ("\N{SATELLITE}{:0252d}", 1_900)],
    ids=["short", "longest", "longest, not ASCII"],
)
def test_a_device_takes_a_kilobyte(name: str, most: int) -> None:
    assert len(name.format(0).encode()) <= DEVICE_MAX_BYTES
    assert memory_of(DEVICES, (name.format(number) for number in range(DEVICES))) < most


def test_devices_that_come_and_go_take_no_more() -> None:
    assert memory_of(DEVICES, (f"d-{number:08d}" for number in range(5 * DEVICES))) < 1024
