"""Partitions that an application has chosen by itself, in place of the heartbeats of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, UnknownGroup
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.consumer.starts import Assigned
from lakemq.plugins.native.sdk.group.group_calls import GroupCalls
from lakemq.plugins.native.sdk.group.membership import Grant, Membership
from lakemq.plugins.native.sdk.net import calls as wire

_NO_MEMBER: Final = ""
"""Member id of commits to a group without members."""


class ManualAssignment:
    """Has the face of a `GroupStream` whose coordinator has given all at once, for ever."""

    failed: LakeMQError | None = None
    topics: Sequence[str] = ()

    def __init__(
        self,
        calls: GroupCalls,
        group: str,
        assigned: Assigned,
        timeout_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self.membership = Membership(_NO_MEMBER, math.inf)
        self._calls, self._group, self._timeout_s = calls, group, timeout_s
        self._assigned = assigned
        self._on_change = on_change

    async def open(self) -> None:
        """Look where the group has committed, and give the partitions."""
        committed = await self._committed() if self._group else {}
        beat = self.membership.beat(0.0)
        self.membership.told(
            beat.member_id, 0, 1, beat.sequence,
            {
                place: Grant(0, committed.get(place, -1) if where is None else -1)
                for place, where in self._assigned.items()
            },
        )  # fmt: skip
        self._on_change()

    async def _committed(self) -> dict[TopicPartition, int]:
        request = pb.DescribeGroupsRequest(groups=[self._group])
        try:
            answer = await self._calls.call("DescribeGroups", request, self._timeout_s)
        except UnknownGroup:
            return {}
        found = wire.group_description(answer.groups[0])
        return {TopicPartition(at.topic, at.partition): at.committed_offset for at in found.offsets}

    def heartbeat_now(self) -> None:
        """No member waits for one."""

    async def leave(self) -> None:
        """There is no group to leave."""
