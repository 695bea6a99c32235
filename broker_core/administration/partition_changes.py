"""Moving a partition, and electing its leader: checked before the MetaService is asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.meta_service.api.types import ReplicaEnd


class PartitionNow(NamedTuple):
    """A partition as the catalog has it."""

    topic: str
    partition: int
    topic_id: str
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


def unclean_choice(
    found: PartitionNow, alive: Sequence[str], ends: Mapping[str, ReplicaEnd], to: str
) -> str:
    """The replica that shall lead a partition, though it may lack acknowledged records: the one
    with the most, unless `to` names one. Raises InvalidRequest: one did not say what it has."""
    silent = [node for node in alive if node not in ends]
    if len(alive) > 1 and silent and not to:
        raise InvalidRequest(
            f"{', '.join(silent)} did not say what it has of {found}: repeat the command, or say "
            "with --to which replica leads. The one with the most records loses the least: see "
            "`lakemq journal stats` of each"
        )
    # As replicas compare their logs: a later epoch has seen more than a longer log of an older one.
    return to or max(alive, key=lambda node: _order(ends.get(node)))


def alive_replicas(found: PartitionNow, states: Mapping[str, str], to: str) -> list[str]:
    """Replicas that could lead. `states`: of nodes. Raises InvalidRequest: there is a leader, or
    none is active, or not `to`."""
    if found.leader is not None:
        raise InvalidRequest(f"{found} is led by {found.leader}: nothing to elect")
    alive = [node for node in found.replicas if states.get(node) == "active"]
    if not alive or (to and to not in alive):
        shown = ", ".join(f"{node} {states.get(node, 'gone')}" for node in found.replicas)
        raise InvalidRequest(f"no such replica of {found} is active: {shown}")
    return alive


def _order(end: ReplicaEnd | None) -> tuple[int, int]:
    return (-1, -1) if end is None else (end.last_epoch, end.end)
