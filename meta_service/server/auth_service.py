"""The gRPC service of users, ACL rules and quotas."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from lakemq.meta_service.api.auth import AclRule, kind_complaint
from lakemq.meta_service.api.auth_convert import entry_message, entry_of
from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.catalog.auth import (
    AUTH_PREFIX,
    DELETIONS,
    PREFIXES,
    decode_entry,
    identify,
    put_command,
)
from lakemq.meta_service.proto import auth_pb2 as pb
from lakemq.meta_service.proto import auth_pb2_grpc as rpc
from lakemq.meta_service.proto import meta_pb2
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.server.services import ANSWER_MAX_BYTES, Service


def expected(request: Any) -> int | None:
    return request.expected_revision if request.HasField("expected_revision") else None


class AuthService(Service, rpc.AuthServicer):
    """Implements `Auth` of auth.proto."""

    @unary
    async def Put(self, request: pb.PutAuthRequest, context: Context) -> meta_pb2.WriteResponse:
        entry = entry_of(request.entry)
        kind = entry.resource if isinstance(entry, AclRule) else "*"
        if kind != "*" and (complaint := kind_complaint(kind)):
            raise InvalidArgument(f"rule.resource: {complaint}")
        command = put_command(entry, expected(request))
        result = await self._propose(command, request.once)
        return meta_pb2.WriteResponse(revision=result.revision)

    @unary
    async def Delete(
        self, request: pb.DeleteAuthRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        if request.kind not in DELETIONS:
            raise InvalidArgument(f"kind: must be one of {', '.join(DELETIONS)}")
        command = DELETIONS[request.kind](request.name, expected(request))
        result = await self._propose(command, request.once)
        return meta_pb2.WriteResponse(revision=result.revision)

    @unary
    async def List(self, request: pb.ListAuthRequest, context: Context) -> pb.ListAuthResponse:
        prefix = _prefix(request)
        await self._fresh(request.stale)
        cache = self._gateway.cache
        response = pb.ListAuthResponse(revision=cache.revision)
        size = 0
        last = b""
        for key, row in cache.scan(prefix, after=request.after):
            if request.name and key != prefix:
                break
            size += 2 * (len(key) + len(row.value)) + 40
            if response.entries and size > ANSWER_MAX_BYTES:
                response.next = last
                break
            response.entries.append(entry_message(decode_entry(key, row.value, row.mod_revision)))
            last = key
        return response

    @streaming
    async def Watch(
        self, request: pb.WatchAuthRequest, context: Context
    ) -> AsyncIterator[pb.AuthChange]:
        changes = self._changes(AUTH_PREFIX, request.start_revision)
        async with contextlib.aclosing(changes):
            async for revision, key, value, last in changes:
                change = pb.AuthChange(revision=revision, last=last)
                if key is not None:
                    change.kind, change.name = identify(key)
                    if value is not None:
                        change.entry.CopyFrom(entry_message(decode_entry(key, value, revision)))
                yield change


def _prefix(request: pb.ListAuthRequest) -> bytes:
    if not request.kind and not request.name:
        return AUTH_PREFIX
    for kind, prefix in PREFIXES.items():
        if kind == request.kind:
            return prefix + request.name.encode()
    raise InvalidArgument(f"kind: must be one of {', '.join(PREFIXES)}")
