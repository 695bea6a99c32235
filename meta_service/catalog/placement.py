"""Which nodes hold a new partition's replicas. Pure and deterministic.

Even load first, then racks: replicas of one partition go to as many racks as there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A node that may take replicas."""

    node_id: str
    rack: str


def place(
    candidates: Sequence[Candidate], loads: Mapping[str, int], partitions: int, replication: int
) -> list[tuple[str, ...]]:
    """Replicas of each partition, the preferred leader first.

    `loads`: replicas that a node has already. Fewer replicas than asked for when there are fewer
    nodes; none when there is no node.
    """
    replicas_of = {node.node_id: loads.get(node.node_id, 0) for node in candidates}
    leaders_of = dict.fromkeys(replicas_of, 0)
    placed = []
    for _ in range(partitions):
        chosen = _choose(candidates, replicas_of, replication)
        chosen.sort(key=lambda node: (leaders_of[node.node_id], node.node_id))
        for node in chosen:
            replicas_of[node.node_id] += 1
        if chosen:
            leaders_of[chosen[0].node_id] += 1
        placed.append(tuple(node.node_id for node in chosen))
    return placed


def _choose(
    candidates: Sequence[Candidate], replicas_of: Mapping[str, int], count: int
) -> list[Candidate]:
    """The least loaded nodes, from racks not yet used as long as there are any."""
    left = sorted(candidates, key=lambda node: (replicas_of[node.node_id], node.node_id))
    chosen: list[Candidate] = []
    while left and len(chosen) < count:
        racks = {node.rack for node in chosen}
        best = next((node for node in left if node.rack not in racks), left[0])
        left.remove(best)
        chosen.append(best)
    return chosen
