"""Calls on schemas."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lakemq.meta_service.api.messages import value_of
from lakemq.meta_service.api.remote.calls import Calls
from lakemq.meta_service.api.schemas import Schema, Subject, SubjectChange
from lakemq.meta_service.proto import schemas_pb2 as pb


class SchemaCalls(Calls):
    """Implements `SchemasPort`."""

    async def register_schema(
        self, subject: str, schema_type: str, text: str, *, expected_version: int | None = None
    ) -> Schema:
        """The new version, or the latest one if it is the same. Raises CompareFailed,
        Overloaded."""
        request = pb.RegisterSchemaRequest(
            subject=subject, schema_type=schema_type, text=text, expected_version=expected_version
        )
        return value_of(Schema, await self._write(lambda t: t.schemas.Register, request))

    async def schema(self, schema_id: int) -> Schema | None:
        """The schema of an id; None: there is none."""
        if schema_id < 1:
            return None
        return await self._schema(pb.GetSchemaRequest(schema_id=schema_id))

    async def schema_version(self, subject: str, version: int | None = None) -> Schema | None:
        """A version of a subject, None: its latest; None if there is no such version."""
        return await self._schema(pb.GetSchemaRequest(subject=subject, version=version or 0))

    async def _schema(self, request: pb.GetSchemaRequest) -> Schema | None:
        response = await self._call(lambda t: t.schemas.Get, request)
        return value_of(Schema, response.schema) if response.HasField("schema") else None

    async def subject(self, name: str) -> Subject | None:
        """The subject of that name; None: there is none."""
        request = pb.ListSubjectsRequest(name=name)
        response = await self._call(lambda t: t.schemas.ListSubjects, request)
        return value_of(Subject, response.subjects[0]) if response.subjects else None

    async def subjects(self) -> tuple[int, Sequence[Subject]]:
        """(revision, all subjects by name)."""
        found: list[Subject] = []
        revision, more = 0, True
        while more:
            request = pb.ListSubjectsRequest(after=found[-1].name if found else "")
            response = await self._call(lambda t: t.schemas.ListSubjects, request)
            found.extend(value_of(Subject, each) for each in response.subjects)
            revision = revision or response.revision
            more = response.more
        return revision, found

    async def delete_schema(self, subject: str, version: int | None = None) -> None:
        """Delete a version, or with None the whole subject. Raises NotFound."""
        request = pb.DeleteSchemaRequest(subject=subject, version=version or 0)
        await self._write(lambda t: t.schemas.Delete, request)

    async def set_compatibility(self, subject: str, compatibility: str | None) -> None:
        """Set a subject's rule, or the default where it is empty; None takes it back."""
        request = pb.SetCompatibilityRequest(subject=subject, compatibility=compatibility or "")
        await self._write(lambda t: t.schemas.SetCompatibility, request)

    async def default_compatibility(self) -> str:
        """The rule of subjects without one of their own."""
        request = pb.ListSubjectsRequest(name="*")
        response = await self._call(lambda t: t.schemas.ListSubjects, request)
        return str(response.default_compatibility)

    def watch_subjects(self, start_revision: int) -> AsyncIterator[SubjectChange]:
        """Changes of subjects, no gap, no repeat. Raises Compacted."""
        return self._watch_subjects(start_revision)

    async def _watch_subjects(self, start_revision: int) -> AsyncIterator[SubjectChange]:
        def request(revision: int) -> pb.WatchSubjectsRequest:
            return pb.WatchSubjectsRequest(start_revision=revision)

        changes: Any = self._stream(lambda t: t.schemas.WatchSubjects, request, start_revision)
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.name:
                    is_there = change.HasField("subject")
                    subject = value_of(Subject, change.subject) if is_there else None
                    yield SubjectChange(change.revision, change.name, subject)
