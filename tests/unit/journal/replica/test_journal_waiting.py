"""Goal: appends that wait for the high watermark are answered in the order of their offsets, and
keeping one takes no longer the more there are.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.plugins.journal.log.waiting import Uncommitted


class Counted(int):
    """An offset that counts how often it is compared."""

    compared: ClassVar[int] = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)


def result(offset: int) -> AppendResult:
    return AppendResult(Offset(offset), Offset(Counted(offset)), Acks.REPLICATED)


def test_duplicates_are_answered_behind_their_originals() -> None:
    waiting, told = Uncommitted(), []

    def done(name: str) -> Any:
        return lambda outcome: told.append(name)

    for offset in (1, 2, 3, 4):
        waiting.add(result(offset), done(f"{offset}"))
    for offset in (3, 1, 1, 5, 4):
        waiting.add(result(offset), done(f"{offset} again"))
    for high_watermark in (0, 2, 4):
        for each, tell in waiting.take(high_watermark):
            tell(each)
    assert told == ["1", "1 again", "1 again", "2", "3", "3 again"]
    for tell in waiting.take_all():
        tell(None)
    assert sorted(told[6:]) == ["4", "4 again", "5 again"]
    assert waiting.take(9) == []


def test_a_duplicate_takes_no_walk_through_all_that_wait() -> None:
    """A producer sends thousands again, while too few replicas are in sync."""
    waiting, count = Uncommitted(), 4096
    for offset in range(count):
        waiting.add(result(offset), lambda outcome: None)
    Counted.compared = 0
    for offset in range(count):
        waiting.add(result(offset), lambda outcome: None)
    assert Counted.compared < 32 * count
    assert len(waiting.take(count)) == 2 * count
