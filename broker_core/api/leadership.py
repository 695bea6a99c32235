"""Who leads a partition, as the catalog says: one rule for every protocol."""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.errors import NotLeader, StaleEpoch, UnknownPartition
from lakemq.broker_core.api.types import Leadership, TopicInfo
from lakemq.meta_service.api.partition_health import LACKS as LACKS
from lakemq.meta_service.api.partition_health import lacks as lacks

NO_LEADER: Final = Leadership(None, 0)


def leadership(topic: TopicInfo, partition: int) -> Leadership:
    """The leader of a partition; `NO_LEADER` for one that the topic does not list yet."""
    return topic.leaders[partition] if 0 <= partition < len(topic.leaders) else NO_LEADER


def leads(node_id: str, topic: TopicInfo, partition: int) -> bool:
    """Whether the node leads the partition. Where the catalog names no leader, a node that holds
    the only replica does, so that it goes on, fenced, with what only it has. A partition without
    replicas has no leader: it was created before any node had registered, and the catalog gives it
    to the first one that does."""
    lead = leadership(topic, partition)
    if lead.leader is None:
        return lead.replicas == (node_id,)
    return lead.leader == node_id


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raises UnknownPartition when the topic has no such partition, on whatever node."""
    if not 0 <= partition < topic.partitions:
        raise UnknownPartition(
            f"partition {partition}: topic {topic.name} has 0 to {topic.partitions - 1}"
        )


def check_leads(
    node_id: str,
    topic: TopicInfo,
    partition: int,
    *,
    address: str = "",
    client_epoch: int = 0,
    role: str = "",
) -> None:
    """Raises NotLeader when another node leads the partition, and StaleEpoch when this node does
    but in another epoch than `client_epoch` (0: the client knows of none).

    `address`: of the leader, for the error. `role`: what the partition is to the caller, for the
    message, like `the partition of sink s`.
    """
    lead = leadership(topic, partition)
    named = f"partition {partition} of {topic.name}" + (f" ({role})" if role else "")
    if not leads(node_id, topic, partition):
        who = f"is led by {lead.leader}" if lead.leader else "has no leader"
        raise NotLeader(
            f"{named} {who} in epoch {lead.epoch}, not by {node_id}",
            leader=lead.leader or "", address=address, epoch=lead.epoch,
        )  # fmt: skip
    if client_epoch not in (0, lead.epoch):
        relation = "has ended" if client_epoch < lead.epoch else "is not known here yet"
        raise StaleEpoch(
            f"{named}: leader epoch {client_epoch} {relation}; {node_id} leads in epoch "
            f"{lead.epoch}",
            leader=lead.leader or "", address=address, epoch=lead.epoch,
        )  # fmt: skip
