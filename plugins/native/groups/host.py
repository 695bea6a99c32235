"""The edge of consumer groups: clock, streams and the offsets topic around the pure coordinator."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress

from lakemq.broker_core.api.errors import (
    GroupNotEmpty,
    InvalidRequest,
    LakeMQError,
    NotLeader,
    UnknownGroup,
    UnknownTopic,
)
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Operation, Principal, Resource, TopicPartition
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.groups.coordinator import (
    Assignment,
    ConsumerGroup,
    GroupCoordinator,
    Heartbeat,
    Tells,
)
from lakemq.plugins.native.groups.offset_effect import OFFSETS, OffsetsParticipant
from lakemq.plugins.native.groups.offset_expiry import OffsetExpiry
from lakemq.plugins.native.groups.offset_log import OffsetLog
from lakemq.plugins.native.groups.offset_table import check_commit, check_group_name
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.server.convert import error_message

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

    def say(self, assignment: pb.GroupAssignment) -> None:
        self._latest = assignment
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def next(self) -> pb.GroupAssignment | None:
        await self._changed.wait()
        self._changed.clear()
        said, self._latest = self._latest, None
        # An ended stream does not wait again: what was said last is sent, then None.
        if self._ended:
            self._changed.set()
        return said


class GroupHost:
    """All consumer groups of this node."""

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
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._expiry = OffsetExpiry(
            retention_ms=settings.group_offsets_retention_ms,
            session_timeout_max_ms=settings.group_session_timeout_max_ms,
            started_ms=_now_ms(),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load committed offsets and start expiring sessions and offsets."""
        await self.offsets.load()
        # Offsets of decided transactions are in force before any member joins or commits.
        self._broker.transactions.register_participant(OFFSETS, OffsetsParticipant(self))
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
        for stream in self._streams.values():
            stream.end()

    @property
    def rebalances(self) -> int:
        """Rebalances of the groups that are in memory."""
        return sum(group.rebalances for group in self._coordinator.groups.values())

    async def _tick(self) -> None:
        while True:
            wanted = {name for group in self._coordinator.groups.values() for name in group.topics}
            told = self._coordinator.tick(self._counts(wanted), _now_ms())
            for name, tells in told.items():
                self._tell(name, tells)
            await asyncio.sleep(_TICK_S)

    async def _expire_offsets(self) -> None:
        """Delete groups that have been unused for `group_offsets_retention_ms`."""
        while True:
            await asyncio.sleep(self._expiry.interval_ms / 1000)
            now_ms, wall_ms = _now_ms(), time.time_ns() // 1_000_000
            members = {name for name, group in self._coordinator.groups.items() if group.members}
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
                    self._heartbeat(beat, principal, stream)
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
        if beat.intent == pb.INTENT_STAY and name not in self._coordinator.groups:
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
        return self._coordinator.group(name, self.offsets.table.highest_epoch(name))

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
        """Commit offsets; returns when they are on disk. Raises InvalidRequest, NotAuthorized,
        UnknownMember, MemberFenced, GroupNotEmpty, UnknownTopic."""
        epoch, offsets = self.checked(request, principal)
        await self.offsets.commit(request.group, epoch, offsets)

    def checked(
        self, request: pb.CommitOffsetsRequest, principal: Principal
    ) -> tuple[int, dict[TopicPartition, tuple[int, str]]]:
        """(epoch, offsets) of a commit that may be taken. Raises as `commit`."""
        check_group_name(request.group)
        # Without a member it is an operator who sets the offsets.
        operation = Operation.READ if request.member_id else Operation.ALTER
        self._broker.authorize(principal, operation, Resource("group", request.group))
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for name in {each.topic for each in request.offsets}:
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("topic", name))
        for each in request.offsets:
            check_commit(each.offset, each.metadata)
            if each.offset >= 0:
                check_partition(self._broker.topic(each.topic), each.partition)
            place = TopicPartition(each.topic, each.partition)
            offsets[place] = (each.offset, each.metadata)
        group = self._coordinator.groups.get(request.group) or ConsumerGroup(request.group)
        group.check_commit(request.member_id, request.member_epoch, request.sequence, offsets)
        self.commits += 1
        return request.member_epoch if request.member_id else 0, offsets

    def withdraw(self, name: str, places: Iterable[TopicPartition], member_id: str) -> None:
        """Offsets that the table showed were not committed after all: a client other than
        `member_id` has begun to read there must not commit."""
        group = self._coordinator.groups.get(name)
        if group is not None:
            group.withdraw(frozenset(places), member_id)

    def describe(self, names: Sequence[str], principal: Principal) -> list[pb.Group]:
        """Groups by name, or all that may be described. Raises UnknownGroup, NotAuthorized."""
        for name in names:
            self._broker.authorize(principal, Operation.DESCRIBE, Resource("group", name))
        wanted = names or [
            name for name in sorted(self.names()) if self.may_describe(name, principal)
        ]
        return [self._described(name) for name in wanted]

    def names(self) -> list[str]:
        """Of all groups, in no order."""
        return list({*self.offsets.table.groups(), *self._coordinator.groups})

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
            group = ConsumerGroup(name, self.offsets.table.highest_epoch(name))
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
        """(log start offset, high watermark); -1 where another node leads the partition."""
        try:
            log = self._broker.partition(*place)
        except NotLeader:
            return -1, -1
        return log.log_start_offset, log.high_watermark

    def check_empty(self, name: str) -> None:
        """Raises UnknownGroup, GroupNotEmpty."""
        group = self._coordinator.groups.get(name)
        if group is not None and group.members:
            raise GroupNotEmpty(f"group {name} has {len(group.members)} member(s)")
        if group is None and not self.offsets.table.of(name):
            raise UnknownGroup(f"group {name!r} does not exist")

    async def delete(self, name: str, principal: Principal) -> None:
        """Delete a group and its offsets. Raises UnknownGroup, GroupNotEmpty, NotAuthorized."""
        self._broker.authorize(principal, Operation.DELETE, Resource("group", name))
        self.check_empty(name)
        self._coordinator.groups.pop(name, None)
        await self.offsets.delete(name)

    def lags(self) -> dict[tuple[str, str], int]:
        """(group, topic) -> records that were not committed yet, of what was committed."""
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
                    log = self._broker.partition(*place)
                    found[place] = max(0, log.high_watermark - committed.offset)
        return found


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
