"""Goal: a lease counts from the sending, slots are numbered once."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.replication import slots
from lakemq.broker_core.replication.lease import Lease
from lakemq.broker_core.replication.slots import FollowerSlots, LeaderSlots, SlotKey
from lakemq.broker_core.replication.types import Ask
from lakemq.meta_service.control.failure_detector import HEARTBEAT_TIMEOUT_S


def test_a_lease_counts_from_the_sending_of_what_was_answered() -> None:
    lease = Lease(2.0)
    lease.sent(1, 10.0)
    assert not lease.held(10.0)
    lease.answered(1)
    assert lease.held(11.9) and not lease.held(12.0)
    assert lease.left_s(11.5) == 0.5 and lease.left_s(13.0) == 0.0
    lease.sent(2, 11.0)
    lease.sent(3, 12.0)
    lease.answered(3)
    lease.answered(2)  # late: it does not shorten the lease
    lease.answered(99)
    assert lease.held(13.9) and not lease.held(14.0)


def test_a_broken_stream_shortens_the_lease() -> None:
    lease = Lease(2.0)
    lease.sent(1, 10.0)
    lease.answered(1)
    lease.sent(2, 10.5)
    lease.shorten(11.0)
    assert lease.held(11.2) and not lease.held(11.3)
    lease.answered(2)
    assert not lease.held(11.3), "it was sent before the stream broke"
    lease.sent(3, 11.2)
    lease.answered(3)
    assert lease.held(13.0)


def test_a_fenced_node_has_no_lease() -> None:
    lease = Lease(2.0)
    lease.sent(1, 10.0)
    lease.sent(2, 10.1)
    lease.answered(1)
    lease.end()
    lease.answered(2)
    assert not lease.held(10.2)


def test_heartbeats_without_answers_take_no_memory() -> None:
    lease = Lease(2.0)
    for number in range(1000):
        lease.sent(number, float(number))
    assert len(lease._sent) < 100
    lease.answered(999)
    assert lease.held(1000.9)


def test_a_number_is_not_used_twice_on_a_stream() -> None:
    mine = FollowerSlots()
    first = mine.open(SlotKey("t", 0, 3))
    with pytest.raises(ValueError, match="slot already"):
        mine.open(SlotKey("t", 0, 4))
    assert mine.key(first) == SlotKey("t", 0, 3) and mine.number("t", 0) == first
    assert mine.close("t", 0) == first
    assert mine.close("t", 0) is None
    second = mine.open(SlotKey("t", 0, 4))
    assert (first, second) == (1, 2) and mine.key(first) is None
    theirs = LeaderSlots()
    for number in (first, second):
        theirs.open(number, SlotKey("t", number, 4))


def test_only_news_is_told() -> None:
    mine = FollowerSlots()
    number = mine.open(SlotKey("t", 0, 3))
    ask = Ask(Offset(5), 3, Offset(4))
    assert mine.changed(number, ask)
    assert not mine.changed(number, ask)
    assert mine.changed(number, ask._replace(durable=Offset(5)))


def test_the_leader_checks_numbers_and_their_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS_MAX", 2)
    theirs = LeaderSlots()
    theirs.open(1, SlotKey("t", 0, 3))
    with pytest.raises(ValueError, match="ascend"):
        theirs.open(1, SlotKey("t", 1, 3))
    theirs.open(5, SlotKey("t", 1, 3))
    with pytest.raises(ValueError, match="is the most"):
        theirs.open(6, SlotKey("t", 2, 3))
    assert theirs.close(5) == SlotKey("t", 1, 3)
    assert theirs.key(5) is None and theirs.key(1) == SlotKey("t", 0, 3) and len(theirs) == 1
    mine = FollowerSlots()
    mine.open(SlotKey("t", 0, 3))
    mine.open(SlotKey("t", 1, 3))
    with pytest.raises(ValueError, match="is the most"):
        mine.open(SlotKey("t", 2, 3))


def test_a_lease_ends_before_another_node_is_elected() -> None:
    """It counts from when a heartbeat leaves, the controller's time from when it comes."""
    lease = Lease()
    lease.sent(1, 10.0)
    lease.answered(1)
    assert lease.held(10.0 + HEARTBEAT_TIMEOUT_S - 0.1)
    assert not lease.held(10.0 + HEARTBEAT_TIMEOUT_S)
