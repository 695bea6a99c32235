"""Moving a partition, and electing its leader: checked before the MetaService is asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest


class PartitionNow(NamedTuple):
    """A partition as the catalog has it."""

    topic: str
    partition: int
    leader: str | None
    replicas: Sequence[str]
    partition_epoch: int
    replication: int
    """Replicas that its topic wants; 0: those that it was made with."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def check_move(found: PartitionNow, target: Sequence[str]) -> None:
    """Raises InvalidRequest: the topic wants another number of replicas."""
    if found.replication not in (0, len(target)):
        raise InvalidRequest(
            f"topic {found.topic!r} wants {found.replication} replicas, not {len(target)}: name as "
            f"many nodes, or alter it: lakemq topic alter {found.topic} --replicas {len(target)}"
        )


def changed(found: PartitionNow) -> str:
    """What is told when another change came first."""
    return f"{found} has just changed: repeat the command"


def unclean_leader(found: PartitionNow, states: Mapping[str, str], to: str) -> str:
    """The replica that shall lead a partition, though it may lack acknowledged records. `states`:
    of nodes. `to`: empty where one alone is alive. Raises InvalidRequest."""
    if found.leader is not None:
        raise InvalidRequest(f"{found} is led by {found.leader}: nothing to elect")
    alive = [node for node in found.replicas if states.get(node) == "active"]
    if to:
        alive = [node for node in alive if node == to]
    if not alive:
        shown = ", ".join(f"{node} {states.get(node, 'gone')}" for node in found.replicas)
        raise InvalidRequest(f"no such replica of {found} is active: {shown}")
    if len(alive) > 1:
        raise InvalidRequest(
            f"{', '.join(alive)} are alive: say which one leads with --to. The one with the most "
            "records loses the least: see `lakemq journal stats` of each"
        )
    return alive[0]
