"""Participants of commits: what else than records a commit makes effective, on whichever node.

Two phases, as every commit of several nodes has: effects are prepared before the commit's record is
written, which decides, and applied or undone afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import (
    BY_CODE,
    InvalidRequest,
    LakeMQError,
    NotLeader,
    Unavailable,
)
from lakemq.broker_core.api.transactions.ports import Participant
from lakemq.broker_core.api.transactions.types import CommitTry, Effect, Owner
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.transactions.targets import Call

METHOD: Final = "TakePart"
Decided = tuple[tuple[str, bytes], ...]
"""(participant, data) of effects."""
_CALL_S: Final = 8.0
_CALLS_AT_ONCE: Final = 2
"""To all nodes together: a node takes few calls of another at a time."""
_REQUEST_MAX_BYTES: Final = 64 * 1024 * 1024
_MESSAGE_MAX_CHARS: Final = 2_000


class Participants:
    """By name; a commit may wait for one that registers later."""

    def __init__(
        self,
        node_id: str = "",
        call: Call | None = None,
        is_decided: Callable[[CommitTry], Awaitable[bool]] | None = None,
    ) -> None:
        """`call`: None where there is no other node. `is_decided`: as `Transactions.is_decided`,
        of commits that this node coordinates; NotLeader for others."""
        self._node_id = node_id
        self._call = call
        self._is_decided = is_decided
        self._there: dict[str, Participant] = {}
        self._came = asyncio.Event()
        self._room = asyncio.Semaphore(_CALLS_AT_ONCE)

    def add(self, name: str, participant: Participant) -> None:
        """Register a participant and wake the commits that wait for it."""
        self._there[name] = participant
        self._came.set()
        self._came = asyncio.Event()

    def get(self, name: str) -> Participant:
        """Raises InvalidRequest."""
        if name not in self._there:
            raise InvalidRequest(f"unknown participant of commits {name!r}")
        return self._there[name]

    # -- at the commit's coordinator

    async def prepare(self, commit: CommitTry, effects: Sequence[Effect]) -> Decided:
        """What goes into the commit's record. Raises what a participant raises, after undoing what
        the others hold."""
        prepared: list[tuple[str, bytes]] = []
        try:
            for effect in effects:
                data = self.get(effect.participant).encode(effect.asked)
                prepared.append(
                    (effect.participant, await self._prepare(commit, effect.participant, data))
                )
        except LakeMQError as error:
            for name, held in prepared:
                await self._undo(name, held)
            if isinstance(error, NotLeader):  # not of the commit: who asks is at the right node
                raise Unavailable(str(error)) from None
            raise
        return tuple(prepared)

    async def _prepare(self, commit: CommitTry, name: str, data: bytes) -> bytes:
        try:
            return await self._there[name].prepare(commit, data)
        except NotLeader as error:
            return (await self._ask(error, _request(commit, name, pb.STEP_PREPARE, data))).data

    async def _undo(self, name: str, data: bytes) -> None:
        # Unheard it costs a little time: who holds it asks.
        with suppress(LakeMQError):
            try:
                await self._there[name].undo(data)
            except NotLeader as error:
                await self._ask(error, _request(None, name, pb.STEP_UNDO, data))

    def restore(self, effects: Decided) -> None:
        """Let those that are registered take up effects of a commit that is not applied."""
        for name, data in effects:
            if name in self._there:
                self._there[name].restore(data)

    async def apply(self, name: str, data: bytes) -> None:
        """Make an effect durable, here or on the node whose matter it is. Waits for a participant
        that has not registered. Raises LakeMQError: to be tried again."""
        while name not in self._there:
            await self._came.wait()
        try:
            await self._there[name].apply(data)
        except NotLeader as error:
            await self._ask(error, _request(None, name, pb.STEP_APPLY, data))

    async def ask_decided(self, commit: CommitTry, error: NotLeader) -> bool:
        """What the coordinator that the error names says of a try. Raises LakeMQError."""
        return (await self._ask(error, _request(commit, "", pb.STEP_DECIDED))).decided

    async def _ask(self, error: NotLeader, request: pb.TakePartRequest) -> pb.TakePartResponse:
        """The answer of the node that the error names. Raises LakeMQError."""
        if self._call is None or error.leader in ("", self._node_id):
            raise error
        async with self._room:
            data = await self._call(error.leader, METHOD, request.SerializeToString(), _CALL_S)
        try:
            answer = pb.TakePartResponse.FromString(data)
        except DecodeError as problem:
            raise BadFrame(f"{error.leader}: not a TakePartResponse: {problem}") from None
        if not answer.code:
            return answer
        if answer.code == NotLeader.code:
            raise NotLeader(answer.message, leader=answer.leader)
        raise BY_CODE.get(answer.code, LakeMQError)(answer.message)

    # -- at the node that was asked

    async def answer(self, peer: Peer, request: bytes) -> bytes:
        """`Peer.TakePart`: a TakePartResponse. Raises BadFrame."""
        if len(request) > _REQUEST_MAX_BYTES:
            raise BadFrame(f"an effect of {len(request)} bytes; {_REQUEST_MAX_BYTES} is the most")
        try:
            asked = pb.TakePartRequest.FromString(request)
        except DecodeError as error:
            raise BadFrame(f"not a TakePartRequest: {error}") from None
        try:
            answer = await self._answer(asked)
        except ValueError as error:
            raise BadFrame(f"an effect that can't be read: {error}") from None
        except LakeMQError as error:
            answer = pb.TakePartResponse(code=error.code, message=str(error)[:_MESSAGE_MAX_CHARS])
            if isinstance(error, NotLeader):
                answer.leader = error.leader
        return answer.SerializeToString()

    async def _answer(self, asked: pb.TakePartRequest) -> pb.TakePartResponse:
        commit = CommitTry(
            Owner(asked.owner_kind, asked.owner), asked.epoch, asked.batch_id, asked.number
        )
        if asked.step == pb.STEP_DECIDED and self._is_decided is not None:
            return pb.TakePartResponse(decided=await self._is_decided(commit))
        participant = self.get(asked.participant)
        if asked.step == pb.STEP_PREPARE:
            return pb.TakePartResponse(data=await participant.prepare(commit, asked.data))
        if asked.step == pb.STEP_APPLY:
            await participant.apply(asked.data)
        elif asked.step == pb.STEP_UNDO:
            await participant.undo(asked.data)
        else:
            raise InvalidRequest(f"step {asked.step} of a commit is unknown here")
        return pb.TakePartResponse()


def _request(
    commit: CommitTry | None, participant: str, step: pb.Step.ValueType, data: bytes = b""
) -> pb.TakePartRequest:
    request = pb.TakePartRequest(participant=participant, step=step, data=data)
    if commit is not None:
        request.owner_kind, request.owner = commit.owner
        request.epoch, request.batch_id, request.number = commit[1:]
    return request
