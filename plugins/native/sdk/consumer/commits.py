"""Commits of a consumer: one at a time, each superseding those made before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, MemberFenced, UnknownMember
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.positions import Positions
from lakemq.plugins.native.sdk.group.group_calls import GroupCalls
from lakemq.plugins.native.sdk.group.group_stream import now_ms
from lakemq.plugins.native.sdk.group.membership import Membership
from lakemq.plugins.native.sdk.net.sequencing import backoff_s


class Commits:
    """Keeps where one consumer stands in its group."""

    def __init__(
        self,
        calls: GroupCalls,
        group: str,
        membership: Membership,
        positions: Positions,
        counters: ConsumerCounters,
        timeout_s: float,
    ) -> None:
        self._calls, self._group, self._timeout_s = calls, group, timeout_s
        self._membership, self._positions, self._counters = membership, positions, counters
        self._committed: dict[TopicPartition, int] = {}
        self._lock = asyncio.Lock()
        self._sequence = 0

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """As `Consumer.commit`."""
        # Checked here, since the request carries the epoch and the id of a rejoin, not those that
        # the positions belong to.
        if self._membership.changes().lost:
            raise MemberFenced("the session has ended; others may have the partitions by now")
        # One at a time: the coordinator refuses a commit that a later one has overtaken
        # (MemberFenced).
        async with self._lock:
            wanted = dict(offsets) if offsets is not None else self._positions.now()
            fresh = {at: each for at, each in wanted.items() if self._committed.get(at) != each}
            if fresh:
                await self._send(fresh)
                self._counters.commits += 1
                self.done(fresh)

    def request(self, offsets: Mapping[TopicPartition, int]) -> pb.CommitOffsetsRequest:
        """A commit of this member. InvalidRequest: it reads without a group."""
        if not self._group:
            raise InvalidRequest("this consumer has no group to commit to; assign(..., group=...)")
        self._sequence += 1
        return pb.CommitOffsetsRequest(
            group=self._group,
            member_id=self._membership.member_id,
            member_epoch=self._membership.epoch,
            sequence=self._sequence,
            offsets=[
                pb.OffsetCommit(topic=at.topic, partition=at.partition, offset=offset)
                for at, offset in offsets.items()
            ],
        )

    def done(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are on the broker's disk."""
        self._positions.committed(offsets)
        held = self._positions.at
        self._committed.update((at, each) for at, each in offsets.items() if at in held)

    def drop(self, places: Iterable[TopicPartition]) -> None:
        """These partitions are read no more: others may commit there."""
        for place in places:
            self._committed.pop(place, None)

    async def _send(self, offsets: Mapping[TopicPartition, int]) -> None:
        member_id = self._membership.member_id
        deadline_ms = now_ms() + self._timeout_s * 1000
        for pause_s in backoff_s():
            # A new sequence number for every try: one whose answer was lost may arrive late, and is
            # then refused as older.
            request = self.request(offsets)
            try:
                await self._calls.commit(request, self._timeout_s)
                return
            except LakeMQError as error:
                failure = error
            if not failure.retriable or now_ms() + pause_s * 1000 > deadline_ms:
                raise failure
            # Between two tries the member rejoined under another id: the commit must not be made in
            # its name.
            if self._membership.member_id != member_id:
                raise UnknownMember(f"the session ended before the commit was taken: {failure}")
            await asyncio.sleep(pause_s)
