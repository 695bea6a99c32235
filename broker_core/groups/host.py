"""The group coordinators of a node, composed: clock and tasks around the parts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.broker_core.api.groups.ports import MemberListener
from lakemq.broker_core.api.groups.types import (
    CommittedOffset,
    GroupCommit,
    GroupCounters,
    GroupDescription,
    GroupSettings,
    Heartbeat,
    MemberAssignment,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.transactions.types import Effect
from lakemq.broker_core.api.types import Principal, TopicPartition
from lakemq.broker_core.groups.commits import GroupCommits
from lakemq.broker_core.groups.coordinated import CoordinatedGroups, monotonic_ms
from lakemq.broker_core.groups.descriptions import GroupDescriptions
from lakemq.broker_core.groups.members import GroupMembers
from lakemq.broker_core.groups.offset_effect import OFFSETS, OffsetsAsked, OffsetsParticipant
from lakemq.broker_core.groups.offset_expiry import OffsetExpiry

_log: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.2


class GroupHost:
    """Implements the `GroupCoordinators` port."""

    def __init__(self, broker: Broker, settings: GroupSettings | None = None) -> None:
        self._broker = broker
        self._groups = groups = CoordinatedGroups(
            broker, settings or GroupSettings(), self._served, self._dropped
        )
        self._members = GroupMembers(broker, groups)
        self._commits = GroupCommits(broker, groups)
        self._descriptions = GroupDescriptions(broker, groups)
        self._participant = OffsetsParticipant(broker, self._commits)
        self._expiry = self._expiry_from_now()
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    async def start(self) -> None:
        """Load committed offsets and start expiring sessions and offsets."""
        await self._groups.residents.start()
        self._register()
        self._participant.start()
        self._start_tasks()

    def _start_tasks(self) -> None:
        self._tasks = [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._expire_offsets()),
        ]

    async def stop(self) -> None:
        """Listeners hear nothing any more."""
        await self._stop_tasks()
        await self._participant.stop()
        await self._groups.residents.stop()

    async def _stop_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def settings(self) -> GroupSettings:
        """As in the port."""
        return self._groups.settings

    def configure(self, settings: GroupSettings) -> None:
        """As in the port."""
        before, self._groups.settings = self._groups.settings, settings
        if _limits(settings) != _limits(before):
            self._members.limit()
        if _retention(settings) != _retention(before):
            self._expiry = self._expiry_from_now()
            if self._tasks:  # they wait for as long as the former settings say
                for task in self._tasks:
                    task.cancel()
                self._start_tasks()

    def _expiry_from_now(self) -> OffsetExpiry:
        settings = self._groups.settings
        return OffsetExpiry(
            retention_ms=settings.offsets_retention_ms,
            session_timeout_max_ms=settings.session_timeout_max_ms,
            started_ms=monotonic_ms(),
        )

    def _register(self) -> None:
        self._broker.transactions.register_participant(OFFSETS, self._participant)

    def _served(self) -> None:
        self._expiry.begin(monotonic_ms())
        # Offsets of decided transactions are in force before any member joins or commits.
        self._register()

    def _dropped(self, name: str, error: NotLeader) -> None:
        self._members.dropped(name, error)

    async def _tick(self) -> None:
        groups = self._groups
        while True:
            wanted = {name for group in groups.coordinator.groups.values() for name in group.topics}
            told = groups.coordinator.tick(groups.counts(wanted), monotonic_ms(), groups.is_here)
            for name, tells in told.items():
                self._members.tell(name, tells)
            await asyncio.sleep(_TICK_S)

    async def _expire_offsets(self) -> None:
        """Delete groups that have been unused for `offsets_retention_ms`."""
        offsets, groups = self._groups.offsets, self._groups.coordinator.groups
        while True:
            await asyncio.sleep(self._expiry.interval_ms / 1000)
            now_ms, wall_ms = monotonic_ms(), time.time_ns() // 1_000_000
            members = {name for name, group in groups.items() if group.members}
            members |= offsets.held.groups()
            for name in self._expiry.expired(offsets.table, members, now_ms, wall_ms):
                try:
                    await offsets.delete(name)
                except LakeMQError as error:
                    _log.warning("offsets of group %s are kept for now: %s", name, error)
                else:
                    groups.pop(name, None)
                    _log.info("group %s was not used for long; its offsets are forgotten", name)

    # -- the port

    @property
    def counters(self) -> GroupCounters:
        """As in the port."""
        rebalances = sum(each.rebalances for each in self._groups.coordinator.groups.values())
        return GroupCounters(self._commits.count, rebalances)

    def coordinator_of(self, group: str) -> str:
        """As in the port."""
        return self._groups.coordinator_of(group)

    def coordinators(self) -> Sequence[str]:
        """As in the port."""
        return self._groups.coordinators()

    async def heartbeat(
        self,
        group: str,
        beat: Heartbeat,
        *,
        principal: Principal,
        listener: MemberListener | None = None,
    ) -> MemberAssignment | None:
        """As in the port."""
        return await self._members.heartbeat(group, beat, principal, listener)

    async def leave(
        self, group: str, member_id: str, *, principal: Principal, away: bool = False
    ) -> None:
        """As in the port."""
        await self._members.leave(group, member_id, principal, away=away)

    def unlisten(self, group: str, member_id: str, listener: MemberListener) -> None:
        """As in the port."""
        self._members.unlisten(group, member_id, listener)

    async def commit(self, commit: GroupCommit, *, principal: Principal) -> None:
        """As in the port."""
        await self._commits.commit(commit, principal)

    def check_reset(self, commit: GroupCommit, *, principal: Principal) -> None:
        """As in the port."""
        self._commits.check_reset(commit, principal)

    def effect(self, commit: GroupCommit, *, principal: Principal) -> Effect:
        """As in the port."""
        return Effect(OFFSETS, OffsetsAsked(commit, principal))

    async def committed(
        self, group: str, *, principal: Principal
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """As in the port."""
        return await self._descriptions.committed(group, principal)

    def names(self) -> Sequence[str]:
        """As in the port."""
        return self._groups.names()

    def may_describe(self, group: str, *, principal: Principal) -> bool:
        """As in the port."""
        return self._descriptions.may_describe(group, principal)

    def describe(
        self, groups: Sequence[str] = (), *, principal: Principal
    ) -> Sequence[GroupDescription]:
        """As in the port."""
        return self._descriptions.describe(groups, principal)

    def check_delete(self, group: str, *, principal: Principal) -> None:
        """As in the port."""
        self._descriptions.check_delete(group, principal)

    async def delete(self, group: str, *, principal: Principal) -> None:
        """As in the port."""
        self.check_delete(group, principal=principal)
        self._groups.coordinator.groups.pop(group, None)
        await self._groups.offsets.delete(group)

    def lags(self) -> Mapping[tuple[str, str], int]:
        """As in the port."""
        return self._descriptions.lags()


def _limits(settings: GroupSettings) -> tuple[int, float, int]:
    return settings.groups_max, settings.user_share_max, settings.members_max


def _retention(settings: GroupSettings) -> tuple[int, int]:
    return settings.offsets_retention_ms, settings.session_timeout_max_ms
