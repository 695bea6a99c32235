"""The edge of consumer groups: clock, streams and the offsets topic around the pure coordinator.

A node coordinates the groups of those partitions of the offsets topic that it leads. It refuses
others (NotLeader, with the coordinator's address), and ends the streams of their members.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InvalidRequest,
    LakeMQError,
    NotLeader,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.residents import Residents
from lakemq.broker_core.api.types import Operation, Principal, Resource, TopicPartition
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.groups.coordinator import (
    FIRST_EPOCH_BITS,
    Assignment,
    ConsumerGroup,
    GroupCoordinator,
    Heartbeat,
    Tells,
)
from lakemq.plugins.native.groups.offset_effect import OFFSETS, OffsetsParticipant
from lakemq.plugins.native.groups.offset_expiry import OffsetExpiry
from lakemq.plugins.native.groups.offset_log import OffsetLog, StoredOffsets
from lakemq.plugins.native.groups.offset_table import (
    OFFSETS_TOPIC,
    check_commit,
    check_group_name,
)
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.server.convert import error_message, other_leaders

_log = logging.getLogger(__name__)
_TICK_S = 0.2
_MEMBER_ID_MAX = 64
_INSTANCE_ID_MAX = 249
_TOPICS_MAX = 1000


class _Stream:
    """What one member's stream has to say next; only the newest assignment is kept."""

    def __init__(self) -> None:
        self.member_id = ""
        self._latest: pb.GroupAssignment | None = None
        self._changed = asyncio.Event()
        self._ended = False
        self.error: LakeMQError | None = None
        """What the call ends with, if it was ended because of one."""

    def say(self, assignment: pb.GroupAssignment) -> None:
        self._latest = assignment
        self._changed.set()

    def end(self, error: LakeMQError | None = None) -> None:
        self._ended = True
        self.error = self.error or error
        self._changed.set()

    async def next(self) -> pb.GroupAssignment | None:
        await self._changed.wait()
        self._changed.clear()
        said, self._latest = self._latest, None
        # An ended stream does not wait again: what was said last is sent, then None.
        if self._ended:
            self._changed.set()
        return said


class _Term(NamedTuple):
    """Of this node as the coordinator of a partition's groups."""

    first_epoch: int
    """Behind which epochs of its groups begin."""
    takeover_until_ms: int | None
    """As in `ConsumerGroup`."""


class GroupHost:
    """All consumer groups that this node coordinates."""

    def __init__(self, broker: Broker, settings: NativeSettings) -> None:
        self.offsets = OffsetLog(broker)
        self.commits = 0
        self.lags_left_out = 0
        """Pairs of group and topic that the newest metrics do not show."""
        self._broker = broker
        self.settings = settings
        self._coordinator = GroupCoordinator(
            groups_max=settings.groups_max, members_max=settings.group_members_max
        )
        self._shares = NameShares(
            "groups",
            self._coordinator.groups,
            names_max=settings.groups_max,
            user_share_max=settings.user_share_max,
        )
        self._residents = Residents(broker, self.offsets.topic, self)
        self._terms: dict[int, _Term] = {}
        """By partition of the offsets topic."""
        self._participant = OffsetsParticipant(broker, self)
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._expiry = OffsetExpiry(
            retention_ms=settings.group_offsets_retention_ms,
            session_timeout_max_ms=settings.group_session_timeout_max_ms,
            started_ms=_now_ms(),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load committed offsets and start expiring sessions and offsets."""
        await self._residents.start()
        self._broker.transactions.register_participant(OFFSETS, self._participant)
        self._participant.start()
        self._tasks = [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._expire_offsets()),
        ]

    async def stop(self) -> None:
        """End all streams of members."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._participant.stop()
        await self._residents.stop()
        for stream in self._streams.values():
            stream.end()

    # -- what this node coordinates

    async def load(self, partition: int, end: int) -> StoredOffsets:
        """As `Resident.load`."""
        return await self.offsets.load(partition, end)

    def serve(self, partition: int, epoch: int, state: StoredOffsets) -> None:
        """As `Resident.serve`."""
        now_ms = _now_ms()
        self.offsets.take(state, now_ms)
        held = leadership(self._broker.topic(OFFSETS_TOPIC), partition)
        # Where no other node has a copy none has coordinated the groups: members have noticed the
        # end of this node's former process, and hold nothing.
        shared = epoch > 0 and len(held.replicas) > 1
        until_ms = now_ms + self.settings.group_session_timeout_ms if shared else None
        self._terms[partition] = _Term(epoch << FIRST_EPOCH_BITS, until_ms)
        self._expiry.begin(now_ms)
        # Offsets of decided transactions are in force before any member joins or commits.
        self._broker.transactions.register_participant(OFFSETS, self._participant)

    def drop(self, partition: int) -> None:
        """As `Resident.drop`."""
        gone = [
            name
            for name in self._coordinator.groups
            if self.offsets.partition_of(name) in (partition, None)
        ]
        for name in gone:
            del self._coordinator.groups[name]
            for key, stream in list(self._streams.items()):
                if key[0] == name:
                    stream.end(NotLeader(f"group {name} has another coordinator by now"))
        self.offsets.drop(partition)
        self._terms.pop(partition, None)

    def check_here(self, name: str) -> None:
        """As `arrive`, at once, and of a group that there may not be."""
        partition = self.offsets.partition_of(name)
        if partition is not None:
            self._residents.check(partition)

    def is_here(self, name: str) -> bool:
        """Whether `check_here` raises nothing."""
        partition = self.offsets.partition_of(name)
        return partition is None or self._residents.serves(partition)

    async def arrive(self, name: str) -> None:
        """Raises NotLeader, with the address, where another node coordinates the group, which may
        be the first one; Unavailable while this one takes it over, after a while."""
        check_group_name(name)
        await self.offsets.ensure()
        partition = self.offsets.partition_of(name)
        assert partition is not None
        await self._residents.arrive(partition)

    def coordinator_of(self, name: str) -> str:
        """Node that coordinates the group; empty: none does now, or the first use will tell."""
        partition = self.offsets.partition_of(name)
        if partition is None:
            return ""
        return leadership(self._broker.topic(OFFSETS_TOPIC), partition).leader or ""

    def other_coordinators(self) -> list[str]:
        """Native addresses of the other nodes that coordinate groups."""
        return other_leaders(self._broker.node_id, self._broker.nodes(), self.offsets.topic.info)

    @property
    def rebalances(self) -> int:
        """Rebalances of the groups that are in memory."""
        return sum(group.rebalances for group in self._coordinator.groups.values())

    async def _tick(self) -> None:
        while True:
            wanted = {name for group in self._coordinator.groups.values() for name in group.topics}
            told = self._coordinator.tick(self._counts(wanted), _now_ms(), self.is_here)
            for name, tells in told.items():
                self._tell(name, tells)
            await asyncio.sleep(_TICK_S)

    async def _expire_offsets(self) -> None:
        """Delete groups that have been unused for `group_offsets_retention_ms`."""
        while True:
            await asyncio.sleep(self._expiry.interval_ms / 1000)
            now_ms, wall_ms = _now_ms(), time.time_ns() // 1_000_000
            members = {name for name, group in self._coordinator.groups.items() if group.members}
            members |= self.offsets.held.groups()
            for name in self._expiry.expired(self.offsets.table, members, now_ms, wall_ms):
                try:
                    await self.offsets.delete(name)
                except LakeMQError as error:
                    _log.warning("offsets of group %s are kept for now: %s", name, error)
                else:
                    self._coordinator.groups.pop(name, None)
                    _log.info("group %s was not used for long; its offsets are forgotten", name)

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        found = {}
        for name in topics:
            with suppress(UnknownTopic):
                found[name] = self._broker.topic(name).partitions
        return found

    # -- members

    async def join(
        self, beats: AsyncIterator[pb.GroupHeartbeat], principal: Principal
    ) -> AsyncIterator[pb.GroupAssignment]:
        """One member's stream."""
        stream = _Stream()
        reader = asyncio.create_task(self._read(beats, principal, stream))
        try:
            while (said := await stream.next()) is not None:
                yield said
            if stream.error is not None:
                raise stream.error
            # An error that ended the reading ends the call.
            await reader
        finally:
            reader.cancel()
            for key in [key for key, each in self._streams.items() if each is stream]:
                del self._streams[key]

    async def _read(
        self, beats: AsyncIterator[pb.GroupHeartbeat], principal: Principal, stream: _Stream
    ) -> None:
        try:
            async for beat in beats:
                try:
                    await self.arrive(beat.group)
                    self._heartbeat(beat, principal, stream)
                except (NotLeader, Unavailable):  # the stream belongs to another node, or later
                    raise
                except LakeMQError as error:
                    stream.say(
                        pb.GroupAssignment(
                            member_id=beat.member_id,
                            heartbeat_interval_ms=self.settings.group_heartbeat_interval_ms,
                            error=error_message(error),
                        )
                    )
        finally:
            stream.end()

    def _heartbeat(self, beat: pb.GroupHeartbeat, principal: Principal, stream: _Stream) -> None:
        name, now_ms = beat.group, _now_ms()
        self._check(beat, principal)
        if beat.intent in (pb.INTENT_LEAVE, pb.INTENT_AWAY):
            if name in self._coordinator.groups:
                away = beat.intent == pb.INTENT_AWAY
                self._tell(name, self._group(name).leave(beat.member_id, now_ms, away=away))
            return
        if beat.intent == pb.INTENT_STAY and not self._peek(name).may_have(beat.member_id, now_ms):
            group = ConsumerGroup(name)  # forgotten by a restart: says so, and makes nothing
        else:
            self._shares.take(name, principal)
            group = self._group(name)
        topics = frozenset(beat.topics)
        tells = self._coordinator.heartbeat(
            group,
            Heartbeat(
                beat.member_id,
                beat.sequence,
                beat.intent == pb.INTENT_JOIN,
                topics,
                frozenset(TopicPartition(at.topic, at.partition) for at in beat.holds),
                beat.revision,
                beat.instance_id,
                beat.session_timeout_ms or self.settings.group_session_timeout_ms,
                beat.rebalance_timeout_ms or self.settings.group_rebalance_timeout_ms,
                {
                    TopicPartition(at.topic, at.partition): at.epoch
                    for at in beat.holds
                    if at.epoch > 0
                },
            ),
            self._counts(topics),
            now_ms,
        )
        # A stream speaks for the member that it named last, and a member hears through the stream
        # that it used last.
        if self._streams.get((name, stream.member_id)) is stream:
            del self._streams[name, stream.member_id]
        stream.member_id = beat.member_id
        self._streams[name, beat.member_id] = stream
        self._tell(name, tells)

    def _group(self, name: str) -> ConsumerGroup:
        return self._coordinator.group(name, *self._term(name))

    def _peek(self, name: str) -> ConsumerGroup:
        """The group, not kept if it is a new one."""
        return self._coordinator.groups.get(name) or ConsumerGroup(name, *self._term(name))

    def _term(self, name: str) -> _Term:
        partition = self.offsets.partition_of(name)
        term = self._terms.get(-1 if partition is None else partition, _Term(0, None))
        return term._replace(
            first_epoch=max(term.first_epoch, self.offsets.table.highest_epoch(name))
        )

    def _check(self, beat: pb.GroupHeartbeat, principal: Principal) -> None:
        check_group_name(beat.group)
        if not 1 <= len(beat.member_id) <= _MEMBER_ID_MAX:
            raise InvalidRequest(f"member_id takes 1 to {_MEMBER_ID_MAX} characters")
        if len(beat.instance_id) > _INSTANCE_ID_MAX:
            raise InvalidRequest(f"instance_id takes {_INSTANCE_ID_MAX} characters")
        if len(beat.topics) > _TOPICS_MAX:
            raise InvalidRequest(f"topics has {len(beat.topics)} entries; {_TOPICS_MAX} at most")
        low, high = (
            self.settings.group_session_timeout_min_ms,
            self.settings.group_session_timeout_max_ms,
        )
        if beat.session_timeout_ms and not low <= beat.session_timeout_ms <= high:
            raise InvalidRequest(
                f"session_timeout_ms is {beat.session_timeout_ms}; it takes {low} to {high}"
            )
        if not 0 <= beat.rebalance_timeout_ms <= 3_600_000:
            raise InvalidRequest("rebalance_timeout_ms takes 0 to 3600000")
        self._broker.authorize(principal, Operation.READ, Resource("group", beat.group))
        for topic in beat.topics:
            self._broker.authorize(principal, Operation.READ, Resource("topic", topic))

    def _tell(self, name: str, tells: Tells) -> None:
        for member_id, assignment in tells.items():
            stream = self._streams.get((name, member_id))
            if stream is not None:
                stream.say(self._message(name, member_id, assignment))

    def _message(self, group: str, member_id: str, told: Assignment) -> pb.GroupAssignment:
        member = self._coordinator.groups[group].members[member_id]
        return pb.GroupAssignment(
            member_id=member_id,
            member_epoch=told.epoch,
            revision=told.revision,
            sequence=told.sequence,
            partitions=[
                self._place(group, place, epoch) for place, epoch in sorted(told.partitions.items())
            ],
            # Three heartbeats in the time of a session, so that the loss of one ends nothing.
            heartbeat_interval_ms=min(
                self.settings.group_heartbeat_interval_ms, member.session_timeout_ms // 3
            ),
            session_timeout_ms=member.session_timeout_ms,
            takeover_ms=self.settings.group_session_timeout_ms,
        )

    def _place(self, group: str, place: TopicPartition, epoch: int) -> pb.GroupPartition:
        committed = -1
        with suppress(UnknownTopic):
            topic_id = self._broker.topic(place.topic).topic_id
            committed = self.offsets.table.offset(group, place, topic_id)
        return pb.GroupPartition(
            topic=place.topic, partition=place.partition, epoch=epoch, committed_offset=committed
        )

    # -- offsets

    async def commit(self, request: pb.CommitOffsetsRequest, principal: Principal) -> None:
        """Commit offsets; returns when they are on the disks of all in-sync replicas. Raises
        InvalidRequest, NotAuthorized, UnknownMember, MemberFenced, GroupNotEmpty, UnknownTopic,
        NotLeader, Unavailable."""
        self.authorize_commit(request, principal)
        await self.arrive(request.group)
        epoch, offsets = self.checked(request)
        await self.offsets.commit(request.group, epoch, offsets)

    def authorize_commit(self, request: pb.CommitOffsetsRequest, principal: Principal) -> None:
        """Raises NotAuthorized, InvalidRequest."""
        check_group_name(request.group)
        # Without a member it is an operator who sets the offsets.
        operation = Operation.READ if request.member_id else Operation.ALTER
        self._broker.authorize(principal, operation, Resource("group", request.group))
        for name in {each.topic for each in request.offsets}:
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("topic", name))

    def checked(
        self, request: pb.CommitOffsetsRequest
    ) -> tuple[int, dict[TopicPartition, tuple[int, str]]]:
        """(epoch, offsets) of a commit that may be taken. Raises as `commit`."""
        check_group_name(request.group)
        self.check_here(request.group)
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for each in request.offsets:
            check_commit(each.offset, each.metadata)
            if each.offset >= 0:
                check_partition(self._broker.topic(each.topic), each.partition)
            place = TopicPartition(each.topic, each.partition)
            offsets[place] = (each.offset, each.metadata)
        self.offsets.held.check_free(request.group, offsets)
        self._peek(request.group).check_commit(
            request.member_id, request.member_epoch, request.sequence, offsets, _now_ms()
        )
        self.commits += 1
        return request.member_epoch if request.member_id else 0, offsets

    def withdraw(self, name: str, places: Iterable[TopicPartition], member_id: str) -> None:
        """Offsets that the table showed were not committed after all: a client other than
        `member_id` has begun to read there must not commit."""
        group = self._coordinator.groups.get(name)
        if group is not None:
            group.withdraw(frozenset(places), member_id)

    def describe(self, names: Sequence[str], principal: Principal) -> list[pb.Group]:
        """Groups by name, or all of this node that may be described. Raises UnknownGroup,
        NotAuthorized, NotLeader, Unavailable."""
        for name in names:
            self.check_here(name)
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("group", name))
        wanted = names or [
            name for name in sorted(self.names()) if self.may_describe(name, principal)
        ]
        return [self._described(name) for name in wanted]

    def names(self) -> list[str]:
        """Of all groups that this node coordinates, in no order."""
        known = {*self.offsets.table.groups(), *self._coordinator.groups}
        return [name for name in known if self.is_here(name)]

    def may_describe(self, name: str, principal: Principal) -> bool:
        """Whether the principal may see the group."""
        try:
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("group", name))
        except LakeMQError:
            return False
        return True

    def _described(self, name: str) -> pb.Group:
        group = self._coordinator.groups.get(name)
        if group is None:
            if not self.offsets.table.of(name):
                raise UnknownGroup(f"group {name!r} does not exist")
            group = self._peek(name)
        return pb.Group(
            name=name,
            state=group.state,
            epoch=group.epoch,
            members=[
                pb.GroupMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=member.epoch,
                    topics=sorted(member.topics),
                    partitions=[
                        self._place(name, place, epoch)
                        for place, epoch in sorted(member.owned.items())
                    ],
                )
                for member in group.members.values()
            ],
            offsets=self._group_offsets(name, group),
        )

    def _group_offsets(self, name: str, group: ConsumerGroup) -> list[pb.GroupOffset]:
        """Of everything that was committed or is read now."""
        table = self.offsets.table.of(name)
        read = {
            TopicPartition(topic, number)
            for topic, count in self._counts(group.topics).items()
            for number in range(count)
        }
        found = []
        for place in sorted(table.keys() | read):
            committed = table.get(place)
            try:
                topic_id = self._broker.topic(place.topic).topic_id
                start, end = self._offsets_of(place)
            except LakeMQError:
                continue
            kept = committed if committed and committed.topic_id == topic_id else None
            found.append(
                pb.GroupOffset(
                    topic=place.topic,
                    partition=place.partition,
                    committed_offset=kept.offset if kept else -1,
                    log_start_offset=start,
                    high_watermark=end,
                    committed_ms=kept.committed_ms if kept else 0,
                    metadata=kept.metadata if kept else "",
                )
            )
        return found

    def _offsets_of(self, place: TopicPartition) -> tuple[int, int]:
        """(log start offset, high watermark); -1 where another node leads the partition, which
        alone knows the first. The second is that of a replica where there is one."""
        try:
            log = self._broker.partition(*place)
        except NotLeader:
            end = self._broker.readable_end(*place)
            return -1, -1 if end is None else end
        return log.log_start_offset, log.high_watermark

    def check_empty(self, name: str) -> None:
        """Raises UnknownGroup, GroupNotEmpty; Unavailable while members may come back."""
        group = self._coordinator.groups.get(name)
        if group is not None and group.members:
            raise GroupNotEmpty(f"group {name} has {len(group.members)} member(s)")
        if group is None and not self.offsets.table.of(name):
            raise UnknownGroup(f"group {name!r} does not exist")
        self.offsets.held.check_free(name, self.offsets.table.of(name))
        self._peek(name).check_settled(_now_ms())

    async def delete(self, name: str, principal: Principal) -> None:
        """Delete a group and its offsets. Raises UnknownGroup, GroupNotEmpty, NotAuthorized,
        NotLeader, Unavailable."""
        self.check_here(name)
        self._broker.authorize(principal, Operation.DELETE, Resource("group", name))
        self.check_empty(name)
        self._coordinator.groups.pop(name, None)
        await self.offsets.delete(name)

    def lags(self) -> dict[tuple[str, str], int]:
        """(group, topic) -> records that were not committed yet, of what was committed and where
        this node has a replica."""
        found: dict[tuple[str, str], int] = {}
        for name in self.offsets.table.groups():
            for place, lag in self._lags_of(name).items():
                found[name, place.topic] = found.get((name, place.topic), 0) + lag
        return found

    def largest_lags(self, most: int) -> dict[tuple[str, str], int]:
        """As `lags`, the largest alone: clients choose the names of groups, and each is a series of
        its own to the metrics."""
        lags = self.lags()
        self.lags_left_out = max(0, len(lags) - most)
        if not self.lags_left_out:
            return lags
        return dict(heapq.nlargest(most, lags.items(), key=lambda each: each[1]))

    def _lags_of(self, name: str) -> Mapping[TopicPartition, int]:
        found = {}
        for place, committed in self.offsets.table.of(name).items():
            with suppress(LakeMQError):
                if self._broker.topic(place.topic).topic_id == committed.topic_id:
                    end = self._broker.readable_end(*place)
                    if end is not None:
                        found[place] = max(0, end - committed.offset)
        return found


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
