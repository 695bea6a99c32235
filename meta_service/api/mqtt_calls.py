"""Calls on MQTT sessions and shared subscriptions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from meta_service.api import mqtt_pb2 as pb
from meta_service.api.calls import Calls
from meta_service.api.mqtt import Claim, MqttChange, MqttSession, SharedGroup


def session_of(message: pb.MqttSession) -> MqttSession:
    return MqttSession(
        message.client_id,
        message.node_id,
        message.epoch,
        message.connected,
        message.expiry_s,
        message.ends_ms,
        message.state,
        message.revision,
    )


def session_message(session: MqttSession) -> pb.MqttSession:
    return pb.MqttSession(
        client_id=session.client_id,
        node_id=session.node_id,
        epoch=session.epoch,
        connected=session.connected,
        expiry_s=session.expiry_s,
        ends_ms=session.ends_ms,
        state=session.state,
        revision=session.revision,
    )


def shared_of(message: pb.SharedGroup) -> SharedGroup:
    members = tuple((member.client_id, member.node_id) for member in message.members)
    return SharedGroup(
        message.group, message.topic_filter, message.epoch, message.coordinator, members
    )


def shared_message(shared: SharedGroup) -> pb.SharedGroup:
    return pb.SharedGroup(
        group=shared.group,
        topic_filter=shared.topic_filter,
        epoch=shared.epoch,
        coordinator=shared.coordinator,
        members=[pb.SharedMember(client_id=c, node_id=n) for c, n in shared.members],
    )


def change_of(message: pb.MqttChange) -> MqttChange:
    is_session = bool(message.client_id)
    return MqttChange(
        message.revision,
        message.client_id if is_session else None,
        None if is_session else (message.group, message.topic_filter),
        session_of(message.session) if message.HasField("session") else None,
        shared_of(message.shared) if message.HasField("shared") else None,
    )


class MqttCalls(Calls):
    """Implements `MqttPort`."""

    async def claim_session(
        self, client_id: str, node_id: str, *, clean_start: bool, expiry_s: int
    ) -> Claim:
        request = pb.ClaimSessionRequest(
            client_id=client_id, node_id=node_id, clean_start=clean_start, expiry_s=expiry_s
        )
        response = await self._write(lambda t: t.mqtt.ClaimSession, request)
        previous = response.previous_node if response.HasField("previous_node") else None
        return Claim(response.epoch, previous, response.present, response.state)

    async def save_session(self, client_id: str, epoch: int, state: bytes) -> int:
        request = pb.SaveSessionRequest(client_id=client_id, epoch=epoch, state=state)
        return int((await self._write(lambda t: t.mqtt.SaveSession, request)).revision)

    async def release_session(
        self, client_id: str, epoch: int, *, expiry_s: int | None = None
    ) -> None:
        request = pb.ReleaseSessionRequest(client_id=client_id, epoch=epoch, expiry_s=expiry_s)
        await self._write(lambda t: t.mqtt.ReleaseSession, request)

    async def end_session(self, client_id: str, epoch: int | None = None) -> None:
        request = pb.EndSessionRequest(client_id=client_id, epoch=epoch)
        await self._write(lambda t: t.mqtt.EndSession, request)

    async def session(self, client_id: str) -> MqttSession | None:
        request = pb.ListMqttRequest(client_id=client_id)
        response = await self._call(lambda t: t.mqtt.List, request)
        return session_of(response.sessions[0]) if response.sessions else None

    async def sessions(self) -> tuple[int, Sequence[MqttSession]]:
        revision, answers = await self._all(pb.ListMqttRequest.SESSIONS)
        return revision, [session_of(each) for answer in answers for each in answer.sessions]

    async def shared_groups(self) -> tuple[int, Sequence[SharedGroup]]:
        revision, answers = await self._all(pb.ListMqttRequest.SHARED)
        return revision, [shared_of(each) for answer in answers for each in answer.shared]

    async def _all(self, what: pb.ListMqttRequest.What.ValueType) -> tuple[int, list[Any]]:
        answers: list[Any] = []
        while not answers or answers[-1].next:
            request = pb.ListMqttRequest(what=what, after=answers[-1].next if answers else b"")
            answers.append(await self._call(lambda t: t.mqtt.List, request))
        return answers[0].revision, answers

    async def join_shared(
        self, group: str, topic_filter: str, client_id: str, node_id: str
    ) -> SharedGroup:
        request = pb.SharedRequest(
            group=group, topic_filter=topic_filter, client_id=client_id, node_id=node_id
        )
        return shared_of(await self._write(lambda t: t.mqtt.JoinShared, request))

    async def leave_shared(self, group: str, topic_filter: str, client_id: str) -> None:
        request = pb.SharedRequest(group=group, topic_filter=topic_filter, client_id=client_id)
        await self._write(lambda t: t.mqtt.LeaveShared, request)

    def watch_mqtt(self, start_revision: int) -> AsyncIterator[MqttChange]:
        return self._watch_mqtt(start_revision)

    async def _watch_mqtt(self, start_revision: int) -> AsyncIterator[MqttChange]:
        def request(revision: int) -> pb.WatchMqttRequest:
            return pb.WatchMqttRequest(start_revision=revision)

        changes: Any = self._stream(lambda t: t.mqtt.Watch, request, start_revision)
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.client_id or change.group:
                    yield change_of(change)
