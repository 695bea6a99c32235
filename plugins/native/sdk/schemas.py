"""The registry of schemas, and values <-> bytes with it: `client.schemas`.

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
    """Makes framed values of one schema. Made by `serializer`."""

    def __init__(self, schema: SchemaInfo) -> None:
        self.schema = schema
        self._format = open_schema(schema.schema_type, schema.text)

    def __call__(self, value: Any) -> bytes:
        """The value, framed with the id of the schema; of a pydantic model, what it dumps. Raises
        SchemaMismatch, naming the field."""
        if hasattr(value, "model_dump"):
            value = value.model_dump(mode="json" if self.schema.schema_type != "avro" else "python")
        return framed(self.schema.schema_id, self._format.encode(value))


class Schemas:
    """Made by `Client.schemas`. Every method raises `LakeMQError`s."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub: SchemasAsyncStub = SchemasStub(channel)
        self._timeout_s = timeout_s
        self.formats: dict[int, Format] = {}
        """Internal: by id, as far as values have been decoded."""

    async def register(self, subject: str, schema_type: str, text: str) -> SchemaInfo:
        """A new version, or the latest when it is the same. Raises IncompatibleSchema,
        InvalidRequest (the text is no schema)."""
        request = pb.RegisterSchemaRequest(subject=subject, schema_type=schema_type, text=text)
        answer = await self._stub.RegisterSchema(request, timeout=self._timeout_s)
        return _info(answer.schema)

    async def check(self, subject: str, schema_type: str, text: str) -> list[str]:
        """The reasons for which `register` would refuse the schema; empty if it would not."""
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
        """Delete a version, or the whole subject. Raises UnknownSchema."""
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
        return (await self.format_of(schema_id)).decode(payload)

    async def format_of(self, schema_id: int) -> Format:
        """Internal: encodes and decodes values of one schema, which is asked for once. Raises
        UnknownSchema."""
        found = self.formats.get(schema_id)
        if found is None:
            schema = await self.get(schema_id=schema_id)
            found = self.formats[schema_id] = open_schema(schema.schema_type, schema.text)
        return found


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
