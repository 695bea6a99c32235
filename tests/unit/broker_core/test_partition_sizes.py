"""Goal: heartbeats carry sizes of partitions by turns: so many at a time, all of them in the end,
and only what the node leads."""

from __future__ import annotations

from typing import Any

from lakemq.broker_core import partition_sizes
from lakemq.broker_core.api.types import PartitionStatus
from lakemq.broker_core.partition_sizes import LOOKS, ROUND_S, PartitionSizes
from lakemq.broker_core.replication.types import Place

ID = "a" * 32


class Log:
    def __init__(self, size: int) -> None:
        self.size, self.looks = size, 0

    def status(self) -> PartitionStatus:
        self.looks += 1
        return PartitionStatus(0, "online", 0, 0, 0, self.size, 1)


class Partitions:
    """Even ones are led."""

    def __init__(self, count: int) -> None:
        self.logs = {Place(ID, number): Log(number) for number in range(count)}

    def opened(self) -> list[tuple[Place, Any]]:
        return list(self.logs.items())

    def is_leader(self, place: Place) -> bool:
        return place.partition % 2 == 0


def sizes_of(partitions: Partitions) -> PartitionSizes:
    return PartitionSizes(partitions)  # type: ignore[arg-type]


def test_few_are_looked_at_with_a_heartbeat_and_all_of_them_in_the_end() -> None:
    partitions = Partitions(LOOKS * 2 + 10)
    sizes, told = sizes_of(partitions), dict[int, int]()
    for beat in range(3):
        before = sum(log.looks for log in partitions.logs.values())
        told |= {number: size for _, number, size in sizes.look(beat * 0.1)}
        assert sum(log.looks for log in partitions.logs.values()) - before <= LOOKS
    assert told == {number: number for number in range(0, LOOKS * 2 + 10, 2)}
    assert sizes.look(ROUND_S - 0.1) == [], "the round is over"
    assert len(sizes.look(ROUND_S)) == LOOKS // 2


def test_totals_follow_what_comes_and_goes() -> None:
    partitions = Partitions(4)
    sizes = sizes_of(partitions)
    assert sizes.figures() == {"stored_bytes": 0, "led_bytes": 0}
    sizes.look(0)
    assert sizes.figures() == {"stored_bytes": 0 + 1 + 2 + 3, "led_bytes": 0 + 2}
    del partitions.logs[Place(ID, 3)]
    partitions.logs[Place(ID, 2)].size = 20
    sizes.look(ROUND_S)
    sizes.look(2 * ROUND_S)
    assert sizes.figures() == {"stored_bytes": 0 + 1 + 20, "led_bytes": 20}


def test_totals_stay_while_a_round_is_under_way(monkeypatch: Any) -> None:
    monkeypatch.setattr(partition_sizes, "LOOKS", 2)
    partitions = Partitions(4)
    sizes = sizes_of(partitions)
    sizes.look(0)
    sizes.look(1)
    whole = sizes.figures()
    sizes.look(ROUND_S)
    assert sizes.figures() == whole == {"stored_bytes": 6, "led_bytes": 2}
