"""Who may do it: the node that leads a partition. Pure."""

from __future__ import annotations

from broker_core.api.errors import NotLeader
from broker_core.api.types import Leadership, TopicInfo


def leads(node_id: str, topic: TopicInfo, partition: int) -> bool:
    """Whether this node leads a partition, or nobody does and it has it."""
    lead = _leadership(topic, partition)
    if lead.leader is None:
        return not lead.replicas or node_id in lead.replicas
    return lead.leader == node_id


def check_leads(node_id: str, topic: TopicInfo, partition: int, why: str) -> None:
    """Raises NotLeader. `why` tells what the partition is to whoever asked."""
    if not leads(node_id, topic, partition):
        lead = _leadership(topic, partition)
        raise NotLeader(
            f"partition {partition} of {topic.name}, {why}, is led by {lead.leader or 'nobody'}",
            leader=lead.leader or "", epoch=lead.epoch,
        )  # fmt: skip


def _leadership(topic: TopicInfo, partition: int) -> Leadership:
    there = 0 <= partition < len(topic.leaders)
    return topic.leaders[partition] if there else Leadership(None, 0)
