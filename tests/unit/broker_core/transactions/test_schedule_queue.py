"""Goal: what waits is given once, in the order of its time, when it is due; limits hold; what is
cancelled, or not on disk yet, is not given.
"""

from __future__ import annotations

import random

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, StagingFull
from lakemq.broker_core.scheduling.queue import PendingSchedule, ScheduleLimits, ScheduleQueue

LIMITS = ScheduleLimits(batches_max=3, bytes_max=100, horizon_ms=1000)


def waiting(
    name: str, due_ms: int, *, log: int = 0, offset: int = 0, durable: bool = True
) -> PendingSchedule:
    found = PendingSchedule(name, due_ms, "t", "0" * 32, 0, 1, 10, log, offset)
    found.durable = durable
    return found


def given(timer: ScheduleQueue, now_ms: int, log: int = 0) -> list[str]:
    return [each.schedule_id for each in timer.take_due(log, now_ms, 100, 1000)]


def test_what_is_due_comes_in_the_order_of_its_time() -> None:
    timer = ScheduleQueue(LIMITS)
    for name, due_ms in (("c", 30), ("a", 10), ("b", 20)):
        timer.add(waiting(name, due_ms))
    assert given(timer, 9) == []
    assert given(timer, 20) == ["a", "b"]
    assert given(timer, 20) == []
    assert timer.next_ms(0) == 30


def test_partitions_do_not_mix() -> None:
    timer = ScheduleQueue(LIMITS)
    timer.add(waiting("a", 1, log=0))
    timer.add(waiting("b", 1, log=1))
    assert (given(timer, 5, 1), given(timer, 5, 0)) == (["b"], ["a"])


def test_what_is_not_on_disk_is_not_given() -> None:
    timer = ScheduleQueue(LIMITS)
    late = waiting("a", 1, durable=False)
    timer.add(late)
    assert (given(timer, 5), timer.next_ms(0)) == ([], None)
    timer.became_durable(late)
    assert given(timer, 5) == ["a"]


def test_what_is_put_back_comes_again_and_what_ended_does_not() -> None:
    timer = ScheduleQueue(LIMITS)
    timer.add(waiting("a", 1))
    timer.add(waiting("b", 2))
    taken = timer.take_due(0, 5, 100, 1000)
    timer.end("a", 0, 5)
    timer.put_back(taken)
    assert given(timer, 5) == ["b"]
    assert (timer.ended_ms("a"), timer.ended_ms("b"), len(timer)) == (5, None, 1)
    assert timer.expire_ended(0, 5) == []
    assert timer.expire_ended(0, 6) == ["a"]
    assert timer.ended_ms("a") is None


def test_as_much_as_goes_at_a_time() -> None:
    timer = ScheduleQueue(LIMITS)
    for number in range(5):
        timer.add(waiting(str(number), number))
    assert [each.schedule_id for each in timer.take_due(0, 9, 2, 1000)] == ["0", "1"]
    assert [each.schedule_id for each in timer.take_due(0, 9, 100, 5)] == ["2"]
    assert given(timer, 9) == ["3", "4"]


def test_limits() -> None:
    timer = ScheduleQueue(LIMITS)
    timer.check("x" * 64, 1500, 10, 500)
    with pytest.raises(InvalidRequest, match="deliver_at_ms is 1501"):
        timer.check("x", 1501, 10, 500)
    for bad in ("", "x" * 65, "\x00"):
        with pytest.raises(InvalidRequest, match="schedule_id"):
            timer.check(bad, 0, 10, 0)
    with pytest.raises(StagingFull, match="bytes"):
        timer.check("x", 0, 101, 0)
    for number in range(3):
        timer.add(waiting(str(number), 1))
    with pytest.raises(StagingFull, match="3 batches"):
        timer.check("x", 0, 1, 0)
    timer.remove("1")
    timer.check("x", 0, 1, 0)


def test_places_are_found_by_offset() -> None:
    timer = ScheduleQueue(LIMITS)
    timer.add(waiting("a", 1, log=2, offset=7))
    assert [each.schedule_id for each in timer.at(2, [6, 7])] == ["a"]
    timer.remove("a")
    assert timer.at(2, [7]) == []


def test_many_cancelled_ones_take_no_room() -> None:
    timer, dice = ScheduleQueue(ScheduleLimits(10**6, 10**9, 10**9)), random.Random(1)
    for number in range(5000):
        timer.add(waiting(str(number), dice.randrange(10**6), offset=number))
        if number >= 10:
            timer.remove(str(number - 10))
    assert len(timer) == 10
    assert len(timer._due[0]) < 200
    assert timer.size_bytes == 100
