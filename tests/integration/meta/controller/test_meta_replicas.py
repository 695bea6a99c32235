"""What the controller does for replicated partitions: restarts, lost disks, dead nodes, replicas
that come and go. Brokers are played by heartbeats and by a task that reports replicas in sync."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.control_calls import HeartbeatAnswer, HeartbeatReport
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import (
    InSyncChange,
    NodeRegistration,
    PartitionDescription,
)


@pytest.fixture
def settings() -> MetaSettings:
    return MetaSettings(port=0, replace_after_s=0.5)


class Broker:
    """A node that registers and beats until it is killed."""

    def __init__(self, client: RemoteClient, name: str, disk: int = 1) -> None:
        self._client, self.name, self.disk = client, name, disk
        self.report = HeartbeatReport()
        self.answers: list[HeartbeatAnswer] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self, *disowned: tuple[str, int]) -> None:
        node = NodeRegistration(
            self.name, {}, heartbeats=True, storage_id=f"{ord(self.name):016x}{self.disk:016x}"
        )
        self.epoch = (await self._client.register_node(node, disowned)).broker_epoch
        self.answers.clear()
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        beats = self._client.heartbeats(self.name, self.epoch, lambda _: self.report, period_s=0.1)
        async for answer in beats:
            self.answers.append(answer)

    async def kill(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def is_active(self) -> bool:
        return bool(self.answers) and self.answers[-1].state == "active"


@pytest.fixture
async def brokers(client: RemoteClient) -> AsyncIterator[dict[str, Broker]]:
    """a, b and c, active."""
    brokers = {name: Broker(client, name) for name in "abc"}
    for broker in brokers.values():
        await broker.start()
        await until(broker.is_active)
    yield brokers
    for broker in brokers.values():
        await broker.kill()


async def until(condition: Callable[[], object]) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + 30, "it did not come true in time"
        await asyncio.sleep(0.02)


async def partition(client: RemoteClient, number: int = 0) -> PartitionDescription:
    _, (topic,) = await client.topics()
    return topic.partitions[number]


async def becomes(
    client: RemoteClient, condition: Callable[[PartitionDescription], bool]
) -> PartitionDescription:
    begin = time.monotonic()
    while not condition(found := await partition(client)):
        assert time.monotonic() < begin + 30, found
        await asyncio.sleep(0.02)
    return found


async def report_in_sync(client: RemoteClient, brokers: dict[str, Broker]) -> None:
    """What leaders do: every replica that is active gets in sync, for ever."""
    while True:
        _, topics = await client.topics()
        for topic in topics:
            for p in topic.partitions:
                members = {n: brokers[n].epoch for n in p.replicas if brokers[n].is_active()}
                if p.leader in members and set(p.in_sync) != set(members):
                    wish = InSyncChange(
                        topic.topic_id, p.partition, p.leader_epoch, p.partition_epoch, members
                    )
                    await client.change_in_sync(p.leader, brokers[p.leader].epoch, [wish])
        await asyncio.sleep(0.02)


async def test_a_quick_restart_changes_the_leader_epoch(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    await client.create_topic("t", 1, {}, replication=3, min_in_sync=2)
    old = await partition(client)
    again = brokers[old.leader or ""]
    await again.kill()
    await again.start()
    await until(again.is_active)
    # It was told only when the partition was settled.
    new = await partition(client)
    assert new.leader not in (None, old.leader) and new.leader_epoch == old.leader_epoch + 1
    assert set(new.in_sync) == set(old.replicas) - {old.leader}


async def test_the_first_heartbeat_lets_a_node_in(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    await client.create_topic("t", 1, {})
    again = brokers[(await partition(client)).leader or ""]
    await again.kill()
    await again.start()
    await until(lambda: again.answers)
    assert again.answers[0] == HeartbeatAnswer("active", 1), "no second one was needed"
    now = await partition(client)
    assert (now.leader, now.leader_epoch) == (again.name, 2)


async def test_a_node_that_is_not_ready_is_not_let_in(client: RemoteClient) -> None:
    broker = Broker(client, "a")
    broker.report = HeartbeatReport(ready=False)
    await broker.start()
    await until(lambda: len(broker.answers) > 4)
    assert {answer.state for answer in broker.answers} == {"fenced"}
    assert [answer.number for answer in broker.answers] == list(range(1, len(broker.answers) + 1))
    broker.report = HeartbeatReport()
    await until(broker.is_active)
    await broker.kill()


async def test_a_node_that_leaves_gives_up_its_leaderships_first(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    await client.create_topic("t", 1, {}, replication=3, min_in_sync=2)
    old = await partition(client)
    leaving = brokers[old.leader or ""]
    leaving.report = HeartbeatReport(leaving=True)
    new = await becomes(client, lambda p: p.leader != old.leader)
    assert new.leader is not None and old.leader not in new.in_sync and new.eligible == ()
    count = len(leaving.answers)
    await until(lambda: len(leaving.answers) > count + 8)
    assert not leaving.is_active(), "it never becomes active again"


async def test_a_full_node_gets_no_new_replicas(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    brokers["a"].report = HeartbeatReport(full=True)
    count = len(brokers["a"].answers)
    await until(lambda: len(brokers["a"].answers) > count + 2)
    topic = await client.create_topic("t", 6, {})
    assert {p.leader for p in topic.partitions} == {"b", "c"}


async def test_an_empty_disk_leads_nothing_but_by_an_unclean_word(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    await client.create_topic("t", 1, {}, replication=1)
    only = brokers[(await partition(client)).leader or ""]
    await only.kill()
    only.disk += 1
    while True:  # a live process has not lost its disk: it must have been missed first
        with contextlib.suppress(CompareFailed):
            await only.start()
            break
        await asyncio.sleep(0.1)
    await until(only.is_active)
    lost = await partition(client)
    assert (lost.leader, lost.in_sync, lost.eligible) == (None, (), ())
    with pytest.raises(InvalidArgument):
        await client.elect_unclean(
            "t", 0, partition_epoch=lost.partition_epoch, node_id="no-replica"
        )
    with pytest.raises(CompareFailed):
        await client.elect_unclean("t", 0, partition_epoch=0, node_id=only.name)
    epoch = await client.elect_unclean(
        "t", 0, partition_epoch=lost.partition_epoch, node_id=only.name
    )
    now = await partition(client)
    assert (now.leader, now.leader_epoch, now.in_sync) == (only.name, epoch, (only.name,))


async def test_a_replica_that_a_node_disowns_is_copied_again(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    topic = await client.create_topic("t", 2, {}, replication=2, min_in_sync=2)
    damaged = topic.partitions[0].replicas[0]
    await brokers[damaged].kill()
    await brokers[damaged].start((topic.topic_id, 0))
    await until(brokers[damaged].is_active)
    first, second = (await partition(client)), (await partition(client, 1))
    assert damaged not in (*first.in_sync, *first.eligible)
    if damaged in second.replicas:
        assert damaged in (*second.in_sync, *second.eligible)


async def test_a_leader_resigns_and_an_operator_moves(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    topic = await client.create_topic("t", 1, {}, replication=2, min_in_sync=1)
    old = topic.partitions[0]
    leader = brokers[old.leader or ""]
    await client.resign(leader.name, leader.epoch, [(topic.topic_id, 0, old.leader_epoch)])
    new = await partition(client)
    assert new.leader == old.replicas[1] and new.leader_epoch == 1
    (free,) = set("abc") - set(old.replicas)
    target = (free, new.leader or "")
    assert await client.move([("t", 0, new.partition_epoch - 1, target)]) == []
    with pytest.raises(NotFound):
        await client.move([("u", 0, 0, target)])
    assert await client.move([("t", 0, new.partition_epoch, target)]) == [("t", 0)]
    task = asyncio.create_task(report_in_sync(client, brokers))
    moved = await becomes(client, lambda p: p.replicas == target and not p.target)
    assert moved.leader == new.leader and moved.leader_epoch == 1, "it goes on in its epoch"
    task.cancel()


async def test_replicas_come_and_go_with_the_topics_replication(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    task = asyncio.create_task(report_in_sync(client, brokers))
    await client.create_topic("t", 3, {}, replication=1)
    await client.alter_topic("t", replication=3, min_in_sync=2)
    full = await becomes(client, lambda p: len(p.in_sync) == 3 and not p.target)
    assert full.leader_epoch == 0 and full.min_in_sync == 2
    await client.alter_topic("t", replication=2)
    fewer = await becomes(client, lambda p: len(p.replicas) == 2 and not p.target)
    assert fewer.leader == full.leader and fewer.leader_epoch == 0
    with pytest.raises(InvalidArgument, match="min_in_sync"):
        await client.alter_topic("t", min_in_sync=3)
    task.cancel()


async def test_replicas_of_a_dead_node_are_placed_elsewhere(
    client: RemoteClient, brokers: dict[str, Broker]
) -> None:
    await client.create_topic("t", 1, {}, replication=2)
    old = await partition(client)
    (free,) = set("abc") - set(old.replicas)
    task = asyncio.create_task(report_in_sync(client, brokers))
    await brokers[old.leader or ""].kill()
    wanted = {old.replicas[1], free}
    new = await becomes(client, lambda p: set(p.replicas) == wanted and not p.target)
    assert set(new.in_sync) == set(new.replicas) and new.leader == old.replicas[1]
    task.cancel()
