"""Replicas beyond what a topic wants are dropped, and no longer counted where they were."""

from __future__ import annotations

from collections import Counter

from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription, TopicDescription
from lakemq.meta_service.control.balance import _Planner, repair

TOPIC_ID = "0" * 32
NODES = [NodeRegistration(name, {}, "") for name in "abc"]


def topic(partitions: int) -> TopicDescription:
    three = ("a", "b", "c")
    found = [PartitionDescription(n, three[n % 3], 0, 0, three, three) for n in range(partitions)]
    return TopicDescription("t", TOPIC_ID, tuple(found), {}, 1, 2)


def test_surplus_goes_and_leaders_stay() -> None:
    moves = repair([topic(6)], NODES, (), {})
    assert [len(move.target) for move in moves] == [2] * 6
    assert all("abc"[move.partition % 3] in move.target for move in moves)
    assert Counter(node for move in moves for node in move.target) == {"a": 4, "b": 4, "c": 4}


def test_what_is_dropped_is_not_counted_any_more() -> None:
    planner = _Planner([topic(4)], NODES, (), {}, keeps_without_leader=True)
    moves = planner.repair()
    held = Counter((TOPIC_ID, node) for move in moves for node in move.target)
    assert +planner._of_topic == held
