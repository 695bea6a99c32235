"""Counts of partitions that lack something follow every change, and equal a count from scratch."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import DeleteTopic, RegisterNode, SetFeatureLevel
from lakemq.meta_service.catalog.control_commands import SetNodeState
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    CreateReplicatedTopic,
    PageTopics,
    SettlePages,
)
from lakemq.meta_service.catalog.pages.rows import page_ids
from lakemq.meta_service.control.partition_counts import PartitionCounts
from lakemq.meta_service.core.cache import Cache
from tests.support.meta.catalog_rig import Catalog

ID = "ab" * 16
NODES = ("a", "b", "c")


class Rig:
    """A catalog whose changes reach a cache, as through the gateway."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.gateway: Any = SimpleNamespace(cache=Cache(), listeners=[])
        self.counts = PartitionCounts(self.gateway)
        for name in NODES:
            self.do(RegisterNode(name, {}, "", "1", 4, False))
        self.do(SetFeatureLevel(4))
        self.do(PageTopics(1000))

    def do(self, command: Command) -> None:
        applied = self.catalog.do(command)
        assert not applied.result.code, applied.result
        state = applied.state
        self.gateway.cache.update(applied.rows, state.revision, state.applied_index)
        for listener in self.gateway.listeners:
            listener(applied.rows)

    def create(self, name: str, topic_id: str, partitions: int) -> None:
        self.do(CreateReplicatedTopic(name, topic_id, partitions, 3, {}, (), 2))

    def set_state(self, name: str, state: str) -> None:
        epoch = next(n for n in range(1, 4) if NODES[n - 1] == name)
        self.do(SetNodeState(name, epoch, state))

    def now(self) -> dict[str, int]:
        found = {name: count for name, count in self.counts.counts().items() if count}
        again = {n: c for n, c in PartitionCounts(self.gateway).counts().items() if c}
        self.gateway.listeners.pop()
        assert found == again, "what was kept current is not what there is"
        return found


def test_counts_follow_nodes_topics_and_moves() -> None:
    rig = Rig()
    rig.create("t", ID, 40)
    assert rig.now() == {}
    rig.set_state("a", "fenced")
    rig.do(SettlePages(tuple(page_ids(ID, 40)), False))
    assert rig.now() == {"under-replicated": 40}
    rig.do(AlterReplicatedTopic("t", None, None, (), 2, None))
    assert rig.now() == {}, "two replicas are what it wants now"
    rig.set_state("b", "fenced")
    rig.do(SettlePages(tuple(page_ids(ID, 40))[:1], False))
    assert rig.now() == {"under-replicated": 32, "under-min-in-sync": 32, "eligible-used": 32}
    topic = rig.catalog.topic("t")
    epoch = topic.partitions[39].partition_epoch
    rig.do(StartMoves((("t", ID, 39, epoch, ("c", "b")),)))
    assert rig.now().get("moving", 0) == 1
    rig.do(DeleteTopic("t"))
    assert rig.now() == {}


def test_a_topic_that_is_made_again_counts_anew() -> None:
    rig, rng = Rig(), random.Random(1)
    rig.set_state("a", "fenced")
    for number in range(5):
        topic_id = f"{number:032x}"
        size = rng.randrange(1, 100)
        rig.create("t", topic_id, size)
        assert rig.now() == {"under-replicated": size}
        rig.do(DeleteTopic("t"))
        assert rig.now() == {}
