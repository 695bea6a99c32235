"""Topics of a real cluster, as its MetaService has them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import NodeRegistration, PartitionDescription
from lakemq.testing import Cluster
from tests.support.cluster.load import until

T = TypeVar("T")
PARTITIONS = 3


def ask(cluster: Cluster, question: Callable[[RemoteClient], Awaitable[T]]) -> T:
    """What the MetaService answers."""

    async def asked() -> T:
        client = RemoteClient(cluster.meta, attempt_s=2, timeout_s=30)
        try:
            return await question(client)
        finally:
            await client.close()

    return asyncio.run(asked())


def made(
    cluster: Cluster, name: str, count: int = PARTITIONS, replication: int = 3, min_in_sync: int = 2
) -> str:
    """A topic that several nodes keep, once all of its replicas are in sync."""

    async def create(client: RemoteClient) -> None:
        if name in {topic.name for topic in (await client.topics())[1]}:  # made by a binding
            await client.alter_topic(
                name, partitions=count, replication=replication, min_in_sync=min_in_sync
            )
        else:
            await client.create_topic(
                name, count, {}, replication=replication, min_in_sync=min_in_sync
            )

    ask(cluster, create)
    # One that was altered keeps its replicas until the controller plans their move.
    until(lambda: all(len(each.replicas) == replication for each in partitions(cluster, name)))
    until_in_sync(cluster, name, replication)
    with cluster.client() as client:
        until(lambda: name in {topic.name for topic in client.topics()})
    return name


def partitions(cluster: Cluster, topic: str) -> tuple[PartitionDescription, ...]:
    """Of one topic."""

    async def find(client: RemoteClient) -> tuple[PartitionDescription, ...]:
        _, topics = await client.topics()
        return next(each.partitions for each in topics if each.name == topic)

    return ask(cluster, find)


def nodes(cluster: Cluster) -> dict[str, NodeRegistration]:
    """Registered nodes, by their ids."""

    async def find(client: RemoteClient) -> dict[str, NodeRegistration]:
        return {each.node_id: each for each in await client.nodes()}

    return ask(cluster, find)


def leader(cluster: Cluster, topic: str) -> str:
    """The node that leads most partitions."""
    ((name, _),) = Counter(each.leader for each in partitions(cluster, topic)).most_common(1)
    assert name is not None
    return name


def until_in_sync(cluster: Cluster, topic: str, members: int = 3) -> float:
    """So many replicas of each partition, and no move under way; how long it took (s)."""
    return until(
        lambda: all(
            len(each.in_sync) == members and not each.target for each in partitions(cluster, topic)
        ),
        what=f"{members} replicas of each partition in sync",
    )


def until_all_in_sync(cluster: Cluster) -> float:
    """As `until_in_sync`, of all topics that have several replicas, internal ones too."""

    async def whole(client: RemoteClient) -> bool:
        _, topics = await client.topics()
        return all(
            len(each.in_sync) == len(each.replicas) and each.leader and not each.target
            for topic in topics
            for each in topic.partitions
        )

    return until(lambda: ask(cluster, whole), what="all replicas of all topics in sync")
