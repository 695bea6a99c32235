"""Participants of commits: what else than records a commit makes effective, on whichever node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, NotLeader
from lakemq.broker_core.api.transactions.ports import Participant
from lakemq.broker_core.api.transactions.types import Effect
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.transactions.targets import Call

METHOD: Final = "ApplyEffect"
_CALL_S: Final = 8.0
_CALLS_AT_ONCE: Final = 2
_REQUEST_MAX_BYTES: Final = 64 * 1024 * 1024


class Participants:
    """By name; a commit may wait for one that registers later."""

    def __init__(self, node_id: str = "", call: Call | None = None) -> None:
        """`call`: None where there is no other node."""
        self._node_id = node_id
        self._call = call
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

    def restore(self, effects: Sequence[tuple[str, bytes]]) -> None:
        """Let those that are registered take up effects of a commit that is not applied."""
        for name, data in effects:
            if name in self._there:
                self._there[name].restore(data)

    async def apply(self, name: str, data: bytes) -> None:
        """Make an effect durable, here or on the node that the participant names. Waits for one
        that has not registered. Raises LakeMQError: to be tried again."""
        while name not in self._there:
            await self._came.wait()
        try:
            await self._there[name].apply(data)
        except NotLeader as error:
            if self._call is None or error.leader in ("", None, self._node_id):
                raise
            request = pb.ApplyEffectRequest(participant=name, data=data).SerializeToString()
            async with self._room:
                await self._call(str(error.leader), METHOD, request, _CALL_S)

    async def answer(self, peer: Peer, request: bytes) -> bytes:
        """`Peer.ApplyEffect`: an ApplyEffectResponse. Raises BadFrame, InvalidRequest, and what the
        participant raises."""
        if len(request) > _REQUEST_MAX_BYTES:
            raise BadFrame(f"an effect of {len(request)} bytes; {_REQUEST_MAX_BYTES} is the most")
        try:
            asked = pb.ApplyEffectRequest.FromString(request)
        except DecodeError as error:
            raise BadFrame(f"not an ApplyEffectRequest: {error}") from None
        try:
            await self.get(asked.participant).apply(asked.data)
        except ValueError as error:
            raise BadFrame(f"an effect that can't be read: {error}") from None
        return pb.ApplyEffectResponse().SerializeToString()


def decide_all(
    participants: Participants, effects: Sequence[Effect]
) -> tuple[tuple[tuple[str, bytes], ...], Callable[[], None]]:
    """(participant, data) of all effects, and a call that undoes them. Raises what a participant
    raises, after undoing the others."""
    decided: list[tuple[str, bytes]] = []
    undos: list[Callable[[], None]] = []

    def undo() -> None:
        # In reverse: a later decision may rest on an earlier one.
        for each in reversed(undos):
            each()

    for effect in effects:
        try:
            decision = participants.get(effect.participant).decide(effect.asked)
        except LakeMQError:
            undo()
            raise
        decided.append((effect.participant, decision.data))
        undos.append(decision.undo)
    return tuple(decided), undo
