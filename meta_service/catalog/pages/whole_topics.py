"""Elections and in-sync sets of whole topics: commands of levels 1 to 3, which have no pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lakemq.meta_service.api.errors import (
    CompareFailed,
    InvalidArgument,
    NotFound,
    UnsupportedCommand,
)
from lakemq.meta_service.api.types import CLUSTER_LEVEL, TopicDescription
from lakemq.meta_service.catalog.control_commands import (
    ACTIVE,
    DRAINING,
    ChangeInSync,
    ElectLeaders,
)
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.nodes import all_nodes
from lakemq.meta_service.catalog.partitions import is_unclean, settle_below_cluster_level
from lakemq.meta_service.catalog.topics import find_topic, save_topic, topic_key


def settle_topic(
    topic: TopicDescription, states: Mapping[str, str], *, preferred: bool, level: int
) -> TopicDescription:
    """`level`: the cluster's feature level, below 4; from 2 on a topic may ask for unclean
    elections, at 3 the last in-sync replica keeps the leadership while it is fenced."""
    unclean = level > 1 and is_unclean(topic.config)
    partitions = tuple(
        settle_below_cluster_level(
            p, states, preferred=preferred, unclean=unclean, keeps_leader=level > 2
        )
        for p in topic.partitions
    )
    return topic if partitions == topic.partitions else replace(topic, partitions=partitions)


def _refuse_above(draft: Draft, kind: str) -> None:
    if draft.state.feature_level >= CLUSTER_LEVEL:
        raise UnsupportedCommand(f"command {kind!r} is not used from level {CLUSTER_LEVEL} on")


def elect_leaders(draft: Draft, command: ElectLeaders) -> Any:
    """Names of the topics that changed."""
    _refuse_above(draft, command.kind)
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
            save_topic(draft, settled, topic)
            changed.append(name)
    return changed


def change_in_sync(draft: Draft, command: ChangeInSync) -> Any:
    """The partition's new epoch. Raises CompareFailed when another change was first."""
    _refuse_above(draft, command.kind)
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
    save_topic(draft, replace(topic, partitions=tuple(partitions)), topic)
    return new.partition_epoch
