"""Which node leads a partition, as the catalog says: the one rule for every protocol. Pure."""

from __future__ import annotations

from typing import Final

from broker_core.api.errors import NotLeader
from broker_core.api.types import Leadership, TopicInfo

NOBODY: Final = Leadership(None, 0)


def leadership(topic: TopicInfo, partition: int) -> Leadership:
    """What the catalog says of a partition; `NOBODY` of one that it does not know yet."""
    return topic.leaders[partition] if 0 <= partition < len(topic.leaders) else NOBODY


def leads(node_id: str, topic: TopicInfo, partition: int) -> bool:
    """Whether a node leads a partition. One without a leader is answered by the nodes that hold a
    replica, so that it can be read and a node that starts alone is not refused."""
    lead = leadership(topic, partition)
    if lead.leader is None:
        return not lead.replicas or node_id in lead.replicas
    return lead.leader == node_id


def check_leads(node_id: str, topic: TopicInfo, partition: int, what: str = "") -> None:
    """Raises NotLeader with the leader and its epoch. `what` tells what the partition is to the
    caller: `which sink s belongs to`."""
    if not leads(node_id, topic, partition):
        lead = leadership(topic, partition)
        which = f", {what}," if what else ""
        raise NotLeader(
            f"partition {partition} of {topic.name}{which} is led by {lead.leader or 'nobody'}",
            leader=lead.leader or "", epoch=lead.epoch,
        )  # fmt: skip
