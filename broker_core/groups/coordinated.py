"""The groups that a node coordinates: those of the partitions of the offsets topic that it leads.

It refuses others (NotLeader, with the coordinator's address).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from lakemq.broker_core.api.errors import NotLeader, UnknownTopic
from lakemq.broker_core.api.groups.types import AssignedPartition, GroupSettings, check_group_name
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.coordinator import (
    FIRST_EPOCH_BITS,
    ConsumerGroup,
    GroupCoordinator,
)
from lakemq.broker_core.groups.offset_log import OffsetLog, StoredOffsets
from lakemq.broker_core.groups.offset_table import OFFSETS_TOPIC


class _Term(NamedTuple):
    """Of this node as the coordinator of a partition's groups."""

    first_epoch: int
    """Behind which epochs of its groups begin."""
    takeover_until_ms: int | None
    """As in `ConsumerGroup`."""


class CoordinatedGroups:
    """Implements the `Resident` port: committed offsets, and groups that have members."""

    def __init__(
        self,
        broker: Broker,
        settings: GroupSettings,
        served: Callable[[], None],
        dropped: Callable[[str, NotLeader], None],
    ) -> None:
        """`served`: a partition was read back. `dropped`: a group has another coordinator."""
        self.settings = settings
        self.offsets = OffsetLog(broker)
        self.coordinator = GroupCoordinator(
            groups_max=settings.groups_max, members_max=settings.members_max
        )
        self.residents = Residents(broker, self.offsets.topic, self)
        self._broker = broker
        self._served, self._dropped = served, dropped
        self._terms: dict[int, _Term] = {}
        """By partition of the offsets topic."""

    # -- the resident

    async def load(self, partition: int, end: int) -> StoredOffsets:
        """As `Resident.load`."""
        return await self.offsets.load(partition, end)

    def serve(self, partition: int, epoch: int, state: StoredOffsets) -> None:
        """As `Resident.serve`."""
        now_ms = monotonic_ms()
        self.offsets.take(state, now_ms)
        # Where no other node has a copy none has coordinated the groups: members have noticed the
        # end of this node's former process, and hold nothing.
        waits = epoch > 0 and self._has_copies(partition)
        until_ms = now_ms + self.settings.session_timeout_ms if waits else None
        self._terms[partition] = _Term(epoch << FIRST_EPOCH_BITS, until_ms)
        self._served()

    def _has_copies(self, partition: int) -> bool:
        held = leadership(self._broker.topic(OFFSETS_TOPIC), partition)
        return len(held.replicas) > 1

    def is_shared(self, name: str) -> bool:
        """Whether another node may coordinate the group next, and would wait for its members."""
        partition = self.offsets.partition_of(name)
        return partition is not None and self._has_copies(partition)

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        for name in list(self.coordinator.groups):
            if self.offsets.partition_of(name) in (partition, None):
                del self.coordinator.groups[name]
                self._dropped(name, NotLeader(f"group {name} has another coordinator by now"))
        self.offsets.drop(partition)
        self._terms.pop(partition, None)

    # -- whose matter a group is

    def check_here(self, name: str) -> None:
        """As `arrive`, at once, and of a group that there may not be."""
        partition = self.offsets.partition_of(name)
        if partition is not None:
            self.residents.check(partition)

    def is_here(self, name: str) -> bool:
        """Whether `check_here` raises nothing."""
        partition = self.offsets.partition_of(name)
        return partition is None or self.residents.serves(partition)

    async def arrive(self, name: str) -> None:
        """Raises NotLeader, with the address, where another node coordinates the group, which may
        be the first one; Unavailable while this one takes it over, after a while."""
        check_group_name(name)
        await self.offsets.ensure()
        partition = self.offsets.partition_of(name)
        assert partition is not None
        await self.residents.arrive(partition)

    def coordinator_of(self, name: str) -> str:
        """Node that coordinates the group; empty: none does now, or the first use will tell."""
        partition = self.offsets.partition_of(name)
        if partition is None:
            return ""
        return leadership(self._broker.topic(OFFSETS_TOPIC), partition).leader or ""

    def coordinators(self) -> Sequence[str]:
        """Nodes that coordinate groups, in order."""
        info = self.offsets.topic.info
        leaders = info.leaders if info is not None else ()
        return sorted({each.leader for each in leaders if each.leader})

    # -- groups

    def names(self) -> list[str]:
        """Of all groups that this node coordinates, in no order."""
        known = {*self.offsets.table.groups(), *self.coordinator.groups}
        return [name for name in known if self.is_here(name)]

    def group(self, name: str) -> ConsumerGroup:
        """The group, made if absent. Raises InvalidRequest: too many groups."""
        return self.coordinator.group(name, *self._term(name))

    def peek(self, name: str) -> ConsumerGroup:
        """The group, not kept if it is a new one."""
        return self.coordinator.groups.get(name) or ConsumerGroup(name, *self._term(name))

    def _term(self, name: str) -> _Term:
        partition = self.offsets.partition_of(name)
        term = self._terms.get(-1 if partition is None else partition, _Term(0, None))
        return term._replace(
            first_epoch=max(term.first_epoch, self.offsets.table.highest_epoch(name))
        )

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Topic -> number of partitions, of those that are there."""
        found = {}
        for name in topics:
            with suppress(UnknownTopic):
                found[name] = self._broker.topic(name).partitions
        return found

    def assigned(self, group: str, place: TopicPartition, epoch: int) -> AssignedPartition:
        """A partition of a member, with its committed offset."""
        committed = -1
        with suppress(UnknownTopic):
            topic_id = self._broker.topic(place.topic).topic_id
            committed = self.offsets.table.offset(group, place, topic_id)
        return AssignedPartition(*place, epoch, committed)


def monotonic_ms() -> int:
    """A time that never goes back (ms)."""
    return time.monotonic_ns() // 1_000_000
