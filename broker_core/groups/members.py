"""Members of the groups of a node: what they say, and who hears for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lakemq.broker_core.api.errors import InvalidRequest, NotLeader
from lakemq.broker_core.api.groups.ports import MemberListener
from lakemq.broker_core.api.groups.types import Heartbeat, MemberAssignment, check_group_name
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, Principal, Resource
from lakemq.broker_core.groups.coordinated import CoordinatedGroups, monotonic_ms
from lakemq.broker_core.groups.coordinator import Assignment, ConsumerGroup, Tells

_MEMBER_ID_MAX: Final = 64
_INSTANCE_ID_MAX: Final = 249
_TOPICS_MAX: Final = 1000
_REBALANCE_TIMEOUT_MAX_MS: Final = 3_600_000


class GroupMembers:
    """Heartbeats in, assignments out. Methods are as those of the port `GroupCoordinators`."""

    def __init__(self, broker: Broker, groups: CoordinatedGroups) -> None:
        self._broker = broker
        self._groups = groups
        self._listeners: dict[str, dict[str, MemberListener]] = {}
        """Group -> member id -> who hears for it."""
        self.limit()

    def limit(self) -> None:
        """Use the limits of the settings."""
        settings, coordinator = self._groups.settings, self._groups.coordinator
        coordinator.groups_max, coordinator.members_max = settings.groups_max, settings.members_max
        self._shares = NameShares(
            "groups",
            coordinator.groups,
            names_max=settings.groups_max,
            user_share_max=settings.user_share_max,
        )

    async def heartbeat(
        self, group: str, beat: Heartbeat, principal: Principal, listener: MemberListener | None
    ) -> MemberAssignment | None:
        """As in the port."""
        await self._groups.arrive(group)
        self._check(group, beat, principal)
        tells = self._taken(group, beat, principal)
        # A member hears through the connection that it used last.
        if listener is None:
            self._forget(group, beat.member_id)
        else:
            self._listeners.setdefault(group, {})[beat.member_id] = listener
        own = tells.pop(beat.member_id, None)
        self.tell(group, tells)
        return None if own is None else self._told(group, beat.member_id, own)

    def _taken(self, name: str, beat: Heartbeat, principal: Principal) -> Tells:
        groups, now_ms = self._groups, monotonic_ms()
        if not beat.joining and not groups.peek(name).may_have(beat.member_id, now_ms):
            group = ConsumerGroup(name)  # forgotten by a restart: says so, and makes nothing
        else:
            self._shares.take(name, principal)
            group = groups.group(name)
        settings = groups.settings
        asked = replace(
            beat,
            session_timeout_ms=beat.session_timeout_ms or settings.session_timeout_ms,
            rebalance_timeout_ms=beat.rebalance_timeout_ms or settings.rebalance_timeout_ms,
        )
        return groups.coordinator.heartbeat(group, asked, groups.counts(beat.topics), now_ms)

    def _check(self, group: str, beat: Heartbeat, principal: Principal) -> None:
        _check_member(group, beat.member_id)
        if len(beat.instance_id) > _INSTANCE_ID_MAX:
            raise InvalidRequest(f"instance_id takes {_INSTANCE_ID_MAX} characters")
        if len(beat.topics) > _TOPICS_MAX:
            raise InvalidRequest(f"topics has {len(beat.topics)} entries; {_TOPICS_MAX} at most")
        settings = self._groups.settings
        low, high = settings.session_timeout_min_ms, settings.session_timeout_max_ms
        if beat.session_timeout_ms and not low <= beat.session_timeout_ms <= high:
            raise InvalidRequest(
                f"session_timeout_ms is {beat.session_timeout_ms}; it takes {low} to {high}"
            )
        if not 0 <= beat.rebalance_timeout_ms <= _REBALANCE_TIMEOUT_MAX_MS:
            raise InvalidRequest(f"rebalance_timeout_ms takes 0 to {_REBALANCE_TIMEOUT_MAX_MS}")
        self._broker.authorize(principal, Operation.READ, Resource("group", group))
        for topic in beat.topics:
            self._broker.authorize(principal, Operation.READ, Resource("topic", topic))

    async def leave(self, group: str, member_id: str, principal: Principal, *, away: bool) -> None:
        """As in the port."""
        await self._groups.arrive(group)
        _check_member(group, member_id)
        self._broker.authorize(principal, Operation.READ, Resource("group", group))
        if group in self._groups.coordinator.groups:
            found = self._groups.group(group)
            self.tell(group, found.leave(member_id, monotonic_ms(), away=away))

    def unlisten(self, group: str, member_id: str, listener: MemberListener) -> None:
        """As in the port."""
        if self._listeners.get(group, {}).get(member_id) is listener:
            self._forget(group, member_id)

    def _forget(self, group: str, member_id: str) -> None:
        listeners = self._listeners.get(group, {})
        listeners.pop(member_id, None)
        if not listeners:
            self._listeners.pop(group, None)

    def dropped(self, group: str, error: NotLeader) -> None:
        """The group has another coordinator: say so to its members."""
        for listener in self._listeners.pop(group, {}).values():
            listener.ended(error)

    def tell(self, group: str, tells: Tells) -> None:
        """Say to members what has changed for them."""
        listeners = self._listeners.get(group, {})
        for member_id, assignment in tells.items():
            listener = listeners.get(member_id)
            if listener is not None:
                listener.assigned(self._told(group, member_id, assignment))

    def _told(self, group: str, member_id: str, told: Assignment) -> MemberAssignment:
        settings = self._groups.settings
        member = self._groups.coordinator.groups[group].members[member_id]
        return MemberAssignment(
            member_id=member_id,
            member_epoch=told.epoch,
            revision=told.revision,
            sequence=told.sequence,
            partitions=[
                self._groups.assigned(group, place, epoch)
                for place, epoch in sorted(told.partitions.items())
            ],
            # Three heartbeats in the time of a session, so that the loss of one ends nothing.
            heartbeat_interval_ms=min(
                settings.heartbeat_interval_ms, member.session_timeout_ms // 3
            ),
            session_timeout_ms=member.session_timeout_ms,
            takeover_ms=settings.session_timeout_ms,
            alone=not self._groups.is_shared(group),
        )


def _check_member(group: str, member_id: str) -> None:
    check_group_name(group)
    if not 1 <= len(member_id) <= _MEMBER_ID_MAX:
        raise InvalidRequest(f"member_id takes 1 to {_MEMBER_ID_MAX} characters")
