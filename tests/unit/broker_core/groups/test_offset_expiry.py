"""Goal: groups that nobody uses are forgotten, and no other."""

from __future__ import annotations

from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.offset_expiry import OffsetExpiry
from lakemq.broker_core.groups.offset_table import Committed, OffsetTable

PLACE = TopicPartition("t", 0)
RETENTION_MS = 10_000
WALL = 1_000_000_000


def table(**committed_ms: int) -> OffsetTable:
    found = OffsetTable()
    for group, at in committed_ms.items():
        found.put(group, {PLACE: Committed(1, 1, at, "0" * 32)})
    return found


def expiry(session_timeout_max_ms: int = 0) -> OffsetExpiry:
    return OffsetExpiry(
        retention_ms=RETENTION_MS, session_timeout_max_ms=session_timeout_max_ms, started_ms=0
    )


def test_a_group_goes_when_its_newest_commit_is_too_old() -> None:
    found = table(old=WALL - RETENTION_MS, young=WALL - RETENTION_MS + 1)
    found.put("old", {TopicPartition("t", 1): Committed(1, 1, WALL - 2 * RETENTION_MS, "0" * 32)})
    assert expiry().expired(found, (), 5, WALL) == ["old"]
    found.put("old", {TopicPartition("t", 1): Committed(1, 1, WALL - 5, "0" * 32)})
    assert expiry().expired(found, (), 5, WALL) == []


def test_members_keep_a_group_and_its_time_begins_when_they_go() -> None:
    found = table(idle=WALL - 5 * RETENTION_MS)
    rule = expiry()
    assert rule.expired(found, {"idle"}, 1000, WALL) == []
    assert rule.expired(found, (), 1000 + RETENTION_MS - 1, WALL) == []
    assert rule.expired(found, (), 1000 + RETENTION_MS, WALL) == ["idle"]


def test_after_a_start_members_have_time_to_come_back() -> None:
    found = table(idle=WALL - 5 * RETENTION_MS)
    rule = expiry(session_timeout_max_ms=3000)
    assert rule.expired(found, (), 2999, WALL) == []
    assert rule.expired(found, (), 3000, WALL) == ["idle"]


def test_it_is_asked_often_enough() -> None:
    assert expiry().interval_ms == RETENTION_MS // 4
    assert (
        OffsetExpiry(retention_ms=10**9, session_timeout_max_ms=0, started_ms=0).interval_ms
        == 60_000
    )
