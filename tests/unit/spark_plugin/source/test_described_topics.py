"""Goal: a partition whose leader does not answer is waited for, not taken for one that is empty."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.plugins.native.sdk import Unavailable
from lakemq.plugins.native.sdk.types import PartitionOffsets, TopicOffsets
from lakemq.spark_plugin.source.broker_reader import described, retrying


def topic(state: str, mark: int) -> TopicOffsets:
    partition = PartitionOffsets(0, 0, mark, 0, state, detail="no answer from n1, its leader")
    made: Any = SimpleNamespace(name="t", topic_id="0" * 32, partitions=(partition,))
    return made


class Answers:
    def __init__(self, *topics: TopicOffsets) -> None:
        self.topics = list(topics)

    def describe_topic(self, name: str) -> TopicOffsets:
        return self.topics.pop(0)


@pytest.mark.parametrize("state", ["offline", "remote"])
def test_a_partition_is_described_by_its_leader_or_not_at_all(state: str) -> None:
    client: Any = Answers(topic(state, 0), topic("online", 60))
    with pytest.raises(Unavailable, match="t-0 is .*: no answer from n1, its leader"):
        described(client, "t")
    assert described(client, "t").partitions[0].high_watermark == 60


def test_it_is_waited_for() -> None:
    client: Any = Answers(topic("offline", 0), topic("online", 60))
    found = retrying(lambda: described(client, "t"), 10)
    assert found.partitions[0].high_watermark == 60
