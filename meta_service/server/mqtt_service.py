"""The gRPC service of MQTT sessions and shared subscriptions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

from meta_service.api import meta_pb2
from meta_service.api import mqtt_pb2 as pb
from meta_service.api import mqtt_pb2_grpc as rpc
from meta_service.api.mqtt_calls import session_message, shared_message
from meta_service.catalog.mqtt import (
    MQTT_PREFIX,
    SESSION_PREFIX,
    SHARED_PREFIX,
    ClaimSession,
    EndSession,
    JoinShared,
    LeaveShared,
    ReleaseSession,
    SaveSession,
    decode_session,
    decode_shared,
    session_key,
    shared_key,
)
from meta_service.catalog.tables import Row
from meta_service.server.failures import Context, streaming, unary
from meta_service.server.services import ANSWER_BYTES_MAX, Service


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MqttService(Service, rpc.MqttServicer):
    """Implements `Mqtt` of mqtt.proto."""

    @unary
    async def ClaimSession(
        self, request: pb.ClaimSessionRequest, context: Context
    ) -> pb.ClaimSessionResponse:
        command = ClaimSession(
            request.client_id,
            request.node_id,
            request.clean_start,
            request.expiry_s,
            wall_clock_ms(),
        )
        epoch, previous, present, state = (await self._propose(command, request.once)).payload
        return pb.ClaimSessionResponse(
            epoch=epoch, previous_node=previous, present=present, state=state
        )

    @unary
    async def SaveSession(
        self, request: pb.SaveSessionRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        command = SaveSession(request.client_id, request.epoch, request.state)
        return await self._written(command, request.once)

    @unary
    async def ReleaseSession(
        self, request: pb.ReleaseSessionRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        expiry_s = request.expiry_s if request.HasField("expiry_s") else None
        command = ReleaseSession(request.client_id, request.epoch, expiry_s, wall_clock_ms())
        return await self._written(command, request.once)

    @unary
    async def EndSession(
        self, request: pb.EndSessionRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        epoch = request.epoch if request.HasField("epoch") else None
        return await self._written(EndSession(request.client_id, epoch), request.once)

    @unary
    async def JoinShared(self, request: pb.SharedRequest, context: Context) -> pb.SharedGroup:
        command = JoinShared(
            request.group, request.topic_filter, request.client_id, request.node_id
        )
        result = await self._propose(command, request.once)
        key = shared_key(request.group, request.topic_filter)
        return shared_message(decode_shared(key, result.payload, result.revision))

    @unary
    async def LeaveShared(
        self, request: pb.SharedRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        command = LeaveShared(request.group, request.topic_filter, request.client_id)
        return await self._written(command, request.once)

    @unary
    async def List(self, request: pb.ListMqttRequest, context: Context) -> pb.ListMqttResponse:
        await self._fresh()
        cache = self._gateway.cache
        response = pb.ListMqttResponse(revision=cache.revision)
        if request.client_id:
            key = session_key(request.client_id)
            row = cache.get(key)
            if row is not None:
                _add(response, key, row)
            return response
        prefix = SESSION_PREFIX if request.what == request.SESSIONS else SHARED_PREFIX
        size, last = 0, b""
        for key, row in cache.scan(prefix, after=request.after):
            size += 2 * (len(key) + len(row.value)) + 40
            if last and size > ANSWER_BYTES_MAX:
                response.next = last
                break
            _add(response, key, row)
            last = key
        return response

    @streaming
    async def Watch(
        self, request: pb.WatchMqttRequest, context: Context
    ) -> AsyncIterator[pb.MqttChange]:
        changes = self._changes(MQTT_PREFIX, request.start_revision)
        async with contextlib.aclosing(changes):
            async for revision, key, value, last in changes:
                change = pb.MqttChange(revision=revision, last=last)
                if key is not None:
                    _describe(change, key, value)
                yield change


def _add(response: pb.ListMqttResponse, key: bytes, row: Row) -> None:
    if key.startswith(SESSION_PREFIX):
        session = decode_session(key, row.value, row.mod_revision)
        response.sessions.append(session_message(session))
    else:
        response.shared.append(shared_message(decode_shared(key, row.value, row.mod_revision)))


def _describe(change: pb.MqttChange, key: bytes, value: bytes | None) -> None:
    if key.startswith(SESSION_PREFIX):
        change.client_id = key[len(SESSION_PREFIX) :].decode()
        if value is not None:
            change.session.CopyFrom(session_message(decode_session(key, value, change.revision)))
        return
    group, _, topic_filter = key[len(SHARED_PREFIX) :].decode().partition("/")
    change.group, change.topic_filter = group, topic_filter
    if value is not None:
        change.shared.CopyFrom(shared_message(decode_shared(key, value, change.revision)))
