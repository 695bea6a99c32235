"""Implements `GroupOperations` over a client of the MetaService."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from lakemq.broker_core.administration.translation import translated
from lakemq.broker_core.api.administration.meta_group import BackupNote, Member, MemberRole
from lakemq.broker_core.api.errors import UnknownNode
from lakemq.meta_service.api.remote.client import RemoteClient


class MetaGroup:
    """From whatever node: the client finds the leader."""

    def __init__(self, control: RemoteClient) -> None:
        self._control = control

    async def members(self) -> Sequence[Member]:
        """See `GroupOperations`."""
        with translated(UnknownNode):
            found = await self._control.status()
        learners = set(str(found.detail.get("learners", "")).split(", "))

        def role(name: str) -> MemberRole:
            if name == found.leader_id:
                return "leader"
            return "learner" if name in learners else "voter"

        return [Member(name, role(name)) for name in sorted(found.members)]

    async def transfer(self, member: str) -> None:
        """See `GroupOperations`."""
        with translated(UnknownNode):
            await self._control.transfer_leadership(member)

    async def promote(self, member: str) -> Sequence[str]:
        """See `GroupOperations`."""
        with translated(UnknownNode):
            return await self._control.promote_member(member)

    async def remove(self, member: str) -> Sequence[str]:
        """See `GroupOperations`."""
        with translated(UnknownNode):
            return await self._control.remove_member(member)

    async def backup(self) -> tuple[BackupNote, AsyncGenerator[bytes]]:
        """See `GroupOperations`."""
        with translated(UnknownNode):
            note, content = await self._control.backup()
        return note, _passed_on(content)


async def _passed_on(content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(content):
        with translated(UnknownNode):
            async for data in content:
                yield data
