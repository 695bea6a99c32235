"""Commits of offsets: who may commit, and in whose place. Also those with a transaction."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit, check_group_name
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, Principal, Resource, TopicPartition
from lakemq.broker_core.groups.coordinated import CoordinatedGroups, monotonic_ms
from lakemq.broker_core.groups.offset_log import OffsetLog
from lakemq.broker_core.groups.offset_table import check_commit

Checked = tuple[int, dict[TopicPartition, OffsetToCommit]]
"""(member epoch, offsets)."""


class GroupCommits:
    """Implements `offset_effect.Groups`."""

    def __init__(self, broker: Broker, groups: CoordinatedGroups) -> None:
        self.count = 0
        self._broker = broker
        self._groups = groups

    @property
    def offsets(self) -> OffsetLog:
        """Offsets that are committed, and held."""
        return self._groups.offsets

    async def arrive(self, name: str) -> None:
        """As `CoordinatedGroups.arrive`."""
        await self._groups.arrive(name)

    def is_here(self, name: str) -> bool:
        """As `CoordinatedGroups.is_here`."""
        return self._groups.is_here(name)

    async def commit(self, commit: GroupCommit, principal: Principal) -> None:
        """As `GroupCoordinators.commit`."""
        self.authorize_commit(commit, principal)
        await self.arrive(commit.group)
        epoch, offsets = self.checked(commit)
        await self.offsets.commit(commit.group, epoch, offsets)

    def check_reset(self, commit: GroupCommit, principal: Principal) -> None:
        """As `GroupCoordinators.check_reset`."""
        if commit.member_id:
            raise InvalidRequest("a reset has no member_id")
        self.authorize_commit(commit, principal)
        self._check(commit)

    def authorize_commit(self, commit: GroupCommit, principal: Principal) -> None:
        """Raises NotAuthorized, InvalidRequest."""
        check_group_name(commit.group)
        # Without a member it is an operator who sets the offsets.
        operation = Operation.READ if commit.member_id else Operation.ALTER
        self._broker.authorize(principal, operation, Resource("group", commit.group))
        for name in {place.topic for place in commit.offsets}:
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("topic", name))

    def checked(self, commit: GroupCommit) -> Checked:
        """Of a commit that may be taken, and is counted as one. Raises as `commit`."""
        self._check(commit)
        self.count += 1
        return commit.member_epoch if commit.member_id else 0, dict(commit.offsets)

    def _check(self, commit: GroupCommit) -> None:
        check_group_name(commit.group)
        self._groups.check_here(commit.group)
        for place, asked in commit.offsets.items():
            check_commit(asked.offset, asked.metadata)
            if asked.offset >= 0:
                check_partition(self._broker.topic(place.topic), place.partition)
        self.offsets.held.check_free(commit.group, commit.offsets)
        self._groups.peek(commit.group).check_commit(
            commit.member_id, commit.member_epoch, commit.sequence, commit.offsets, monotonic_ms()
        )

    def withdraw(self, name: str, places: Iterable[TopicPartition], member_id: str) -> None:
        """Offsets that the table showed were not committed after all: a client other than
        `member_id` has begun to read there must not commit."""
        group = self._groups.coordinator.groups.get(name)
        if group is not None:
            group.withdraw(frozenset(places), member_id)
