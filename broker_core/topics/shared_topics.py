"""Internal topics that brokers share have as many replicas as there are brokers, up to three.

The first node of a cluster makes them alone, so they get replicas when others have joined: here
their number is raised, the moves that follow copy.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, NamedTuple

from lakemq.broker_core.api.state.internal_topics import SHARED
from lakemq.broker_core.api.types import NodeInfo, TopicInfo
from lakemq.broker_core.cluster_nodes import ClusterNodes
from lakemq.broker_core.partitions import Partitions
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaClient

_log: Final = logging.getLogger(__name__)
REPLICAS_MAX: Final = 3
MAJORITY_FROM: Final = 3
"""With so many replicas two must be in sync by default: one may then fail without a loss, and one
without a stop."""
_LOOK_S: Final = 1.0
_PEER: Final = "peer"
"""What a node listens on that holds replicas."""


class Wish(NamedTuple):
    """What a topic shall have next; None: as it is."""

    replication: int | None = None
    min_in_sync: int | None = None


def replication_of(brokers: int, min_in_sync: int = 0) -> tuple[int, int]:
    """(replicas, how many must be in sync) of a shared topic where there are so many brokers.
    `min_in_sync`: of `[topics]`; 0: not set."""
    replicas = min(REPLICAS_MAX, max(1, brokers))
    return replicas, min(replicas, min_in_sync or (2 if replicas >= MAJORITY_FROM else 1))


def wish(topic: TopicInfo, brokers: int, min_in_sync: int = 0) -> Wish | None:
    """The next step; None: nothing is to be done. Replicas never become fewer because nodes are
    away, and the minimum is raised only when so many are in sync: it would stop every write."""
    replicas, minimum = replication_of(brokers, min_in_sync)
    # A topic of an older catalog does not say how many it shall have.
    has = topic.replication or min((len(each.replicas) for each in topic.leaders), default=1)
    if has < replicas:
        return Wish(replication=replicas)
    needs = min((each.min_in_sync for each in topic.leaders), default=1)
    if needs < minimum and all(len(each.in_sync) >= minimum for each in topic.leaders):
        return Wish(min_in_sync=minimum)
    return None


def count_brokers(nodes: tuple[NodeInfo, ...]) -> int:
    """Nodes that hold replicas, those that are away too; processes of one machine count as one."""
    return len({each.machine or each.node_id for each in nodes if _PEER in each.addresses})


class SharedTopics:
    """Raises replicas of shared topics, where this node leads their first partition."""

    def __init__(
        self, meta: MetaClient, partitions: Partitions, nodes: ClusterNodes, min_in_sync: int
    ) -> None:
        self._meta = meta
        self._partitions = partitions
        self._nodes = nodes
        self._min_in_sync = min_in_sync
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._look_again())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for name in SHARED:
                topic = self._partitions.find(name)
                if topic is not None and self._partitions.serves(topic, 0):
                    await self._raise(topic)

    async def _raise(self, topic: TopicInfo) -> None:
        step = wish(topic, count_brokers(self._nodes.nodes), self._min_in_sync)
        if step is None:
            return
        try:
            await self._meta.alter_topic(
                topic.name, replication=step.replication, min_in_sync=step.min_in_sync
            )
        except MetaError as error:
            _log.info("%s keeps its replicas for now: %s", topic.name, error)
        else:
            _log.info("%s: %s", topic.name, step)
