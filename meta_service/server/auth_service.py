"""The gRPC service of users, ACL rules and quotas."""

from __future__ import annotations

from typing import Any

from lakemq.meta_service.api.auth import AclRule, kind_complaint
from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.remote.auth_calls import entry_message, entry_of
from lakemq.meta_service.catalog.auth import AUTH_PREFIX, KINDS, decode_entry, identify, put_command
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.proto import auth_pb2 as pb
from lakemq.meta_service.proto import auth_pb2_grpc as rpc
from lakemq.meta_service.server.failures import Context, unary
from lakemq.meta_service.server.service import Service, watches, writes


def _put(service: Any, request: pb.PutAuthRequest) -> Command:
    entry = entry_of(request.entry)
    kind = entry.resource if isinstance(entry, AclRule) else "*"
    if kind != "*" and (complaint := kind_complaint(kind)):
        raise InvalidArgument(f"rule.resource: {complaint}")
    return put_command(entry, _expected(request))


def _delete(service: Any, request: pb.DeleteAuthRequest) -> Command:
    if request.kind not in KINDS:
        raise InvalidArgument(f"kind: must be one of {', '.join(KINDS)}")
    return KINDS[request.kind].delete(request.name, _expected(request))


def _expected(request: Any) -> int | None:
    return request.expected_revision if request.HasField("expected_revision") else None


def _fill_change(change: pb.AuthChange, key: bytes, value: bytes | None) -> None:
    change.kind, change.name = identify(key)
    if value is not None:
        change.entry.CopyFrom(entry_message(decode_entry(key, value, change.revision)))


def _prefix(request: pb.ListAuthRequest) -> bytes:
    if not request.kind and not request.name:
        return AUTH_PREFIX
    if request.kind not in KINDS:
        raise InvalidArgument(f"kind: must be one of {', '.join(KINDS)}")
    return KINDS[request.kind].put.prefix + request.name.encode()


class AuthService(Service, rpc.AuthServicer):
    """Implements `Auth` of auth.proto."""

    Put = writes(_put)
    Delete = writes(_delete)
    Watch = watches(AUTH_PREFIX, pb.AuthChange, _fill_change)

    @unary
    async def List(self, request: pb.ListAuthRequest, context: Context) -> pb.ListAuthResponse:
        """Entries of one kind, or all, in pages that fit one answer; linearizable unless
        `stale`."""
        prefix = _prefix(request)
        await self._fresh(request.stale)
        rows, more = self._page(prefix, request.after, exact=bool(request.name))
        entries = (decode_entry(key, row.value, row.mod_revision) for key, row in rows)
        return pb.ListAuthResponse(
            revision=self._gateway.cache.revision,
            entries=map(entry_message, entries),
            next=rows[-1][0] if more else b"",
        )
