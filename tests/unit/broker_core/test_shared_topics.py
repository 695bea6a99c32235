"""Goal: topics that brokers share get replicas as brokers come, and never stop for it.

Method: the pure next step, for topics as the catalog may have them.
"""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.types import Leadership, TopicInfo
from lakemq.broker_core.topics.shared_topics import Wish, replication_of, wish


def topic(*in_sync: tuple[str, ...], replication: int, minimum: int = 1) -> TopicInfo:
    leaders = tuple(Leadership(nodes[0], 0, nodes, nodes, min_in_sync=minimum) for nodes in in_sync)
    return TopicInfo("_lakemq_offsets", "0" * 32, len(leaders), leaders=leaders,
                     replication=replication)  # fmt: skip


@pytest.mark.parametrize(
    ("brokers", "setting", "found"),
    [(0, 0, (1, 1)), (1, 2, (1, 1)), (2, 0, (2, 1)), (3, 0, (3, 2)), (9, 0, (3, 2)), (5, 3, (3, 3)),
     (2, 2, (2, 2)), (4, 1, (3, 1))],
)  # fmt: skip
def test_up_to_three_and_a_majority(brokers: int, setting: int, found: tuple[int, int]) -> None:
    assert replication_of(brokers, setting) == found


def test_replicas_come_first_and_the_minimum_when_they_are_in_sync() -> None:
    alone = topic(("a",), ("a",), replication=1)
    assert wish(alone, 1) is None
    assert wish(alone, 3) == Wish(replication=3)
    copying = topic(("a", "b", "c"), ("a",), replication=3)
    assert wish(copying, 3) is None
    whole = topic(("a", "b", "c"), ("a", "b"), replication=3)
    assert wish(whole, 3) == Wish(min_in_sync=2)
    assert wish(topic(("a", "b", "c"), replication=3, minimum=2), 3) is None


def test_replicas_stay_when_nodes_are_gone() -> None:
    assert wish(topic(("a", "b", "c"), replication=3, minimum=2), 1) is None


def test_a_topic_of_an_older_catalog_has_as_many_as_it_has() -> None:
    assert wish(topic(("a",), replication=0), 2) == Wish(replication=2)
