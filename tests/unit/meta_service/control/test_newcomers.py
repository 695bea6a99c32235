"""Goal: nodes that join get their share of what is nearly empty, whichever member leads meanwhile,
and a change of the leader in a cluster that is settled moves nothing.

Two members' controllers over one catalog, brokers that send heartbeats and catch up, no clock but
the test's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import SetFeatureLevel
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.pages.commands import (
    ChangeInSyncMany,
    CreateReplicatedTopic,
    RegisterBroker,
)
from lakemq.meta_service.catalog.results import Result
from lakemq.meta_service.control.controller import Controller
from lakemq.meta_service.control.failure_detector import NodeReport
from lakemq.meta_service.control.mover import EMPTY_BYTES, REPAIRS_AT_ONCE, WELCOME_S
from lakemq.meta_service.control.newcomers import newcomers
from lakemq.meta_service.core.cache import Cache
from lakemq.meta_service.core.gateway import Gateway
from tests.support.meta.catalog_rig import Catalog, Stored

STEP_S = 0.5
HEARTBEAT_S = 1.5
SIZES_S, SIZES_PAUSE_S = 5.0, 2.0
"""A leader tells the sizes of its partitions so often, each topic so long after the other."""
TOPICS = {"t": "0" * 32, "u": "1" * 32}
PARTITIONS = 24
"""Of each; more than move at once."""
EVEN = {"n1": 8, "n2": 8, "n3": 8}
ENOUGH_S = 40.0
"""All nodes have their share by then, though the leader has changed."""


class Member:
    """A gateway and its controller."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.cache = cluster, Cache()
        self.listeners: list[Any] = []
        self.controller = Controller(
            cast(Gateway, self), Stored(cluster.catalog), lambda: (4, 4), lambda: cluster.now_s
        )

    def leading_term(self) -> int | None:
        cluster = self.cluster
        return cluster.term if cluster.members[cluster.term % 2] is self else None

    async def barrier(self) -> None:
        """Everything is in the cache at once."""

    async def propose(self, command: Command) -> Result:
        return self.cluster.do(command)


@dataclass
class Node:
    """A process of a broker."""

    epoch: int
    began_s: float


class Cluster:
    """One node, and topics that it has made."""

    def __init__(self, size_bytes: int = 0) -> None:
        self.catalog, self.now_s, self.term = Catalog(), 0.0, 0
        self.size_bytes = size_bytes
        self.begun: list[StartMoves] = []
        self.nodes: dict[str, Node] = {}
        self.members: list[Member] = []
        self.members += [Member(self), Member(self)]
        self.do(SetFeatureLevel(4))
        for topic, topic_id in TOPICS.items():
            created = CreateReplicatedTopic(topic, topic_id, PARTITIONS, 1, {}, (), 1)
            assert not self.do(created).code
        self.start("n1")

    def do(self, command: Command) -> Result:
        if isinstance(command, StartMoves):
            self.begun.append(command)
        applied = self.catalog.do(command)
        for member in self.members:
            state = applied.state
            member.cache.update(applied.rows, state.revision, state.applied_index)
            for listener in member.listeners:
                listener(applied.rows)
        return applied.result

    def start(self, name: str) -> None:
        """The node, for the first time or again."""
        storage = name.encode().hex().zfill(32)
        registered = self.do(RegisterBroker(name, {}, "", "1", 4, True, storage, (), False, ()))
        assert not registered.code
        self.nodes[name] = Node(registered.payload, self.now_s)
        self._heartbeat(name, self.nodes[name])

    def change_leader(self) -> None:
        self.term += 1

    async def step(self) -> None:
        self.now_s += STEP_S
        for member in self.members:
            await member.controller.step()
        self._catch_up()
        for name, node in self.nodes.items():
            if self.now_s % HEARTBEAT_S == 0:
                self._heartbeat(name, node)

    async def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            await self.step()

    def _heartbeat(self, name: str, node: Node) -> None:
        controller = self.members[self.term % 2].controller
        uptime_s = self.now_s - node.began_s
        report = NodeReport({"uptime_s": uptime_s})
        controller.failure_detector.record_heartbeat(name, node.epoch, self.now_s, report)
        turn = int(uptime_s % SIZES_S / SIZES_PAUSE_S)
        for topic in [*TOPICS][turn : turn + 1]:
            led = [p.partition for p in self.partitions(topic) if p.leader == name]
            controller.sizes.note((TOPICS[topic], number, self.size_bytes) for number in led)

    def _catch_up(self) -> None:
        for topic, topic_id in TOPICS.items():
            for p in self.partitions(topic):
                if p.leader and set(p.replicas) != set(p.in_sync):
                    wanted = tuple((each, self.nodes[each].epoch) for each in p.replicas)
                    epochs = p.leader_epoch, p.partition_epoch
                    wish = (bytes.fromhex(topic_id), p.partition, *epochs, wanted)
                    self.do(ChangeInSyncMany(p.leader, self.nodes[p.leader].epoch, (wish,)))

    def partitions(self, topic: str) -> tuple[PartitionDescription, ...]:
        return self.catalog.topic(topic).partitions

    def led(self) -> list[Counter[str | None]]:
        """Of each topic, who leads how many partitions."""
        return [Counter(p.leader for p in self.partitions(topic)) for topic in TOPICS]

    def move_all(self, target: str) -> None:
        """As an operator does."""
        for topic, topic_id in TOPICS.items():
            moves = [
                (topic, topic_id, p.partition, p.partition_epoch, (target,))
                for p in self.partitions(topic)
            ]
            self.do(StartMoves(tuple(moves)))


async def joined(change: Callable[[Cluster], None] = lambda _: None) -> Cluster:
    """Two nodes join a third, one behind the other. `change`: before each step."""
    cluster = Cluster()
    while cluster.now_s < ENOUGH_S:
        if cluster.now_s == 1.0:
            cluster.start("n2")
        if cluster.now_s == 8.0:
            cluster.start("n3")
        change(cluster)
        await cluster.step()
    return cluster


async def test_nodes_that_join_get_their_share() -> None:
    cluster = await joined()
    assert cluster.led() == [EVEN, EVEN]
    assert max(len(each.moves) for each in cluster.begun) == REPAIRS_AT_ONCE


ONCE = [(number * STEP_S,) for number in range(40)]
FOR_A_WHILE = [(at_s, at_s + 2.0) for (at_s,) in ONCE[::2]]


@pytest.mark.parametrize("times_s", ONCE + FOR_A_WHILE)
async def test_they_get_it_whenever_the_leader_changes(times_s: tuple[float, ...]) -> None:
    def change(cluster: Cluster) -> None:
        if cluster.now_s in times_s:
            cluster.change_leader()

    assert (await joined(change)).led() == [EVEN, EVEN]


async def test_they_get_it_though_the_leader_changes_again_and_again() -> None:
    def change(cluster: Cluster) -> None:
        if cluster.now_s % 7.5 == 0 and cluster.now_s < 31:
            cluster.change_leader()

    assert (await joined(change)).led() == [EVEN, EVEN]


@pytest.mark.parametrize("restarted", ["n2", "n3"])
async def test_they_get_it_though_one_is_started_again_with_the_leader(restarted: str) -> None:
    def change(cluster: Cluster) -> None:
        if cluster.now_s == 10.0:
            cluster.start(restarted)
            cluster.change_leader()

    assert (await joined(change)).led() == [EVEN, EVEN]


async def settled() -> Cluster:
    """A cluster with an operator who has moved everything to one node."""
    cluster = await joined()
    await cluster.run(8.0 + WELCOME_S + 10.0)
    cluster.move_all("n1")
    await cluster.run(cluster.now_s + 10.0)
    assert cluster.led() == [{"n1": PARTITIONS}] * 2
    cluster.begun.clear()
    return cluster


async def test_a_change_of_the_leader_in_a_settled_cluster_moves_nothing() -> None:
    cluster = await settled()
    for _ in range(2):
        cluster.change_leader()
        await cluster.run(cluster.now_s + 20.0)
    assert cluster.begun == []


@pytest.mark.parametrize("names", [("n1",), ("n3",), ("n3", "n2"), ("n1", "n2", "n3")])
async def test_nor_does_one_with_which_nodes_are_started_again(names: tuple[str, ...]) -> None:
    cluster = await settled()
    for name in names:
        cluster.start(name)
    cluster.change_leader()
    await cluster.run(cluster.now_s + 30.0)
    assert cluster.begun == []


async def test_a_node_that_joins_later_gets_its_share_under_the_next_leader() -> None:
    cluster = await settled()
    cluster.start("n4")
    await cluster.run(cluster.now_s + 2.0)
    cluster.change_leader()
    await cluster.run(cluster.now_s + 30.0)
    assert all(set(each.values()) == {PARTITIONS // 4} for each in cluster.led())


async def test_larger_partitions_stay() -> None:
    cluster = Cluster(EMPTY_BYTES + 1)
    cluster.start("n2")
    await cluster.run(ENOUGH_S)
    assert cluster.begun == []


# ------------------------------------------------------------ the rule


def found(*nodes: tuple[str, int, int, str], **uptimes_s: float) -> set[str]:
    """`nodes`: name, revision of the first registration, broker epoch, state."""
    rows = [
        (NodeRegistration(name, {}, broker_epoch=epoch, state=state), revision)
        for name, revision, epoch, state in nodes
    ]
    return newcomers(rows, {name: {"uptime_s": up_s} for name, up_s in uptimes_s.items()}, 60.0)


def test_who_has_joined_lately() -> None:
    assert found(("a", 5, 5, "active"), ("b", 9, 9, "active"), a=60.0, b=59.9) == {"b"}
    assert found(("a", 5, 5, "active"), ("b", 9, 9, "active"), a=1.0, b=1.0) == {"a", "b"}
    assert found(("a", 5, 5, "active")) == set(), "it has not said how long it has been there"


def test_who_was_only_started_again_has_not() -> None:
    assert found(("a", 5, 12, "active"), ("b", 9, 9, "active"), a=1.0, b=300.0) == set()
    both = found(("a", 5, 12, "active"), ("b", 13, 20, "active"), a=9.0, b=1.0)
    assert both == {"b"}, "it joined since the other was started, and was then started again"


def test_nodes_that_are_not_active_neither_join_nor_tell_the_time() -> None:
    assert found(("a", 5, 5, "fenced"), a=1.0) == set()
    assert found(("a", 5, 5, "draining"), ("b", 9, 9, "active"), a=1.0, b=300.0) == set()
