"""Streams of group members: heartbeats in, assignments out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable
from lakemq.broker_core.api.groups.ports import GroupCoordinators
from lakemq.broker_core.api.groups.types import MemberAssignment
from lakemq.broker_core.api.types import Principal
from lakemq.plugins.native.groups.messages import assignment_message, heartbeat
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.server.convert import error_message

_LEAVES = (pb.INTENT_LEAVE, pb.INTENT_AWAY)


class MemberStream:
    """Implements `MemberListener`: what one stream has to say next. Only the newest assignment is
    kept."""

    def __init__(self, groups: GroupCoordinators, principal: Principal) -> None:
        self.error: LakeMQError | None = None
        """What the call ends with, if it was ended because of one."""
        self._groups = groups
        self._principal = principal
        self._member: tuple[str, str] | None = None
        """Group and member id that it spoke for last, and hears for."""
        self._latest: pb.GroupAssignment | None = None
        self._changed = asyncio.Event()
        self._ended = False

    def assigned(self, assignment: MemberAssignment) -> None:
        """As `MemberListener.assigned`."""
        self._say(assignment_message(assignment))

    def ended(self, error: LakeMQError) -> None:
        """As `MemberListener.ended`."""
        self.error = self.error or error
        self.end()

    def end(self) -> None:
        """Send what was said last, and no more."""
        self._ended = True
        self._changed.set()

    def _say(self, assignment: pb.GroupAssignment) -> None:
        self._latest = assignment
        self._changed.set()

    async def next(self) -> pb.GroupAssignment | None:
        """What to send; None: the stream has ended."""
        await self._changed.wait()
        self._changed.clear()
        said, self._latest = self._latest, None
        # An ended stream does not wait again: what was said last is sent, then None.
        if self._ended:
            self._changed.set()
        return said

    async def read(self, beats: AsyncIterator[pb.GroupHeartbeat]) -> None:
        """Pass on what the member says. Raises NotLeader, Unavailable: the stream belongs to
        another node, or later."""
        try:
            async for beat in beats:
                try:
                    await self._take(beat)
                except (NotLeader, Unavailable):
                    raise
                except LakeMQError as error:
                    self._say(
                        pb.GroupAssignment(
                            member_id=beat.member_id,
                            heartbeat_interval_ms=self._groups.settings.heartbeat_interval_ms,
                            error=error_message(error),
                        )
                    )
        finally:
            self.end()

    async def _take(self, beat: pb.GroupHeartbeat) -> None:
        if beat.intent in _LEAVES:
            away = beat.intent == pb.INTENT_AWAY
            await self._groups.leave(
                beat.group, beat.member_id, principal=self._principal, away=away
            )
            return
        told = await self._groups.heartbeat(
            beat.group, heartbeat(beat), principal=self._principal, listener=self
        )
        if self._member != (beat.group, beat.member_id):
            self.forget()
            self._member = (beat.group, beat.member_id)
        if told is not None:
            self.assigned(told)

    def forget(self) -> None:
        """Hear no more of the member."""
        if self._member is not None:
            self._groups.unlisten(*self._member, self)


class MemberStreams:
    """All that are open."""

    def __init__(self, groups: GroupCoordinators) -> None:
        self._groups = groups
        self._open: set[MemberStream] = set()

    async def join(
        self, beats: AsyncIterator[pb.GroupHeartbeat], principal: Principal
    ) -> AsyncIterator[pb.GroupAssignment]:
        """One member's stream."""
        stream = MemberStream(self._groups, principal)
        self._open.add(stream)
        reader = asyncio.create_task(stream.read(beats))
        try:
            while (said := await stream.next()) is not None:
                yield said
            if stream.error is not None:
                raise stream.error
            # An error that ended the reading ends the call.
            await reader
        finally:
            reader.cancel()
            stream.forget()
            self._open.discard(stream)

    def end(self) -> None:
        """End all of them: the node stops."""
        for stream in self._open:
            stream.end()
