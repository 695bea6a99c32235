"""The MetaService's Raft group as operators see it: `lakemq meta`, the admin API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, NamedTuple, Protocol

from lakemq.meta_service.api.backup_head import HEAD_BYTES as HEAD_BYTES
from lakemq.meta_service.api.backup_head import BackupNote as BackupNote

MemberRole = Literal["leader", "voter", "learner"]


class Member(NamedTuple):
    """One of the group."""

    name: str
    role: MemberRole


class GroupOperations(Protocol):
    """Errors of the MetaService are LakeMQErrors here. A change that may have been made is
    OutcomeUnknown, and is not tried again."""

    async def members(self) -> Sequence[Member]:
        """By name, as the member that answers knows them. Raises Unavailable."""

    async def transfer(self, member: str) -> None:
        """Ask a member to lead; empty: one that has the whole log. Raises Unavailable: none has
        it."""

    async def promote(self, member: str) -> Sequence[str]:
        """Make a learner a voter: the voters. Raises InvalidRequest: it lacks too much."""

    async def remove(self, member: str) -> Sequence[str]:
        """Take a member out, dead or alive: the voters that are left. Raises InvalidRequest."""

    async def backup(self) -> tuple[BackupNote, AsyncGenerator[bytes]]:
        """A copy of the catalog as of now: its note, and the bytes of the file, to be closed."""
