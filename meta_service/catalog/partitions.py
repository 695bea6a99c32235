"""Who leads a partition and who is in sync with it.

A leader is always one of the in-sync replicas. Every change raises the partition's epoch, every new
leader its leader epoch: a broker with an older epoch is refused everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lakemq.meta_service.api.types import PartitionDescription
from lakemq.meta_service.catalog.control_commands import ACTIVE, DRAINING

UNCLEAN: Final = "unclean_leader_election"
"""Setting of a topic: a replica that lacks records may lead when no other can. Off by default."""


def is_unclean(config: Mapping[str, str | int | None]) -> bool:
    """Whether a topic with this configuration asks for it."""
    return config.get(UNCLEAN) in (1, "true")


def settle(
    partition: PartitionDescription,
    states: Mapping[str, str],
    *,
    preferred: bool = False,
    unclean: bool = False,
    resigned: str = "",
    lost: Collection[str] = (),
    silent: Collection[str] = (),
    avoid: Collection[str] = (),
) -> PartitionDescription:
    """The partition as the states of the nodes want it; the same one where nothing is amiss.

    `states`: node id to state; a node that is absent counts as fenced. Fenced nodes leave the
    in-sync set. Those that leave while it is below `min_in_sync` become eligible: the high
    watermark stands still from there on, so they keep all that was acknowledged (KIP-966, with the
    strict rule). The leader stays if it can; else it is an active in-sync replica, a draining one,
    an eligible one, in this order; else none.

    `preferred`: leadership goes back to the first replica where that is in sync and active.
    `unclean`: an active replica that lacks records may lead rather than none, and is then the
    only one in sync, none eligible. `resigned`: a node whose leadership ends: eligible nodes come
    before it too, and if only it can lead it does so in a new epoch. `lost`: nodes whose disk does
    not hold the partition any more; their memberships were those of another disk. `silent`: nodes
    that are fenced only because they are not heard, in the registration in which they were active:
    such a leader stays where no other node could ever take over (ADR 24). `avoid`: nodes whose
    disks are full: of those that can lead alike, another is elected; a leader among them stays,
    since it resigns by itself once another can take over.
    """
    kept = [node for node in partition.in_sync if node not in lost]
    eligible = {node for node in partition.eligible if node not in lost}
    in_sync = [node for node in kept if states.get(node) in (ACTIVE, DRAINING)]
    if len(in_sync) < partition.min_in_sync:
        eligible |= set(kept) - set(in_sync)
    if resigned != partition.leader:
        resigned = ""  # it was replaced meanwhile
    first = [node for node in partition.replicas if node in in_sync]
    others = [node for node in partition.replicas if node in eligible]
    if avoid:
        first.sort(key=avoid.__contains__)
        others.sort(key=avoid.__contains__)
    leader = (
        _leader(partition, _without(resigned, first), states, preferred=preferred)
        or _first_able(_without(resigned, others), states)
        # It gives up what it can't do, but no other node can do it either: in a new epoch.
        or _first_able([resigned] if resigned in (*first, *others) else [], states)
    )
    if leader is None and unclean:
        leader = next((n for n in partition.replicas if states.get(n) == ACTIVE), None)
        # The log goes on from what the new leader has: no other one is complete any more.
        eligible = eligible if leader is None else set()
    if (
        leader is None
        and partition.leader in silent
        and not {*kept, *eligible} - {partition.leader}
    ):
        leader = None if resigned else partition.leader
    if leader not in in_sync:
        # Nothing was committed since this one became eligible; the same holds for who resigned.
        eligible |= set(in_sync)
        in_sync = [] if leader is None else [leader]
    # Behind the election: the new leader may be all that a minimum of 1 asks for, and another
    # eligible node then misses what it takes from now on.
    if len(in_sync) >= partition.min_in_sync:
        eligible = set()
    ended = leader != partition.leader or bool(resigned)
    behind = _in_order(partition, eligible.difference(in_sync)) if eligible else ()
    return _changed(partition, leader, tuple(in_sync), behind, ended=ended)


def _changed(
    partition: PartitionDescription,
    leader: str | None,
    in_sync: tuple[str, ...],
    eligible: tuple[str, ...],
    *,
    ended: bool,
) -> PartitionDescription:
    """In new epochs; the same object where nothing is different. `ended`: so is the leadership."""
    if not ended and (in_sync, eligible) == (partition.in_sync, partition.eligible):
        return partition
    # Not by `replace`, which takes longer than all the rest, and this is done by the thousand.
    return PartitionDescription(
        partition.partition,
        leader,
        # KIP-101, KAFKA-15021: a smaller in-sync set under the same leader is no new leader epoch.
        partition.leader_epoch + ended,
        partition.partition_epoch + 1,
        partition.replicas,
        in_sync,
        partition.target,
        eligible,
        partition.min_in_sync,
    )


def _in_order(partition: PartitionDescription, eligible: Collection[str]) -> tuple[str, ...]:
    """As they are, and new ones in the order of replicas: that may have changed by a move."""
    old = [node for node in partition.eligible if node in eligible]
    return (*old, *(n for n in partition.replicas if n in eligible and n not in old))


def _without(resigned: str, nodes: Sequence[str]) -> list[str]:
    return [node for node in nodes if node != resigned]


def _leader(
    partition: PartitionDescription,
    in_sync: Sequence[str],
    states: Mapping[str, str],
    *,
    preferred: bool,
) -> str | None:
    """`in_sync`: in the order of replicas. None: no in-sync replica can lead."""
    active = [node for node in in_sync if states.get(node) == ACTIVE]
    if active:
        keep = partition.leader in active and not (preferred and active[0] == partition.replicas[0])
        return partition.leader if keep else active[0]
    # A draining leader gives way to an active one only.
    draining = [node for node in in_sync if states.get(node) == DRAINING]
    return partition.leader if partition.leader in draining else _first_able(draining, states)


def _first_able(nodes: Sequence[str], states: Mapping[str, str]) -> str | None:
    """The first active one, else the first draining one."""
    draining = None
    for node in nodes:
        state = states.get(node)
        if state == ACTIVE:
            return node
        if state == DRAINING and draining is None:
            draining = node
    return draining


def with_in_sync(partition: PartitionDescription, in_sync: Collection[str]) -> PartitionDescription:
    """The partition as its leader wants it; those that leave a set that is too small are eligible.

    The partition epoch rises by one, the leader epoch does not (KAFKA-15021). `in_sync`: replicas
    only, the leader among them.
    """
    wanted = tuple(node for node in partition.replicas if node in in_sync)
    eligible = {*partition.eligible, *partition.in_sync} - set(wanted)
    if len(wanted) >= partition.min_in_sync:
        eligible = set()
    return replace(
        partition,
        in_sync=wanted,
        eligible=_in_order(partition, eligible),
        partition_epoch=partition.partition_epoch + 1,
    )


def elected_unclean(partition: PartitionDescription, leader: str) -> PartitionDescription:
    """Led by a replica that may lack what was acknowledged: the log goes on from what it has."""
    return replace(
        partition,
        leader=leader,
        in_sync=(leader,),
        eligible=(),
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


# ------------------------------------------------------------ below level 4


def settle_below_cluster_level(
    partition: PartitionDescription,
    states: Mapping[str, str],
    *,
    preferred: bool,
    unclean: bool = False,
    keeps_leader: bool = False,
) -> PartitionDescription:
    """`settle` as it was before `CLUSTER_LEVEL`: old logs must do today what they did then.

    A fenced node leaves the in-sync set unless it is the last one. `keeps_leader`: when no replica
    can lead, the fenced leader stays (ADR 21).
    """
    alive = {node for node, state in states.items() if state in (ACTIVE, DRAINING)}
    # Never empty: there was no eligible set to keep the last one in.
    in_sync = tuple(node for node in partition.in_sync if node in alive) or partition.in_sync
    first = [node for node in partition.replicas if node in in_sync]
    leader = _leader(partition, first, states, preferred=preferred)
    if leader is None and unclean:
        leader = next((n for n in partition.replicas if states.get(n) == ACTIVE), None)
        in_sync = in_sync if leader is None else (leader,)
    if leader is None and keeps_leader and partition.leader in in_sync:
        leader = partition.leader
    if leader == partition.leader and in_sync == partition.in_sync:
        return partition
    return replace(
        partition,
        leader=leader,
        in_sync=in_sync,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
    )
