"""The only way to a partition log: opens the logs that the catalog assigns to this node, and
refuses the partitions that other nodes lead.

Appends, fetches, taps, offset queries and the broker's own writes of every protocol come through
here, so none of them can be answered by a node whose records no reader of the cluster would see.
Internal topics are the exception: until they are replicated, each node keeps its own copy of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from lakemq.broker_core.api.errors import UnknownTopic
from lakemq.broker_core.api.leadership import check_leads, check_partition, leadership, leads
from lakemq.broker_core.api.ports import PartitionLog, Storage, Tap
from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import Offset, PartitionStatus, TopicInfo
from lakemq.broker_core.taps import Taps


class Partitions:
    """The partition logs of this node.

    A log is opened when this node leads its partition or holds a replica, and then stays open until
    the topic is deleted. What this node stored of a partition that it is no longer assigned stays
    on disk, unopened: only the deletion of the topic removes it.
    """

    def __init__(
        self, node_id: str, storage: Storage, address_of: Callable[[str], str] = lambda node: ""
    ) -> None:
        """`address_of`: node id -> `host:port` of its native listener, empty if unknown."""
        self._node_id = node_id
        self._storage = storage
        self._address_of = address_of
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[str, str] = {}
        """Topic id -> name."""
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        """By topic name and partition."""
        self._taps = Taps()

    def topics(self) -> list[TopicInfo]:
        """All topics of the catalog as this node knows it, those of other nodes too."""
        return list(self._topics.values())

    def find(self, name: str) -> TopicInfo | None:
        """The topic of that name; None: it is unknown."""
        return self._topics.get(name)

    def find_id(self, topic_id: str) -> TopicInfo | None:
        """The topic of that id; None: it is unknown."""
        return self._topics.get(self._names.get(topic_id, ""))

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(f"topic {name!r} does not exist") from None

    async def assign(self, topic: TopicInfo) -> None:
        """Make the open logs and their configs agree with the catalog's newest `topic`, which must
        have the id of the topic known by that name, if one is. Idempotent. Raises what
        `Storage.open_partition` does; logs that were opened stay open."""
        before = self._topics.get(topic.name)
        for number in range(topic.partitions):
            if (topic.name, number) not in self._logs and self._is_assigned(topic, number):
                log = await self._storage.open_partition(topic, number)
                self._logs[topic.name, number] = log
                self._lead(topic, number)
                self._taps.opened(topic.name, log)
            elif before is not None:
                self._lead(topic, number)
        if before is not None and before.config != topic.config:
            await self._storage.configure_topic(topic)
        # Last: `log` finds a partition only when its log is open.
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name

    def _lead(self, topic: TopicInfo, partition: int) -> None:
        """Have the log of a partition that this node serves take appends, of the catalog's epoch.

        A copy that is not replicated answers to itself alone: its epochs never fall, also where
        the catalog was restored from an older one.
        """
        log = self._logs.get((topic.name, partition))
        if self.serves(topic, partition) and isinstance(log, ReplicaLog):
            epoch = leadership(topic, partition).epoch
            log.lead(max(epoch, log.last_epoch()), alone=True)

    def close(self, topic: TopicInfo) -> None:
        """Remove a topic that was deleted: `log` refuses its partitions from now on."""
        del self._topics[topic.name], self._names[topic.topic_id]
        for number in range(topic.partitions):
            self._logs.pop((topic.name, number), None)
        self._taps.closed(topic.name)

    async def delete(self, topic_id: str) -> None:
        """Delete all that is on disk of a topic that was closed."""
        await self._storage.delete_topic(topic_id)

    async def delete_all_but(self, topic_ids: set[str]) -> None:
        """Delete from disk the topics that the catalog does not know."""
        for topic_id in await self._storage.stored_topic_ids() - topic_ids:
            await self._storage.delete_topic(topic_id)

    def _is_assigned(self, topic: TopicInfo, partition: int) -> bool:
        replicas = leadership(topic, partition).replicas
        return self.serves(topic, partition) or self._node_id in replicas

    def serves(self, topic: TopicInfo, partition: int) -> bool:
        """Whether this node takes appends to, and fetches from, the partition."""
        return is_internal(topic.name) or leads(self._node_id, topic, partition)

    def log(self, topic: str, partition: int, client_epoch: int = 0) -> PartitionLog:
        """The log of a partition that this node serves. Don't keep it for longer than the
        leadership is known to last: ask again. Raises UnknownTopic, UnknownPartition, NotLeader,
        StaleEpoch."""
        info = self._known(topic, partition)
        if not is_internal(topic):
            self._check(info, partition, client_epoch)
        return self._logs[topic, partition]

    def readable_end(self, topic: str, partition: int) -> Offset | None:
        """High watermark of this node's replica; None: the catalog assigns none to it. Raises
        UnknownTopic, UnknownPartition."""
        info = self._known(topic, partition)
        if not self._is_assigned(info, partition):
            return None
        return self._logs[topic, partition].high_watermark

    def check_leads(self, topic: str, partition: int, role: str) -> None:
        """Raises NotLeader when the catalog names another node, for internal topics too."""
        self._check(self._known(topic, partition), partition, role=role)

    def _check(
        self, topic: TopicInfo, partition: int, client_epoch: int = 0, role: str = ""
    ) -> None:
        # The usual case, a leader asked without an epoch, does not look the address up.
        if client_epoch or not leads(self._node_id, topic, partition):
            address = self._address_of(leadership(topic, partition).leader or "")
            check_leads(
                self._node_id, topic, partition,
                address=address, client_epoch=client_epoch, role=role,
            )  # fmt: skip

    def _known(self, topic: str, partition: int) -> TopicInfo:
        info = self.topic(topic)
        check_partition(info, partition)
        return info

    def status(self, topic: str, partition: int) -> PartitionStatus:
        """State `remote`, with offsets of 0, where this node does not serve the partition. Raises
        UnknownTopic, UnknownPartition."""
        info = self._known(topic, partition)
        if self.serves(info, partition):
            return self._logs[topic, partition].status()
        leader = leadership(info, partition).leader
        detail = f"led by {leader}" if leader else "no node leads it"
        return PartitionStatus(partition, "remote", 0, 0, 0, 0, 0, detail)

    def together(self) -> AbstractContextManager[None]:
        """As `Storage.together`."""
        return self._storage.together()

    def tap(self, topic: str, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every batch of the topic that becomes readable on this node; returns its
        removal."""
        return self._taps.add(
            topic, tap, [log for (name, _), log in self._logs.items() if name == topic]
        )
