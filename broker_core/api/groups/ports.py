"""Ports of consumer groups: the coordinators that protocols call, and what hears for a member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.groups.types import (
    CommittedOffset,
    GroupCommit,
    GroupCounters,
    GroupDescription,
    GroupSettings,
    Heartbeat,
    MemberAssignment,
)
from lakemq.broker_core.api.transactions.types import Effect
from lakemq.broker_core.api.types import Principal, TopicPartition


class MemberListener(Protocol):
    """Hears for a member: a protocol's connection. Called on the event loop; must not block."""

    def assigned(self, assignment: MemberAssignment) -> None:
        """The member's assignment has changed without a heartbeat of its own."""

    def ended(self, error: LakeMQError) -> None:
        """This node coordinates the group no more: the member goes to the new coordinator, with
        what it holds. Nothing is heard after that."""


class GroupCoordinators(Protocol):
    """The consumer groups that this node is to coordinate. Of others all methods raise NotLeader,
    with the coordinator's id and native address; Unavailable while this node takes one over. A
    group begins with its first member or offset. Other errors are those of
    `lakemq.broker_core.api.errors`."""

    @property
    def settings(self) -> GroupSettings:
        """What is in use."""

    def configure(self, settings: GroupSettings) -> None:
        """Use other limits and times. By the plugin that has settings for them, before the node
        registers (when its listener is made); after that times alone may be others."""

    @property
    def counters(self) -> GroupCounters:
        """Read by metrics."""

    def coordinator_of(self, group: str) -> str:
        """Node that coordinates the group; empty: none does now, or the first use will tell."""

    def coordinators(self) -> Sequence[str]:
        """Nodes that coordinate groups."""

    # -- members

    async def heartbeat(
        self,
        group: str,
        beat: Heartbeat,
        *,
        principal: Principal,
        listener: MemberListener | None = None,
    ) -> MemberAssignment | None:
        """Join a group, or stay in it: the member's assignment, in which what it holds is given up
        when it says so. None: a later heartbeat was here before. What changes meanwhile the
        `listener` of its newest heartbeat hears; without one, the next heartbeat tells.

        A member hands out records of its partitions only within its session time-out, or
        `takeover_ms` if that is shorter, of sending a heartbeat that was answered.

        Raises InvalidRequest, NotAuthorized (READ of the group and its topics), UnknownMember (join
        again, by another id), MemberFenced, InstanceInUse.
        """

    async def leave(
        self, group: str, member_id: str, *, principal: Principal, away: bool = False
    ) -> None:
        """The member holds nothing any more; an unknown one does nothing. `away`: a static one that
        means to return within its session time-out. Raises InvalidRequest, NotAuthorized."""

    def unlisten(self, group: str, member_id: str, listener: MemberListener) -> None:
        """Call the listener no more for this member, if it still is the member's."""

    # -- offsets

    async def commit(self, commit: GroupCommit, *, principal: Principal) -> None:
        """Commit offsets; returns when they are on the disks of all in-sync replicas. Without a
        member it needs the right to ALTER the group and no members (a reset).

        Raises InvalidRequest, NotAuthorized, UnknownMember, MemberFenced, GroupNotEmpty,
        UnknownTopic, UnknownPartition; Unavailable also for partitions whose offset is held by a
        transaction that is not decided.
        """

    def check_reset(self, commit: GroupCommit, *, principal: Principal) -> None:
        """Raises what `commit` would, of one without a member."""

    def effect(self, commit: GroupCommit, *, principal: Principal) -> Effect:
        """For `Transactions.commit`: the offsets are committed with the transaction, or not at all,
        whichever node coordinates the group. That raises what `commit` does."""

    async def committed(
        self, group: str, *, principal: Principal
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Committed offsets of topics that are there, empty for a group that is unknown. Those of a
        transaction that is not decided are among them, as no other member begins before them.
        Raises NotAuthorized."""

    # -- operators

    def names(self) -> Sequence[str]:
        """Of all groups that this node coordinates, in no order."""

    def may_describe(self, group: str, *, principal: Principal) -> bool:
        """Whether the principal may see the group."""

    def describe(
        self, groups: Sequence[str] = (), *, principal: Principal
    ) -> Sequence[GroupDescription]:
        """Groups by name, or all of this node that may be described. Raises UnknownGroup,
        NotAuthorized."""

    async def delete(self, group: str, *, principal: Principal) -> None:
        """Delete a group and its offsets. Raises UnknownGroup, GroupNotEmpty, NotAuthorized."""

    def check_delete(self, group: str, *, principal: Principal) -> None:
        """Raises what `delete` would."""

    def lags(self) -> Mapping[tuple[str, str], int]:
        """(group, topic) -> records that were not committed yet, of what was committed and where
        this node has a replica."""
