"""Consumer groups over the admin API: the same coordinators as the native protocol's calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    AnyRoute,
    Need,
    OwnChangeQuery,
    OwnPageQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, UnknownPartition
from lakemq.broker_core.api.groups.ports import GroupCoordinators
from lakemq.broker_core.api.groups.types import (
    GroupCommit,
    GroupDescription,
    GroupMember,
    OffsetToCommit,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, TopicPartition
from lakemq.plugins.native.groups.models import (
    AssignedPartition,
    DeletedGroup,
    GroupAnswer,
    GroupMemberAnswer,
    GroupOffsetAnswer,
    GroupRow,
    Reset,
    ResetBody,
    ResetRow,
)

Ends = Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]]
"""Topic -> (log start offset, high watermark) by partition."""


async def topic_offsets(request: AdminRequest, topic: str, at: str) -> dict[int, int]:
    """Offsets of a topic's partitions, asked of their leaders. Raises LakeMQError."""
    found = await request.ask(f"topics/{quote(topic, safe='')}/offsets", {"at": at})
    return {int(number): int(offset) for number, offset in found["offsets"].items()}


class GroupRoutes:
    """Below `/api/v1/groups`. What is asked of one group goes to its coordinator."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _groups(self) -> GroupCoordinators:
        return self._broker.groups

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "groups/{group}"
        return [
            AdminListing(
                "groups", GroupRow, self._all, self._rows, lambda name: name,
                {"name": lambda name: name}, keep=self._may_see, query=OwnPageQuery, need=EACH,
                own=True, summary="List consumer groups and their lag.",
            ),
            AdminRoute("GET", one, self.describe, GroupAnswer, OwnQuery, owner=self._coordinator,
                       need=Need(Operation.DESCRIBE, "group", "group")),
            AdminRoute("POST", f"{one}/reset", self.reset, Reset, OwnChangeQuery, ResetBody,
                       need=Need(Operation.ALTER, "group", "group"), owner=self._coordinator),
            AdminRoute("DELETE", one, self.delete, DeletedGroup, OwnChangeQuery,
                       need=Need(Operation.DELETE, "group", "group"), owner=self._coordinator),
        ]  # fmt: skip

    def _coordinator(self, request: AdminRequest) -> str:
        named = str(getattr(request.asked, "node", ""))
        return named or self._groups.coordinator_of(request.path["group"])

    async def _all(self, request: AdminRequest) -> Sequence[str]:
        return self._groups.names()

    def _may_see(self, name: str, request: AdminRequest) -> bool:
        return self._groups.may_describe(name, principal=request.principal)

    async def _rows(self, names: Sequence[str], request: AdminRequest) -> Sequence[GroupRow | None]:
        found: list[GroupDescription | None] = []
        for name in names:
            # None: deleted meanwhile.
            found.append(next(iter(self._known(name, request)), None))
            await asyncio.sleep(0)
        ends = await self._ends(request, [each for each in found if each is not None])
        return [None if each is None else self._row(each, ends) for each in found]

    async def _ends(self, request: AdminRequest, groups: Iterable[GroupDescription]) -> Ends:
        """Of the topics of groups; a topic that can't be asked for now is missing."""
        found = {}
        for topic in sorted({each.topic for group in groups for each in group.offsets}):
            try:
                found[topic] = (
                    await topic_offsets(request, topic, "earliest"),
                    await topic_offsets(request, topic, "latest"),
                )
            except LakeMQError:  # the caller may not describe it, or it is gone
                continue
        return found

    def _row(self, group: GroupDescription, ends: Ends) -> GroupRow:
        lags = [each.lag for each in _offsets(group, ends) if each.lag is not None]
        return GroupRow(
            node=self._broker.node_id,
            name=group.name,
            state=group.state,
            epoch=group.epoch,
            members=len(group.members),
            topics=sorted({each.topic for each in group.offsets}),
            lag=sum(lags) if lags else None,
        )

    async def describe(self, request: AdminRequest) -> GroupAnswer:
        """Describe a consumer group. Raises UnknownGroup."""
        (group,) = self._groups.describe([request.path["group"]], principal=request.principal)
        ends = await self._ends(request, [group])
        return GroupAnswer(
            **self._row(group, ends).model_dump(),
            group_members=[_member(each) for each in group.members],
            offsets=_offsets(group, ends),
        )

    async def reset(self, request: AdminRequest) -> Reset:
        """Set the committed offsets of a group that has no members. Raises GroupNotEmpty."""
        given, name = expect(request.given, ResetBody), request.path["group"]
        topic = self._broker.topic(given.topic)
        wanted = await self._wanted(request, given, topic.partitions)
        if given.partition is not None:
            if given.partition not in wanted:
                raise UnknownPartition(f"topic {topic.name} has no partition {given.partition}")
            wanted = {given.partition: wanted[given.partition]}
        commit = GroupCommit(
            name,
            {
                TopicPartition(topic.name, number): OffsetToCommit(offset)
                for number, offset in wanted.items()
            },
        )
        known = {
            each.partition: each.committed_offset
            for group in self._known(name, request)
            for each in group.offsets
            if each.topic == topic.name and each.committed_offset >= 0
        }
        if expect(request.asked, OwnChangeQuery).dry_run:
            self._groups.check_reset(commit, principal=request.principal)
        else:
            await self._groups.commit(commit, principal=request.principal)
        rows = [
            ResetRow(partition=number, before=known.get(number), after=offset)
            for number, offset in sorted(wanted.items())
        ]
        request.notes["before"] = {str(each.partition): each.before for each in rows}
        request.notes["after"] = {str(each.partition): each.after for each in rows}
        return Reset(name=name, topic=topic.name, offsets=rows)

    def _known(self, name: str, request: AdminRequest) -> Sequence[GroupDescription]:
        try:
            return self._groups.describe([name], principal=request.principal)
        except LakeMQError:  # it is gone; and a group may be made by its first offsets
            return []

    async def _wanted(
        self, request: AdminRequest, given: ResetBody, partitions: int
    ) -> dict[int, int]:
        """Partition -> offset."""
        if given.to.isdecimal():
            return dict.fromkeys(range(partitions), int(given.to))
        found = await topic_offsets(request, given.topic, given.to)
        missing = [str(each) for each in range(partitions) if each not in found]
        if missing and given.partition in (None, *map(int, missing)):
            raise InvalidRequest(f"no leader tells offsets of partition {', '.join(missing[:10])}")
        return found

    async def delete(self, request: AdminRequest) -> DeletedGroup:
        """Delete a group that has no members, and its committed offsets."""
        name = request.path["group"]
        (group,) = self._groups.describe([name], principal=request.principal)
        committed = sum(each.committed_offset >= 0 for each in group.offsets)
        request.notes["before"] = {"offsets": committed}
        if expect(request.asked, OwnChangeQuery).dry_run:
            self._groups.check_delete(name, principal=request.principal)
        else:
            await self._groups.delete(name, principal=request.principal)
        return DeletedGroup(name=name, offsets=committed)


def _member(found: GroupMember) -> GroupMemberAnswer:
    return GroupMemberAnswer(
        member_id=found.member_id,
        instance_id=found.instance_id,
        epoch=found.member_epoch,
        topics=list(found.topics),
        partitions=[
            AssignedPartition(topic=each.topic, partition=each.partition)
            for each in found.partitions
        ],
    )


def _offsets(group: GroupDescription, ends: Ends) -> list[GroupOffsetAnswer]:
    rows = []
    for each in group.offsets:
        starts, marks = ends.get(each.topic, ({}, {}))
        start, mark = starts.get(each.partition), marks.get(each.partition)
        committed = each.committed_offset if each.committed_offset >= 0 else None
        lag = None
        if mark is not None and start is not None:
            lag = max(0, mark - (start if committed is None else committed))
        rows.append(
            GroupOffsetAnswer(
                topic=each.topic,
                partition=each.partition,
                committed_offset=committed,
                log_start_offset=start,
                high_watermark=mark,
                lag=lag,
                committed_ms=each.committed_ms or None,
                metadata=each.metadata,
            )
        )
    return rows
