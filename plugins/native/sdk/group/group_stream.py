"""The heartbeats of one member of a consumer group: `Membership` decides, this drives gRPC."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from lakemq.broker_core.api.errors import (
    InstanceInUse,
    LakeMQError,
    MemberFenced,
    Unavailable,
    UnknownMember,
)
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.group.group_calls import GroupCalls
from lakemq.plugins.native.sdk.group.membership import Beat, Grant, Membership
from lakemq.plugins.native.sdk.net.errors import error_of
from lakemq.plugins.native.sdk.net.sequencing import backoff_s

_FIRST_INTERVAL_S: Final = 0.5
_LEAVE_S: Final = 2.0
_SILENT_MS: Final = 2_000
"""A coordinator that is not the guide and does not answer a heartbeat for so long is asked for
again: of the guide, which is left as well when it goes quiet."""


def now_ms() -> float:
    """The clock of leases."""
    return time.monotonic() * 1000


class GroupStream:
    """Keeps one member in its group. `on_change` is called when something has changed."""

    def __init__(
        self,
        calls: GroupCalls,
        *,
        group: str,
        topics: Sequence[str],
        instance_id: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        on_change: Callable[[], None],
    ) -> None:
        self.membership = Membership(_new_member_id(), session_timeout_ms)
        self.failed: LakeMQError | None = None
        """Set when the group can't be joined at all."""
        self._calls = calls
        self._group = group
        self.topics = list(topics)
        self._instance_id = instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._on_change = on_change
        self._interval_s = _FIRST_INTERVAL_S
        self._hurry = asyncio.Event()
        self._leaving = False
        self._driver: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Join the group, and send heartbeats from now on."""
        self._driver = asyncio.create_task(self._drive())

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on."""
        self.topics = list(topics)
        self.heartbeat_now()

    def heartbeat_now(self) -> None:
        """Do not wait for the next heartbeat's time: there is news."""
        self._hurry.set()

    async def leave(self) -> None:
        """Say goodbye; a static member says that it means to return."""
        self._leaving = True
        self._hurry.set()
        if self._driver is not None:
            with suppress(TimeoutError):
                # Leaving is a courtesy: without it the coordinator waits for the session time-out,
                # so a broker that is away must not hold up the caller.
                async with asyncio.timeout(_LEAVE_S):
                    await asyncio.wait([self._driver])
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)

    async def _drive(self) -> None:
        pauses = backoff_s()
        while not self._leaving:
            call: Any = None
            watch = None
            at_once = False
            try:
                await self._calls.log_in()
                call = self._calls.stub.JoinGroup(self._beats())
                watch = asyncio.create_task(self._end_if_silent(call))
                async for answer in call:
                    pauses = backoff_s()
                    self._told(answer)
            except LakeMQError as failure:
                # A stream that breaks is no expulsion: the member goes on under its id until the
                # coordinator says that its session has ended.
                if not failure.retriable:
                    self._fail(failure)
                    return
                self._tell("broke", f"the coordinator is looked for again: {failure}")
                at_once = self._calls.failed(failure)
            finally:
                if watch is not None:
                    watch.cancel()
                if call is not None:
                    call.cancel()
            self.membership.disconnected()
            self._on_change()
            pause_s = 0.0 if at_once else next(pauses)
            if not self._leaving:
                await asyncio.sleep(pause_s)

    def _tell(self, kind: str, text: str) -> None:
        notices = self._calls.routes.notices
        notices.tell("group", kind, self._group, text=f"group {self._group}: {text}")

    async def _end_if_silent(self, call: Any) -> None:
        """End the stream to a coordinator that says nothing, unless it is the guide."""
        while self._calls.address:
            await asyncio.sleep(_SILENT_MS / 4000)
            if self.membership.unanswered_ms(now_ms()) > _SILENT_MS:
                call.end(Unavailable("the coordinator does not answer heartbeats"))
                return

    def _fail(self, error: LakeMQError) -> None:
        self.failed = error
        self.membership.disconnected()
        self._on_change()

    async def _beats(self) -> AsyncIterator[pb.GroupHeartbeat]:
        membership = self.membership
        while True:
            # Until they leave or time out, earlier ids of ours hold partitions that this member
            # waits for.
            for member_id in membership.abandoned:
                yield self._leave_beat(member_id, pb.INTENT_LEAVE)
            membership.abandoned.clear()
            if self._leaving:
                # KIP-345: the partitions of a static member that means to return are not moved.
                intent = pb.INTENT_AWAY if self._instance_id else pb.INTENT_LEAVE
                yield self._leave_beat(membership.member_id, intent)
                return
            # Cleared before the heartbeat is made: a change that comes while it is sent hurries the
            # next one.
            self._hurry.clear()
            yield self._message(membership.beat(now_ms()))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()

    def _leave_beat(self, member_id: str, intent: pb.Intent.ValueType) -> pb.GroupHeartbeat:
        return pb.GroupHeartbeat(group=self._group, member_id=member_id, intent=intent)

    def _message(self, beat: Beat) -> pb.GroupHeartbeat:
        return pb.GroupHeartbeat(
            group=self._group,
            member_id=beat.member_id,
            sequence=beat.sequence,
            intent=pb.INTENT_JOIN if beat.joining else pb.INTENT_STAY,
            topics=self.topics,
            holds=[
                pb.GroupPartition(
                    topic=at.topic, partition=at.partition, epoch=beat.claims.get(at, 0)
                )
                for at in beat.holds
            ],
            revision=beat.revision,
            instance_id=self._instance_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
        )

    def _told(self, answer: pb.GroupAssignment) -> None:
        if answer.heartbeat_interval_ms:
            self._interval_s = answer.heartbeat_interval_ms / 1000
        if answer.HasField("error"):
            self._refused(answer.member_id, error_of(answer.error))
            return
        if answer.takeover_ms:
            self.membership.limit_lease(answer.takeover_ms)
        version = self.membership.version
        self.membership.told(
            answer.member_id,
            answer.member_epoch,
            answer.revision,
            answer.sequence,
            {
                TopicPartition(at.topic, at.partition): Grant(at.epoch, at.committed_offset)
                for at in answer.partitions
            },
            answer.alone,
        )
        if self.membership.version != version:
            self._on_change()

    def _refused(self, member_id: str, error: LakeMQError) -> None:
        if isinstance(error, UnknownMember | MemberFenced):
            self._tell("session", f"the session has ended, this member joins again: {error}")
            known = isinstance(error, MemberFenced)
            self.membership.expelled(member_id, _new_member_id(), known=known)
            self.heartbeat_now()
            self._on_change()
        elif not isinstance(error, InstanceInUse) and not error.retriable:
            # Not for InstanceInUse, which passes when the other process with that instance id
            # leaves or times out: the next heartbeat asks again.
            self._fail(error)


def _new_member_id() -> str:
    return uuid.uuid4().hex
