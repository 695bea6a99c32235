"""The gRPC service of schemas."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from lakemq.meta_service.api.schema_calls import schema_message, subject_message
from lakemq.meta_service.api.schemas import DEFAULT_COMPATIBILITY, Schema
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
from lakemq.meta_service.proto import meta_pb2
from lakemq.meta_service.proto import schemas_pb2 as pb
from lakemq.meta_service.proto import schemas_pb2_grpc as rpc
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.server.services import ANSWER_MAX_BYTES, Service


class SchemasService(Service, rpc.SchemasServicer):
    """Implements `Schemas` of schemas.proto."""

    @unary
    async def Register(self, request: pb.RegisterSchemaRequest, context: Context) -> pb.Schema:
        expected = request.expected_version if request.HasField("expected_version") else None
        command = RegisterSchema(request.subject, request.schema_type, request.text, expected)
        version, schema_id = (await self._propose(command, request.once)).payload
        schema = Schema(request.subject, version, schema_id, request.schema_type, request.text)
        return schema_message(schema)

    @unary
    async def Get(self, request: pb.GetSchemaRequest, context: Context) -> pb.GetSchemaResponse:
        schema = self._schema(request.schema_id) if request.schema_id else None
        if schema is None:  # an id never changes its meaning: what is here needs no asking
            await self._fresh()
            schema = self._schema(request.schema_id or self._id_of(request))
        return pb.GetSchemaResponse(schema=schema_message(schema) if schema else None)

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
        await self._fresh()
        cache = self._gateway.cache
        default = cache.get(DEFAULT_KEY)
        response = pb.ListSubjectsResponse(
            revision=cache.revision,
            default_compatibility=unpack(default.value) if default else DEFAULT_COMPATIBILITY,
        )
        prefix = subject_key(request.name)
        size = 0
        after = subject_key(request.after) if request.after else b""
        for key, row in cache.scan(prefix, after=after):
            if request.name and key != prefix:
                break
            size += 2 * (len(key) + len(row.value)) + 40
            if response.subjects and size > ANSWER_MAX_BYTES:
                response.more = True
                break
            subject = decode_subject(key, row.value, row.mod_revision)
            response.subjects.append(subject_message(subject))
        return response

    @unary
    async def Delete(
        self, request: pb.DeleteSchemaRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        command = DeleteSchema(request.subject, request.version or None)
        result = await self._propose(command, request.once)
        return meta_pb2.WriteResponse(revision=result.revision)

    @unary
    async def SetCompatibility(
        self, request: pb.SetCompatibilityRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        command = SetCompatibility(request.subject, request.compatibility or None)
        result = await self._propose(command, request.once)
        return meta_pb2.WriteResponse(revision=result.revision)

    @streaming
    async def WatchSubjects(
        self, request: pb.WatchSubjectsRequest, context: Context
    ) -> AsyncIterator[pb.SubjectChange]:
        changes = self._changes(SUBJECT_PREFIX, request.start_revision)
        async with contextlib.aclosing(changes):
            async for revision, key, value, last in changes:
                change = pb.SubjectChange(revision=revision, last=last)
                if key is not None:
                    change.name = key[len(SUBJECT_PREFIX) :].decode()
                    if value is not None:
                        subject = decode_subject(key, value, revision)
                        change.subject.CopyFrom(subject_message(subject))
                yield change
