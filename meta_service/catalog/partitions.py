"""Who leads a partition and who is in sync with it.

A leader is always one of the in-sync replicas; the in-sync set never becomes empty, so nothing
acknowledged is given up. Every change raises the partition's epoch, every new leader its leader
epoch: a broker with an older epoch is refused everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.api.types import PartitionDescription, TopicDescription
from lakemq.meta_service.catalog.control_commands import (
    ACTIVE,
    DRAINING,
    ChangeInSync,
    ElectLeaders,
)
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.nodes import all_nodes
from lakemq.meta_service.catalog.topics import find_topic, save_topic, topic_key

UNCLEAN: Final = "unclean_leader_election"
"""Setting of a topic: a replica that lacks records may lead when no other can. Off by default."""


def settle(
    partition: PartitionDescription,
    states: Mapping[str, str],
    *,
    preferred: bool,
    unclean: bool = False,
    keeps_leader: bool = False,
) -> PartitionDescription:
    """The partition as the states of the nodes want it; the same one where nothing is amiss.

    A fenced or unknown node leaves the in-sync set unless it is the last one. A draining node gives
    up leadership if another in-sync replica can take it. `unclean`: when no in-sync replica can
    lead, one that lacks records may, and is then the only one in sync. `keeps_leader`: when no
    replica can lead, the fenced leader stays: only its disk has the records (ADR 21).
    """
    alive = {node for node, state in states.items() if state in (ACTIVE, DRAINING)}
    # Never empty: the last in-sync replica stays, even fenced, as only it has all that was
    # acknowledged.
    in_sync = tuple(node for node in partition.in_sync if node in alive) or partition.in_sync
    leader = _leader(partition, in_sync, states, preferred=preferred)
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
        # KIP-101: only a change of leader raises the leader epoch; any change raises the partition
        # epoch (KIP-497).
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
    )


def _leader(
    partition: PartitionDescription,
    in_sync: tuple[str, ...],
    states: Mapping[str, str],
    *,
    preferred: bool,
) -> str | None:
    active = [n for n in partition.replicas if n in in_sync and states.get(n) == ACTIVE]
    if active:
        keep = partition.leader in active and not (preferred and active[0] == partition.replicas[0])
        return partition.leader if keep else active[0]
    draining = [n for n in partition.replicas if n in in_sync and states.get(n) == DRAINING]
    if draining:
        return partition.leader if partition.leader in draining else draining[0]
    return None


def settle_topic(
    topic: TopicDescription, states: Mapping[str, str], *, preferred: bool, level: int
) -> TopicDescription:
    """`level`: the cluster's feature level; from 2 on a topic may ask for unclean elections, from
    3 on the last in-sync replica keeps the leadership while it is fenced."""
    unclean = level > 1 and topic.config.get(UNCLEAN) in (1, "true")
    partitions = tuple(
        settle(p, states, preferred=preferred, unclean=unclean, keeps_leader=level > 2)
        for p in topic.partitions
    )
    return topic if partitions == topic.partitions else replace(topic, partitions=partitions)


def elect_leaders(draft: Draft, command: ElectLeaders) -> Any:
    """Names of the topics that changed."""
    states = {node.node_id: node.state for node in all_nodes(draft)}
    changed = []
    for name in command.topics:
        if draft.row(topic_key(name)) is None:
            continue  # deleted meanwhile
        topic = find_topic(draft, name)
        settled = settle_topic(
            topic, states, preferred=command.preferred, level=draft.state.feature_level
        )
        if settled is not topic:
            save_topic(draft, settled)
            changed.append(name)
    return changed


def change_in_sync(draft: Draft, command: ChangeInSync) -> Any:
    """The partition's new epoch. Raises CompareFailed when another change was first."""
    topic = find_topic(draft, command.topic)
    if topic.topic_id != command.topic_id:
        raise NotFound(f"topic {command.topic!r} was deleted and created again")
    if command.partition >= len(topic.partitions):
        raise NotFound(f"topic {command.topic!r} has no partition {command.partition}")
    old = topic.partitions[command.partition]
    given = (command.leader, command.leader_epoch, command.partition_epoch)
    if given != (old.leader, old.leader_epoch, old.partition_epoch):
        raise CompareFailed(
            f"partition {command.partition} of {command.topic!r} is led by {old.leader} in leader "
            f"epoch {old.leader_epoch}, partition epoch {old.partition_epoch}"
        )
    # In the order of replicas, so that members store the same bytes whatever order the leader sent.
    in_sync = tuple(node for node in old.replicas if node in command.in_sync)
    if len(in_sync) != len(set(command.in_sync)) or command.leader not in in_sync:
        raise InvalidArgument("in_sync: must name the leader, and replicas of the partition only")
    fenced = [n.node_id for n in all_nodes(draft) if n.state not in (ACTIVE, DRAINING)]
    # A fenced node may stay, until the controller takes it out, but not join (KIP-841).
    if set(fenced) & set(in_sync) - set(old.in_sync):
        raise InvalidArgument(f"in_sync: fenced nodes cannot join: {', '.join(fenced)}")
    new = replace(old, in_sync=in_sync, partition_epoch=old.partition_epoch + 1)
    partitions = list(topic.partitions)
    partitions[command.partition] = new
    save_topic(draft, replace(topic, partitions=tuple(partitions)))
    return new.partition_epoch
