"""What operators and metrics see of the groups of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from lakemq.broker_core.api.errors import GroupNotEmpty, LakeMQError, NotLeader, UnknownGroup
from lakemq.broker_core.api.groups.types import (
    CommittedOffset,
    GroupDescription,
    GroupMember,
    GroupOffset,
    check_group_name,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, Principal, Resource, TopicPartition
from lakemq.broker_core.groups.coordinated import CoordinatedGroups, monotonic_ms
from lakemq.broker_core.groups.coordinator import ConsumerGroup, Member


class GroupDescriptions:
    """Reads `CoordinatedGroups`. Methods are as those of the port `GroupCoordinators`."""

    def __init__(self, broker: Broker, groups: CoordinatedGroups) -> None:
        self._broker = broker
        self._groups = groups

    async def committed(
        self, group: str, principal: Principal
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """As in the port."""
        check_group_name(group)
        self._authorize(group, principal)
        await self._groups.arrive(group)
        found = {}
        for place, each in self._groups.offsets.table.of(group).items():
            with suppress(LakeMQError):  # the topic is gone
                if self._broker.topic(place.topic).topic_id == each.topic_id:
                    found[place] = CommittedOffset(each.offset, each.committed_ms, each.metadata)
        return found

    def _authorize(self, name: str, principal: Principal) -> None:
        self._broker.authorize(principal, Operation.DESCRIBE, Resource("group", name))

    def may_describe(self, name: str, principal: Principal) -> bool:
        """As in the port."""
        try:
            self._authorize(name, principal)
        except LakeMQError:
            return False
        return True

    def describe(self, names: Sequence[str], principal: Principal) -> list[GroupDescription]:
        """As in the port."""
        for name in names:
            self._groups.check_here(name)
            self._authorize(name, principal)
        wanted = names or [
            name for name in sorted(self._groups.names()) if self.may_describe(name, principal)
        ]
        return [self._described(name) for name in wanted]

    def _described(self, name: str) -> GroupDescription:
        group = self._groups.coordinator.groups.get(name)
        if group is None:
            self._check_known(name)
            group = self._groups.peek(name)
        return GroupDescription(
            name,
            group.state,
            group.epoch,
            [self._member(name, member) for member in group.members.values()],
            self._offsets(name, group),
        )

    def _member(self, group: str, member: Member) -> GroupMember:
        return GroupMember(
            member.member_id,
            member.instance_id,
            member.epoch,
            sorted(member.topics),
            [
                self._groups.assigned(group, place, epoch)
                for place, epoch in sorted(member.owned.items())
            ],
        )

    def _offsets(self, name: str, group: ConsumerGroup) -> list[GroupOffset]:
        """Of everything that was committed or is read now."""
        table = self._groups.offsets.table.of(name)
        read = {
            TopicPartition(topic, number)
            for topic, count in self._groups.counts(group.topics).items()
            for number in range(count)
        }
        found = []
        for place in sorted(table.keys() | read):
            committed = table.get(place)
            try:
                topic_id = self._broker.topic(place.topic).topic_id
                start, end = self._bounds(place)
            except LakeMQError:
                continue
            kept = committed if committed and committed.topic_id == topic_id else None
            found.append(
                GroupOffset(
                    *place,
                    kept.offset if kept else -1,
                    start,
                    end,
                    kept.committed_ms if kept else 0,
                    kept.metadata if kept else "",
                )
            )
        return found

    def _bounds(self, place: TopicPartition) -> tuple[int, int]:
        """(log start offset, high watermark); -1 where another node leads the partition, which
        alone knows the first. The second is that of a replica where there is one."""
        try:
            log = self._broker.partition(*place)
        except NotLeader:
            end = self._broker.readable_end(*place)
            return -1, -1 if end is None else end
        return log.log_start_offset, log.high_watermark

    # -- deletion

    def check_delete(self, name: str, principal: Principal) -> None:
        """As in the port; Unavailable also while members may come back."""
        self._groups.check_here(name)
        self._broker.authorize(principal, Operation.DELETE, Resource("group", name))
        group = self._groups.coordinator.groups.get(name)
        if group is not None and group.members:
            raise GroupNotEmpty(f"group {name} has {len(group.members)} member(s)")
        offsets = self._groups.offsets
        if group is None:
            self._check_known(name)
        offsets.held.check_free(name, offsets.table.of(name))
        self._groups.peek(name).check_settled(monotonic_ms())

    def _check_known(self, name: str) -> None:
        if not self._groups.offsets.table.of(name):
            raise UnknownGroup(f"group {name!r} does not exist")

    # -- metrics

    def lags(self) -> dict[tuple[str, str], int]:
        """As in the port."""
        found: dict[tuple[str, str], int] = {}
        for name in self._groups.offsets.table.groups():
            for place, lag in self._lags_of(name).items():
                found[name, place.topic] = found.get((name, place.topic), 0) + lag
        return found

    def _lags_of(self, name: str) -> Mapping[TopicPartition, int]:
        found = {}
        for place, committed in self._groups.offsets.table.of(name).items():
            with suppress(LakeMQError):
                if self._broker.topic(place.topic).topic_id == committed.topic_id:
                    end = self._broker.readable_end(*place)
                    if end is not None:
                        found[place] = max(0, end - committed.offset)
        return found
