"""Who shall lead a partition without a leader, by what its replicas have: asks the MetaService."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lakemq.broker_core.administration.partition_changes import (
    PartitionNow,
    alive_replicas,
    unclean_choice,
)
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import ReplicaEnd

_LOOKS: Final = 10
_LOOK_S: Final = 0.2
"""Nodes say twice a second what they have of partitions without a leader."""


async def unclean_leader(
    client: RemoteClient, found: PartitionNow, to: str
) -> tuple[str, dict[str, ReplicaEnd]]:
    """(the replica that shall lead, where replicas end). Raises InvalidRequest, MetaError."""
    states = {node.node_id: node.state for node in await client.nodes()}
    alive = alive_replicas(found, states, to)
    ends = await _ends(client, found, alive)
    return unclean_choice(found, alive, ends, to), ends


async def _ends(
    client: RemoteClient, found: PartitionNow, nodes: Sequence[str]
) -> dict[str, ReplicaEnd]:
    """What heartbeats said of replicas of the partition, by node; waits for all of `nodes`, not for
    long."""
    ends: dict[str, ReplicaEnd] = {}
    wanted = (found.topic_id, found.partition)
    for _ in range(_LOOKS):
        for node in (await client.loads()).nodes:
            for end in node.leaderless:
                if (end.topic_id, end.partition) == wanted and node.node_id in nodes:
                    ends[node.node_id] = end
        if len(ends) == len(nodes):
            break
        await asyncio.sleep(_LOOK_S)
    return ends
