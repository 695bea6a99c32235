"""Which other node leads all that is bound, if one does: MQTT 5 clients are sent there at CONNECT.

Such a client could store nothing here, and would hear nothing that is stored. Where leadership is
spread over nodes no server is the right one; publishes to other nodes' partitions are refused then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import NodeInfo, TopicInfo
from lakemq.plugins.mqtt.routing.hub import Hub

_ANY_HOST: Final = ("0.0.0.0:", "[::]:")
"""A listener on all interfaces has no address that clients could be told."""


def sole_leader(
    node_id: str, topics: Sequence[TopicInfo], nodes: Iterable[NodeInfo]
) -> Mapping[str, str]:
    """Listener name -> `host:port` of the one active node, not `node_id`, that leads every
    partition of the topics; empty where there is no such node."""
    leaders = {each.leader for topic in topics for each in topic.leaders}
    if len(leaders) != 1 or leaders & {None, node_id}:
        return {}
    for node in nodes:
        if node.node_id in leaders and node.state == "active":
            return {
                name: address
                for name, address in node.addresses.items()
                if not address.startswith(_ANY_HOST)
            }
    return {}


class ClusterLeaders:
    """Keeps `Hub.redirects` and `Hub.positions` in step with the catalog."""

    def __init__(self, hub: Hub, broker: Broker) -> None:
        self._hub = hub
        self._broker = broker
        self._topics = frozenset(binding.topic for binding in hub.bindings)
        self._topic_ids: dict[str, str] = {}

    def start(self) -> list[Callable[[], None]]:
        """Follow topics and nodes from now on; returns the removals."""
        self._hub.check_leader = self._check
        self._topic_ids = {
            topic.name: topic.topic_id
            for topic in self._broker.topics()
            if topic.name in self._topics
        }
        self._update()
        return [
            self._broker.watch_topics(self._topic_changed),
            self._broker.watch_nodes(self._update),
        ]

    def _check(self, topic: str, key: bytes) -> None:
        with suppress(UnknownTopic):  # found out when the publish is due
            self._broker.partition(topic, partition_of(key, self._broker.topic(topic).partitions))

    def _topic_changed(self, name: str, topic: TopicInfo | None) -> None:
        if name not in self._topics:
            return
        topic_id = topic.topic_id if topic is not None else ""
        if self._topic_ids.get(name, topic_id) != topic_id:
            self._forget_positions(name)
        self._topic_ids[name] = topic_id
        if topic is not None:
            self._note_positions(topic)
        self._update()

    def _forget_positions(self, name: str) -> None:
        """The topic was deleted: another one of its name begins at offset 0, and whatever lies
        below a position is taken for delivered."""
        for key in [key for key in self._hub.positions if key[0] == name]:
            del self._hub.positions[key]

    def _note_positions(self, topic: TopicInfo) -> None:
        """A partition that this node leads by now is delivered from its end on."""
        for number in range(topic.partitions):
            key = (topic.name, number)
            if key not in self._hub.positions and self._broker.serves(*key):
                self._hub.positions[key] = self._broker.partition(*key).high_watermark

    def _update(self) -> None:
        topics = []
        for name in self._topics:
            try:
                topics.append(self._broker.topic(name))
            except UnknownTopic:
                continue
        self._hub.redirects = sole_leader(self._broker.node_id, topics, self._broker.nodes())
