"""Goal: the demo's count sees what is lost, stored twice, or was never sent."""

from __future__ import annotations

from decimal import Decimal

from examples.air_quality.readings import Reading
from examples.cluster.count import Stored, count, record_of

READINGS = [Reading("co", f"2004-03-10T{hour:02}:00:00", Decimal(hour)) for hour in range(5)]
STORED = [record_of(each) for each in READINGS]


def test_everything_once() -> None:
    found = count(READINGS, [], STORED)
    assert found == (5, 5, 0, 0, 0, 0)
    assert found.whole


def test_a_lost_reading() -> None:
    found = count(READINGS, [], STORED[1:])
    assert (found.lost, found.whole) == (1, False)


def test_a_reading_that_was_sent_again_after_the_kill() -> None:
    found = count(READINGS, READINGS[:1], [*STORED, STORED[0]])
    assert (found.twice, found.sent_again, found.whole) == (1, 1, True)


def test_a_reading_stored_twice_for_no_reason() -> None:
    found = count(READINGS, READINGS[:1], [*STORED, STORED[1]])
    assert (found.twice, found.sent_again, found.whole) == (1, 0, False)


def test_a_record_that_no_device_has_sent() -> None:
    found = count(READINGS, [], [*STORED, Stored(b"air/co", b"x")])
    assert (found.unknown, found.whole) == (1, False)


def test_the_same_value_of_two_hours_is_two_readings() -> None:
    same = [READINGS[0], READINGS[0]]
    assert count(same, [], map(record_of, same)).whole
    assert count(same, [], [record_of(READINGS[0])]).lost == 1
