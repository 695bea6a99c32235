"""The registry of schemas, and values <-> bytes with it: `client.schemas`, asyncio and blocking.

Formats need the extra `schemas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from lakemq.broker_core.api.schemas.formats import Format, open_schema
from lakemq.broker_core.api.schemas.types import SchemaInfo, SubjectInfo, framed, unframed
from lakemq.plugins.native.proto import schemas_pb2 as pb
from lakemq.plugins.native.proto.schemas_pb2_grpc import SchemasStub

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.schemas_pb2_grpc import SchemasAsyncStub


class Serializer:
    """Makes framed values of one schema. Pure; made by `serializer`."""

    def __init__(self, schema: SchemaInfo) -> None:
        self.schema = schema
        self._format = open_schema(schema.schema_type, schema.text)

    def __call__(self, value: Any) -> bytes:
        """Raises SchemaMismatch, naming the field."""
        return framed(self.schema.schema_id, self._format.encode(value))


class Schemas:
    """Made by `Client.schemas`. Every method raises `LakeMQError`s."""

    def __init__(self, channel: grpc.aio.Channel, bootstrap: str, timeout_s: float) -> None:
        self._stub: SchemasAsyncStub = SchemasStub(channel)
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._formats: dict[int, Format] = {}

    async def register(self, subject: str, schema_type: str, text: str) -> SchemaInfo:
        """A new version, or the latest when it is the same. Raises IncompatibleSchema,
        InvalidRequest (the text is no schema)."""
        request = pb.RegisterSchemaRequest(subject=subject, schema_type=schema_type, text=text)
        answer = await self._stub.RegisterSchema(request, timeout=self._timeout_s)
        return _info(answer.schema)

    async def check(self, subject: str, schema_type: str, text: str) -> list[str]:
        """Why `register` would refuse; empty: it would not."""
        request = pb.CheckSchemaRequest(subject=subject, schema_type=schema_type, text=text)
        answer = await self._stub.CheckSchema(request, timeout=self._timeout_s)
        return list(answer.problems)

    async def get(
        self, subject: str = "", version: int | None = None, *, schema_id: int = 0
    ) -> SchemaInfo:
        """A version of a subject (None: the latest), or by id. Raises UnknownSchema."""
        request = pb.GetSchemaRequest(subject=subject, version=version or 0, schema_id=schema_id)
        answer = await self._stub.GetSchema(request, timeout=self._timeout_s)
        return _info(answer.schema)

    async def subjects(self) -> list[SubjectInfo]:
        """All subjects, by name."""
        answer = await self._stub.ListSubjects(pb.ListSubjectsRequest(), timeout=self._timeout_s)
        return _subjects(answer)

    async def delete(self, subject: str, version: int | None = None) -> None:
        """Forget a version, or the whole subject. Raises UnknownSchema."""
        request = pb.DeleteSchemaRequest(subject=subject, version=version or 0)
        await self._stub.DeleteSchema(request, timeout=self._timeout_s)

    async def set_compatibility(self, subject: str, compatibility: str | None) -> None:
        """The rule for new versions; an empty subject: of all that have none; None: the default."""
        request = pb.SetCompatibilityRequest(subject=subject, compatibility=compatibility or "")
        await self._stub.SetCompatibility(request, timeout=self._timeout_s)

    async def serializer(self, subject: str, version: int | None = None) -> Serializer:
        """Values -> bytes, with the latest schema of a subject. Raises UnknownSchema."""
        return Serializer(await self.get(subject, version))

    async def decode(self, value: bytes) -> Any:
        """What a framed value holds; schemas are asked for once. Raises SchemaMismatch."""
        schema_id, payload = unframed(value)
        if schema_id not in self._formats:
            found = await self.get(schema_id=schema_id)
            self._formats[schema_id] = open_schema(found.schema_type, found.text)
        return self._formats[schema_id].decode(payload)


class SyncSchemas:
    """Made by `SyncClient.schemas`: as `Schemas`, but blocking."""

    def __init__(self, channel: grpc.Channel, bootstrap: str, timeout_s: float) -> None:
        self._stub = SchemasStub(channel)
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._formats: dict[int, Format] = {}

    def register(self, subject: str, schema_type: str, text: str) -> SchemaInfo:
        """As `Schemas.register`."""
        request = pb.RegisterSchemaRequest(subject=subject, schema_type=schema_type, text=text)
        answer = self._stub.RegisterSchema(request, timeout=self._timeout_s)
        return _info(answer.schema)

    def check(self, subject: str, schema_type: str, text: str) -> list[str]:
        """As `Schemas.check`."""
        request = pb.CheckSchemaRequest(subject=subject, schema_type=schema_type, text=text)
        answer = self._stub.CheckSchema(request, timeout=self._timeout_s)
        return list(answer.problems)

    def get(
        self, subject: str = "", version: int | None = None, *, schema_id: int = 0
    ) -> SchemaInfo:
        """As `Schemas.get`."""
        request = pb.GetSchemaRequest(subject=subject, version=version or 0, schema_id=schema_id)
        answer = self._stub.GetSchema(request, timeout=self._timeout_s)
        return _info(answer.schema)

    def subjects(self) -> list[SubjectInfo]:
        """As `Schemas.subjects`."""
        answer = self._stub.ListSubjects(pb.ListSubjectsRequest(), timeout=self._timeout_s)
        return _subjects(answer)

    def delete(self, subject: str, version: int | None = None) -> None:
        """As `Schemas.delete`."""
        request = pb.DeleteSchemaRequest(subject=subject, version=version or 0)
        self._stub.DeleteSchema(request, timeout=self._timeout_s)

    def set_compatibility(self, subject: str, compatibility: str | None) -> None:
        """As `Schemas.set_compatibility`."""
        request = pb.SetCompatibilityRequest(subject=subject, compatibility=compatibility or "")
        self._stub.SetCompatibility(request, timeout=self._timeout_s)

    def serializer(self, subject: str, version: int | None = None) -> Serializer:
        """As `Schemas.serializer`."""
        return Serializer(self.get(subject, version))

    def decode(self, value: bytes) -> Any:
        """As `Schemas.decode`."""
        schema_id, payload = unframed(value)
        if schema_id not in self._formats:
            found = self.get(schema_id=schema_id)
            self._formats[schema_id] = open_schema(found.schema_type, found.text)
        return self._formats[schema_id].decode(payload)


def _info(message: pb.SchemaVersion) -> SchemaInfo:
    return SchemaInfo(
        message.subject, message.version, message.schema_id, message.schema_type, message.text
    )


def _subjects(answer: pb.ListSubjectsResponse) -> list[SubjectInfo]:
    return [
        SubjectInfo(
            each.name,
            each.compatibility,
            tuple((one.version, one.schema_id) for one in each.versions),
        )
        for each in answer.subjects
    ]
