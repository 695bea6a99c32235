"""The gRPC service of schemas."""

from __future__ import annotations

from typing import Any

from lakemq.meta_service.api.messages import message_of
from lakemq.meta_service.api.schemas import DEFAULT_COMPATIBILITY, Schema
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.results import Result
from lakemq.meta_service.catalog.schemas import (
    DEFAULT_KEY,
    SUBJECT_PREFIX,
    DeleteSchema,
    RegisterSchema,
    SetCompatibility,
    decode_schema,
    decode_subject,
    id_key,
    subject_key,
)
from lakemq.meta_service.catalog.tables import unpack
from lakemq.meta_service.proto import schemas_pb2 as pb
from lakemq.meta_service.proto import schemas_pb2_grpc as rpc
from lakemq.meta_service.server.failures import Context, unary
from lakemq.meta_service.server.service import Service, watches, writes


def _register(service: Any, request: pb.RegisterSchemaRequest) -> Command:
    expected = request.expected_version if request.HasField("expected_version") else None
    return RegisterSchema(request.subject, request.schema_type, request.text, expected)


def _registered(request: pb.RegisterSchemaRequest, result: Result) -> pb.Schema:
    version, schema_id = result.payload
    return pb.Schema(
        subject=request.subject,
        version=version,
        schema_id=schema_id,
        schema_type=request.schema_type,
        text=request.text,
    )


def _fill_change(change: pb.SubjectChange, key: bytes, value: bytes | None) -> None:
    change.name = key[len(SUBJECT_PREFIX) :].decode()
    if value is not None:
        subject = decode_subject(key, value, change.revision)
        change.subject.CopyFrom(message_of(pb.Subject, subject))


class SchemasService(Service, rpc.SchemasServicer):
    """Implements `Schemas` of schemas.proto."""

    Register = writes(_register, _registered)
    Delete = writes(lambda _, request: DeleteSchema(request.subject, request.version or None))
    SetCompatibility = writes(
        lambda _, request: SetCompatibility(request.subject, request.compatibility or None)
    )
    WatchSubjects = watches(SUBJECT_PREFIX, pb.SubjectChange, _fill_change)

    @unary
    async def Get(self, request: pb.GetSchemaRequest, context: Context) -> pb.GetSchemaResponse:
        """A schema by id, or by subject and version; version 0: the latest."""
        schema = self._schema(request.schema_id) if request.schema_id else None
        if schema is None:  # an id never changes its meaning: what is here needs no asking
            await self._fresh()
            schema = self._schema(request.schema_id or self._id_of(request))
        return pb.GetSchemaResponse(schema=message_of(pb.Schema, schema) if schema else None)

    def _schema(self, schema_id: int) -> Schema | None:
        row = self._gateway.cache.get(id_key(schema_id))
        return decode_schema(id_key(schema_id), row.value) if row else None

    def _id_of(self, request: pb.GetSchemaRequest) -> int:
        """0: there is no such version."""
        row = self._gateway.cache.get(subject_key(request.subject))
        if row is None:
            return 0
        versions = decode_subject(subject_key(request.subject), row.value, 0).versions
        if not request.version:
            return versions[-1][1] if versions else 0
        return dict(versions).get(request.version, 0)

    @unary
    async def ListSubjects(
        self, request: pb.ListSubjectsRequest, context: Context
    ) -> pb.ListSubjectsResponse:
        """Subjects by name, in pages that fit one answer, and the default compatibility."""
        await self._fresh()
        cache = self._gateway.cache
        default = cache.get(DEFAULT_KEY)
        after = subject_key(request.after) if request.after else b""
        rows, more = self._page(subject_key(request.name), after, exact=bool(request.name))
        subjects = (decode_subject(key, row.value, row.mod_revision) for key, row in rows)
        return pb.ListSubjectsResponse(
            revision=cache.revision,
            default_compatibility=unpack(default.value) if default else DEFAULT_COMPATIBILITY,
            subjects=[message_of(pb.Subject, subject) for subject in subjects],
            more=more,
        )
