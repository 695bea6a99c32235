"""Goal: schedules wait in the partition of their topic; limits hold for all of them; ids that ended
are remembered for a while.
"""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import InvalidRequest, StagingFull
from lakemq.broker_core.scheduling.queue import PendingSchedule, ScheduleLimits, ScheduleQueue
from lakemq.broker_core.transactions.state import StagedRef

LIMITS = ScheduleLimits(batches_max=3, bytes_max=100, horizon_ms=1000)


def waiting(name: str, due_ms: int, *, log: int = 0, offset: int = 0) -> PendingSchedule:
    return PendingSchedule(name, due_ms, "t", "0" * 32, 0, 1, 10, log, offset)


def queue_of(*some: PendingSchedule) -> ScheduleQueue:
    queue = ScheduleQueue(LIMITS)
    for each in some:
        queue.add(each)
        queue[each.log_partition].schedule(each)
    return queue


def given(queue: ScheduleQueue, now_ms: int, log: int = 0) -> list[str]:
    return [each.key for each in queue[log].take(now_ms, 100, 1000)]


def test_partitions_do_not_mix() -> None:
    queue = queue_of(waiting("a", 1, log=0), waiting("b", 1, log=1))
    assert (len(queue), queue.size_bytes) == (2, 20)
    assert (given(queue, 5, 1), given(queue, 5, 0)) == (["b"], ["a"])


def test_an_id_that_is_used_again_counts_once_in_its_partition() -> None:
    queue = queue_of(waiting("a", 1, log=0))
    queue.end("a", 0, 5)
    again, elsewhere = waiting("a", 2, log=0), waiting("a", 3, log=1)
    queue.add(again)
    assert (queue.ended_ms("a"), queue.find("a")) == (None, again)
    # Another node has taken it under the same id, and this one has taken over from it: neither is
    # lost.
    queue.add(elsewhere)
    assert (len(queue), queue[0].get("a"), queue[1].get("a")) == (2, again, elsewhere)


def test_what_is_not_scheduled_is_not_shown() -> None:
    first, second, third = (
        waiting(name, due_ms) for name, due_ms in (("c", 3), ("a", 1), ("b", 2))
    )
    queue = queue_of(first, second, third)
    queue.add(waiting("d", 1, log=1))
    queue[0].unschedule("b")
    assert queue.upcoming() == [second, first]


def test_what_ended_is_remembered_for_a_while() -> None:
    queue = queue_of(waiting("a", 1), waiting("b", 2), waiting("c", 3))
    queue.end("a", 0, 5)
    queue.end("b", 0, 6)
    assert given(queue, 9) == ["c"]
    assert (queue.ended_ms("a"), queue.ended_ms("c"), len(queue)) == (5, None, 1)
    assert queue.expire_ended(0, 5) == []
    assert queue.expire_ended(0, 6) == ["a"]
    assert (queue.ended_ms("a"), queue.ended_ms("b")) == (None, 6)
    queue.end("a", 0, 8)
    queue.end("b", 0, 9)
    assert queue.expire_ended(0, 9) == ["a"]
    queue.add(waiting("d", 1, log=1))
    queue.drop(0)
    assert (queue.ended_ms("b"), len(queue)) == (None, 1)


def test_a_commit_names_a_batch_by_its_place() -> None:
    assert waiting("a", 1, log=2, offset=7).entry == StagedRef(2, 7, 1)


def test_limits() -> None:
    queue = ScheduleQueue(LIMITS)
    queue.check("x" * 64, 1500, 100, 500)
    with pytest.raises(InvalidRequest, match="deliver_at_ms is 1501"):
        queue.check("x", 1501, 10, 500)
    for bad in ("", "x" * 65, "\x00"):
        with pytest.raises(InvalidRequest, match="schedule_id"):
            queue.check(bad, 0, 10, 0)
    with pytest.raises(StagingFull, match="bytes"):
        queue.check("x", 0, 101, 0)
    for number in range(3):
        queue.add(waiting(str(number), 1))
    with pytest.raises(StagingFull, match="3 batches"):
        queue.check("x", 0, 1, 0)
    queue.end("1", 0, 1)
    queue.check("x", 0, 1, 0)
