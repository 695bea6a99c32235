"""Whether this node leads a partition, and who does if not. Pure."""

from __future__ import annotations

from broker_core.api.errors import LakeMQError, NotLeader, StaleEpoch
from broker_core.api.internal_topics import is_internal
from broker_core.api.leadership import leadership, leads
from broker_core.api.ports import Broker
from broker_core.api.types import TopicInfo


class Leaders:
    """Refuses what is another node's to answer, and names that node."""

    def __init__(self, broker: Broker) -> None:
        self.addresses: dict[str, str] = {}
        """Node id -> address of its native listener."""
        self._broker = broker

    def check(self, topic: str, partition: int, epoch: int) -> None:
        """`epoch`: of the leadership that the client knows; 0: of none. Topics that the broker
        keeps for itself are each node's own. Raises NotLeader, StaleEpoch, UnknownTopic."""
        info = self._broker.topic(topic)
        lead, ours = leadership(info, partition), leads(self._broker.node_id, info, partition)
        if (ours and epoch in (0, lead.epoch)) or is_internal(topic):
            return
        kind, why = NotLeader, f"{lead.leader or 'nobody'} leads it in epoch {lead.epoch}"
        if ours:
            kind = StaleEpoch
            behind = "is over" if epoch < lead.epoch else "is not known here yet"
            why = f"epoch {epoch} {behind}; {self._broker.node_id} leads it in epoch {lead.epoch}"
        leader = lead.leader or ""
        raise kind(
            f"partition {partition} of {topic}: {why}",
            leader=leader, address=self.addresses.get(leader, ""), epoch=lead.epoch,
        )  # fmt: skip

    def named(self, error: LakeMQError) -> LakeMQError:
        """The error with the leader's address, if it tells of a leader and we know the address."""
        if isinstance(error, NotLeader) and not error.address:
            error.address = self.addresses.get(error.leader, "")
        return error

    def is_ours(self, topic: TopicInfo, partition: int) -> bool:
        return is_internal(topic.name) or leads(self._broker.node_id, topic, partition)
