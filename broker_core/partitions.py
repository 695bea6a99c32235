"""The only way to a partition log: opens the logs that the catalog assigns to this node, and
refuses the partitions that other nodes lead.

Appends, fetches, taps, offset queries and the broker's own writes of every protocol come through
here, so none of them can be answered by a node whose records no reader of the cluster would see.
Internal topics are the exception, but for those that nodes share: each node has its own copy.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final

from lakemq.broker_core.api.errors import NotLeader, UnknownTopic
from lakemq.broker_core.api.leadership import check_leads, check_partition, leadership, leads
from lakemq.broker_core.api.ports import PartitionLog, Storage, Tap
from lakemq.broker_core.api.replica_ports import Repairable, ReplicaLog
from lakemq.broker_core.api.state.internal_topics import is_node_own
from lakemq.broker_core.api.types import Acks, Offset, PartitionStatus, TopicInfo
from lakemq.broker_core.replication.assignments import Assignments, is_shared
from lakemq.broker_core.replication.types import NO_EPOCH, Place
from lakemq.broker_core.taps import Taps
from lakemq.broker_core.topic_names import acks_min_of
from lakemq.meta_service.api.types import ReplicaEnd

_log: Final = logging.getLogger(__name__)


class Partitions:
    """The partition logs of this node.

    A log is opened when this node leads its partition or shall hold a replica, and then stays open
    until the topic is deleted or the replica has moved to another node, which deletes it here.
    """

    def __init__(
        self,
        node_id: str,
        storage: Storage,
        assignments: Assignments,
        address_of: Callable[[str], str] = lambda node: "",
    ) -> None:
        """`assignments`: of partitions that have replicas on other nodes. `address_of`: node id ->
        `host:port` of its native listener, empty if unknown."""
        self._node_id = node_id
        self._assignments = assignments
        self._storage = storage
        self._address_of = address_of
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[str, str] = {}
        """Topic id -> name."""
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        """By topic name and partition."""
        self._shared: dict[tuple[str, int], Place] = {}
        """Of those logs: the ones that have replicas on other nodes too."""
        self._alone: dict[tuple[str, int], int] = {}
        """Of those logs: epoch in which this process has led the only replica."""
        self._settled: set[Place] = set()
        """Replicas that were found damaged, and count again, or are copied again."""
        self._left: set[Place] = set()
        """Replicas on disk that moved away while the node was down, and are not deleted yet."""
        self._taps = Taps()
        self._serving_watchers: list[Callable[[], None]] = []
        assignments.on_change = self._tell_serving
        self.repair: Callable[[Place, Repairable], Awaitable[bool]] | None = None
        """What readers of a damaged log that has other replicas wait for; True: read again."""

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

    async def assign(self, topic: TopicInfo, changed: Iterable[int] | None = None) -> None:
        """Make the open logs and their configs agree with the catalog's newest `topic`, which must
        have the id of the topic known by that name, if one is. `changed`: the only partitions of it
        that are not as they were; None: look at all. Idempotent. Raises what
        `Storage.open_partition` does; logs that were opened stay open."""
        before = self._topics.get(topic.name)
        for number in range(topic.partitions) if changed is None else changed:
            if self._is_to_be_copied_again(topic, number):
                await self._delete_damaged(topic, number)
            log = self._logs.get((topic.name, number))
            if log is None and self._is_withheld(topic, number):
                self._shared[topic.name, number] = Place(topic.topic_id, number)
            elif log is None and self._is_assigned(topic, number):
                self._left.discard(Place(topic.topic_id, number))
                log = await self._storage.open_partition(topic, number)
                self._logs[topic.name, number] = log
                await self._take_part(topic, number, log)
                self._taps.opened(topic.name, log)
            elif log is None:
                await self._delete_left(topic, number)
            elif self._has_moved_away(topic, number):
                await self._drop(topic, number)
            else:
                await self._take_part(topic, number, log)
        if before is not None and before.config != topic.config:
            await self._storage.configure_topic(topic)
        # Last: `log` finds a partition only when its log is open.
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name

    def _is_withheld(self, topic: TopicInfo, partition: int) -> bool:
        """Whether this disk has lost the replica and the catalog has not been told: opened now, it
        would be an empty one that counts as whole after another crash."""
        return (
            not self._assignments.active
            and (topic.topic_id, partition) in self._disowned(topic)
        )  # fmt: skip

    def _is_to_be_copied_again(self, topic: TopicInfo, partition: int) -> bool:
        """Whether this node's replica was found damaged at the start, and the catalog, which has
        been told, counts on another one that has everything. Until then it is kept as it is: it
        may be the best that is left."""
        place = Place(topic.topic_id, partition)
        if not self._assignments.active or place in self._settled:
            return False
        if place not in [each[:2] for each in self._storage.disowned() if not each.missing]:
            return False
        held = leadership(topic, partition)
        if is_node_own(topic.name) or self._node_id in (*held.in_sync, *held.eligible):
            self._settled.add(place)
            return False
        return held.leader in held.in_sync and self._is_assigned(topic, partition)

    async def _delete_damaged(self, topic: TopicInfo, partition: int) -> None:
        self._settled.add(Place(topic.topic_id, partition))
        _log.warning(
            "%s/%d: this replica is damaged and is copied again from %s", topic.name, partition,
            leadership(topic, partition).leader,
        )  # fmt: skip
        await self._drop(topic, partition)

    def _has_moved_away(self, topic: TopicInfo, partition: int) -> bool:
        """Whether other nodes have the partition instead of this one, and one of them leads it."""
        return (
            leadership(topic, partition).leader is not None
            and not self._is_assigned(topic, partition)
        )  # fmt: skip

    async def _drop(self, topic: TopicInfo, partition: int) -> None:
        """Delete this node's replica."""
        self._logs.pop((topic.name, partition), None)
        self._alone.pop((topic.name, partition), None)
        self._shared.pop((topic.name, partition), None)
        await self._assignments.forget(Place(topic.topic_id, partition))
        await self._storage.delete_partition(topic.topic_id, partition)

    async def _take_part(self, topic: TopicInfo, partition: int, log: PartitionLog) -> None:
        """Have the log of a partition lead or follow, as the catalog says."""
        place, held = Place(topic.topic_id, partition), leadership(topic, partition)
        if is_shared(held, self._node_id) and not is_node_own(topic.name):
            self._shared[topic.name, partition] = place
            if isinstance(log, Repairable) and self.repair is not None:
                log.when_damaged(partial(self.repair, place, log))
            if isinstance(log, ReplicaLog):
                acks_min = acks_min_of(topic.config, Acks.REPLICATED)
                name = f"{topic.name}/{partition}"
                await self._assignments.assign(
                    place, name, log, held, acks_min,
                    led_alone=self._alone.get((topic.name, partition), NO_EPOCH),
                )  # fmt: skip
            return
        if self._shared.pop((topic.name, partition), None) is not None:
            await self._assignments.forget(place)
            if isinstance(log, Repairable):
                log.when_damaged(None)
        # A copy that is not replicated answers to itself alone: its epochs never fall, also where
        # the catalog was restored from an older one.
        if self._is_led(topic, partition) and isinstance(log, ReplicaLog):
            epoch = max(held.epoch, log.last_epoch())
            log.lead(epoch, alone=True, acks_min=acks_min_of(topic.config, Acks.MEMORY))
            self._alone[topic.name, partition] = epoch

    async def close(self, topic: TopicInfo) -> None:
        """Remove a topic that was deleted: `log` refuses its partitions from now on."""
        del self._topics[topic.name], self._names[topic.topic_id]
        for number in range(topic.partitions):
            self._logs.pop((topic.name, number), None)
            self._alone.pop((topic.name, number), None)
            self._left.discard(Place(topic.topic_id, number))
            if (place := self._shared.pop((topic.name, number), None)) is not None:
                await self._assignments.forget(place)
        self._taps.closed(topic.name)

    async def delete(self, topic_id: str) -> None:
        """Delete all that is on disk of a topic that was closed."""
        await self._storage.delete_topic(topic_id)

    async def delete_all_but(self, topic_ids: set[str]) -> None:
        """Delete from disk the topics that the catalog does not know."""
        for topic_id in await self._storage.stored_topic_ids() - topic_ids:
            await self._storage.delete_topic(topic_id)

    async def delete_moved_away(self) -> None:
        """Delete from disk the replicas that moved to other nodes while this one was down, each
        once another node leads. To be called when every topic has been assigned from a catalog that
        was read after this node's registration became active: an older one may name fewer replicas
        than there are."""
        if not self._assignments.active:
            return
        for topic_id, number in sorted(await self._storage.stored_partitions()):
            topic = self.find_id(topic_id)
            # A topic that is unknown here may be newer than what was read.
            if topic is None or number >= topic.partitions:
                continue
            if (topic.name, number) not in self._logs and not self._is_assigned(topic, number):
                self._left.add(Place(topic_id, number))
                await self._delete_left(topic, number)

    async def _delete_left(self, topic: TopicInfo, partition: int) -> None:
        """Delete what was left of a replica that was not opened, if another node leads now."""
        place = Place(topic.topic_id, partition)
        if (
            place not in self._left
            or not self._assignments.active
            or not self._has_moved_away(topic, partition)
        ):
            return
        self._left.discard(place)
        try:
            await self._storage.delete_partition(topic.topic_id, partition)
        except OSError as error:  # The next start tries again.
            _log.warning("%s/%d, which has moved away: %s", topic.name, partition, error)
        else:
            _log.info("%s/%d has moved to other nodes: deleted here", topic.name, partition)

    def _is_assigned(self, topic: TopicInfo, partition: int) -> bool:
        held = leadership(topic, partition)
        named = self._node_id in held.replicas or self._node_id in held.target
        return named or self._is_led(topic, partition)

    def _is_led(self, topic: TopicInfo, partition: int) -> bool:
        """Whether the catalog has this node lead."""
        return is_node_own(topic.name) or leads(self._node_id, topic, partition)

    def serves(self, topic: TopicInfo, partition: int) -> bool:
        """Whether this node takes appends to, and fetches from, the partition."""
        if not self._is_led(topic, partition) or (topic.name, partition) not in self._logs:
            return False
        place = self._shared.get((topic.name, partition))
        return place is None or self._assignments.leads(place)

    def watch_serving(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when `serves` may answer otherwise than before for reasons other than a
        change of the topic in the catalog; returns its removal."""
        self._serving_watchers.append(changed)
        return lambda: self._serving_watchers.remove(changed)

    def _tell_serving(self) -> None:
        for changed in tuple(self._serving_watchers):
            changed()

    def log(self, topic: str, partition: int, client_epoch: int = 0) -> PartitionLog:
        """The log of a partition that this node serves. Don't keep it for longer than the
        leadership is known to last: ask again. Raises UnknownTopic, UnknownPartition, NotLeader,
        StaleEpoch."""
        info = self._known(topic, partition)
        if not is_node_own(topic):
            self._check(info, partition, client_epoch)
        place = self._shared.get((topic, partition))
        if place is not None:
            self._assignments.check(place, f"{topic}/{partition}", leadership(info, partition))
        log = self._logs.get((topic, partition))
        if log is None:  # moved away: it is deleted before the rest of the change is applied
            raise NotLeader(
                f"{topic}/{partition}: {self._node_id} gives its replica up",
                epoch=leadership(info, partition).epoch,
            )
        return log

    def readable_end(self, topic: str, partition: int) -> Offset | None:
        """High watermark of this node's replica; None: the catalog assigns none to it. Raises
        UnknownTopic, UnknownPartition."""
        self._known(topic, partition)
        log = self.replica(topic, partition)
        return log.high_watermark if log is not None else None

    def replica(self, topic: str, partition: int) -> PartitionLog | None:
        """This node's replica, whether it leads or follows; None: the catalog assigns none to it,
        or it is not open yet."""
        info = self._topics.get(topic)
        if info is None or not self._is_assigned(info, partition):
            return None
        return self._logs.get((topic, partition))

    def readable(self, topic: str, partition: int, client_epoch: int = 0) -> PartitionLog:
        """As `log`, also of a replica that follows and is in sync."""
        info = self._known(topic, partition)
        lead = leadership(info, partition)
        log = None
        if self._node_id in lead.in_sync and client_epoch <= lead.epoch:
            log = self.replica(topic, partition)
        if log is None or self._is_led(info, partition):
            return self.log(topic, partition, client_epoch)
        return log

    def leaderless(self) -> list[ReplicaEnd]:
        """Where this node's replicas of partitions without a leader end."""
        found: list[ReplicaEnd] = []
        for (name, number), place in self._shared.items():
            log, info = self._logs.get((name, number)), self._topics.get(name)
            if info is None or leadership(info, number).leader is not None:
                continue
            if isinstance(log, ReplicaLog):
                found.append(
                    ReplicaEnd(*place, log.last_epoch(), log.log_start_offset, log.durable_end)
                )
        return found

    def damaged(self) -> list[tuple[Place, Repairable]]:
        """Logs with damage that is known, and of which other nodes have replicas."""
        found: list[tuple[Place, Repairable]] = []
        for key, place in self._shared.items():
            log: object = self._logs.get(key)
            if isinstance(log, Repairable) and log.damaged():
                found.append((place, log))
        return found

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
            status = self._logs[topic, partition].status()
            place = self._shared.get((topic, partition))
            return status if place is None else replace(status, lags=self._assignments.lags(place))
        leader = leadership(info, partition).leader
        detail = f"led by {leader}" if leader else "no node leads it"
        return PartitionStatus(partition, "remote", 0, 0, 0, 0, 0, detail)

    def opened(self) -> list[tuple[Place, PartitionLog]]:
        """All logs of this node, of internal topics too."""
        return [
            (Place(self._topics[name].topic_id, number), log)
            for (name, number), log in self._logs.items()
            if name in self._topics
        ]

    def is_leader(self, place: Place) -> bool:
        """Whether the catalog names this node as the leader of a partition of no internal topic."""
        topic = self.find_id(place.topic_id)
        if topic is None or is_node_own(topic.name):
            return False
        return leads(self._node_id, topic, place.partition)

    def disowned(self) -> list[tuple[str, int]]:
        """(topic id, partition) of replicas of which this disk has lost something, and which other
        nodes have too: the catalog is not to count on them before they have been copied again."""
        return [place for topic in self.topics() for place in self._disowned(topic)]

    def _disowned(self, topic: TopicInfo) -> list[tuple[str, int]]:
        return [
            (each.topic_id, each.partition)
            for each in self._storage.disowned()
            if each.topic_id == topic.topic_id
            and not is_node_own(topic.name)
            and is_shared(leadership(topic, each.partition), self._node_id)
        ]

    def together(self) -> AbstractContextManager[None]:
        """As `Storage.together`."""
        return self._storage.together()

    def tap(self, topic: str, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every batch of the topic that becomes readable on this node; returns its
        removal."""
        return self._taps.add(
            topic, tap, [log for (name, _), log in self._logs.items() if name == topic]
        )
