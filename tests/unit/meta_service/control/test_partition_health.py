"""What a partition lacks."""

from __future__ import annotations

import pytest

from lakemq.meta_service.api.partition_health import lacks
from lakemq.meta_service.api.types import PartitionDescription, TopicDescription


@pytest.mark.parametrize(
    ("replicas", "in_sync", "target", "leader", "minimum", "expected"),
    [
        ("abc", "abc", "", "a", 2, ()),
        ("abc", "ab", "", "a", 2, ("under-replicated",)),
        ("abc", "a", "", "a", 2, ("under-min-in-sync", "under-replicated")),
        ("abc", "", "", None, 1, ("leaderless", "under-min-in-sync", "under-replicated")),
        ("abcd", "abc", "bcd", "a", 2, ("moving",)),
        ("abcd", "ab", "bcd", "a", 2, ("under-replicated", "moving")),
        ("ab", "ab", "", "a", 1, ("under-replicated",)),
    ],
)
def test_lacks(
    replicas: str, in_sync: str, target: str, leader: str | None, minimum: int, expected: object
) -> None:
    partition = PartitionDescription(
        0, leader, 1, 1, tuple(replicas), tuple(in_sync), tuple(target), min_in_sync=minimum
    )
    topic = TopicDescription("t", "0" * 32, (partition,), {}, 1, replication=3)
    assert lacks(topic, partition) == expected


def test_a_topic_that_wants_no_number_wants_the_replicas_that_it_has() -> None:
    partition = PartitionDescription(0, "a", 1, 1, ("a", "b"), ("a",))
    topic = TopicDescription("t", "0" * 32, (partition,), {}, 1)
    assert lacks(topic, partition) == ("under-replicated",)
