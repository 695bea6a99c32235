"""Schemas: subjects, versions, checks, compatibility. Rights are those on `schema:SUBJECT`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Need,
    NoQuery,
    Query,
    Whole,
    expect,
)
from lakemq.broker_core.api.errors import UnknownSchema
from lakemq.broker_core.api.schemas.types import TEXT_MAX_BYTES, SchemaInfo, SubjectInfo
from lakemq.broker_core.api.types import Operation, Resource
from lakemq.plugins.admin.resources.brokers import broker_of
from lakemq.plugins.admin.resources.rights import may

Kind = Literal["json-schema", "avro", "protobuf"]
_VERSION_MAX = 2**31 - 1


class SchemaVersionRow(Answer):
    """A version of a subject."""

    version: int
    schema_id: int


class SubjectRow(Answer):
    """A subject."""

    name: str
    compatibility: str
    versions: list[SchemaVersionRow]
    used_by: list[str]
    """Topics whose values must fit it, of those that the caller may see."""


class SchemaAnswer(Answer):
    """One version of a schema."""

    subject: str
    version: int
    schema_id: int
    schema_type: str
    text: str


class SchemaBody(Body):
    """A schema."""

    schema_type: Kind
    text: str = Field(min_length=1, max_length=TEXT_MAX_BYTES)


class Checked(Answer):
    """Whether a schema could be registered."""

    problems: list[str]
    """Why not; empty: it could."""


class CompatibilityBody(Body):
    """A rule that new versions must keep."""

    compatibility: str = Field(default="", max_length=64)
    """Empty: the default one."""


class Compatibility(Answer):
    """The rule of a subject."""

    subject: str
    compatibility: str


class VersionQuery(Query):
    """Which version."""

    version: Whole = Field(default=0, ge=0, le=_VERSION_MAX)
    """0: the newest."""


class VersionsQuery(ChangeQuery):
    """Which versions."""

    version: Whole = Field(default=0, ge=0, le=_VERSION_MAX)
    """0: all of them."""


class DeletedSchema(Answer):
    """What was deleted, or would be."""

    subject: str
    versions: list[int]


class SchemaRoutes:
    """Below `/api/v1/schemas`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "schemas/{subject}"
        write, read = (
            Need(Operation.WRITE, "schema", "subject"),
            Need(Operation.READ, "schema", "subject"),
        )
        return [
            AdminListing("schemas", SubjectRow, self._all, self._rows, lambda each: each.name,
                         {"name": lambda each: each.name}, keep=self._may_see, need=EACH,
                         summary="List subjects of schemas."),
            AdminRoute("GET", one, self.get, SchemaAnswer, VersionQuery, need=read),
            AdminRoute("POST", one, self.register, SchemaAnswer, NoQuery, SchemaBody, need=write,
                       status=201),
            AdminRoute("POST", f"{one}/check", self.check, Checked, NoQuery, SchemaBody, need=read,
                       audited=False),
            AdminRoute("PUT", f"{one}/compatibility", self.set_compatibility, Compatibility,
                       NoQuery, CompatibilityBody,
                       need=Need(Operation.ALTER, "schema", "subject")),
            AdminRoute("DELETE", one, self.delete, DeletedSchema, VersionsQuery,
                       need=Need(Operation.DELETE, "schema", "subject")),
            AdminRoute("GET", "schema-ids/{id}", self.by_id, SchemaAnswer, NoQuery, need=EACH),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[SubjectInfo]:
        return await broker_of(self._node).schemas.subjects()

    def _may_see(self, subject: SubjectInfo, request: AdminRequest) -> bool:
        return may(self._node.catalog, request, Operation.DESCRIBE, "schema", subject.name)

    async def _rows(
        self, subjects: Sequence[SubjectInfo], request: AdminRequest
    ) -> Sequence[SubjectRow]:
        users: dict[str, list[str]] = {each.name: [] for each in subjects}
        for topic in self._node.catalog.topics():
            name = topic.config.schema
            if name in users and may(
                self._node.catalog, request, Operation.DESCRIBE, "topic", topic.name
            ):
                users[name].append(topic.name)
        return [
            SubjectRow(
                name=each.name,
                compatibility=each.compatibility,
                versions=[
                    SchemaVersionRow(version=version, schema_id=schema_id)
                    for version, schema_id in each.versions
                ],
                used_by=sorted(users[each.name]),
            )
            for each in subjects
        ]

    async def get(self, request: AdminRequest) -> SchemaAnswer:
        """Get a version of a schema. Raises UnknownSchema."""
        version = expect(request.asked, VersionQuery).version or None
        subject = request.path["subject"]
        schemas = broker_of(self._node).schemas
        return _answer(await schemas.get(subject=subject, version=version))

    async def by_id(self, request: AdminRequest) -> SchemaAnswer:
        """Get a schema by its id. Raises UnknownSchema."""
        text, broker = request.path["id"], broker_of(self._node)
        if not (text.isascii() and text.isdecimal() and 0 < int(text[:12]) <= _VERSION_MAX):
            raise UnknownSchema(f"no schema has the id {text[:20]!r}")
        found = await broker.schemas.get(schema_id=int(text))
        # Only now is the subject known.
        broker.authorize(
            request.principal, Operation.READ, Resource("schema", found.subject), request.context
        )
        return _answer(found)

    async def register(self, request: AdminRequest) -> SchemaAnswer:
        """Register a schema under a subject. Raises IncompatibleSchema, InvalidRequest."""
        given = expect(request.given, SchemaBody)
        made = await broker_of(self._node).schemas.register(
            request.path["subject"], given.schema_type, given.text
        )
        request.notes["after"] = {"version": made.version, "schema_id": made.schema_id}
        return _answer(made)

    async def check(self, request: AdminRequest) -> Checked:
        """Tell what keeps a schema from being registered."""
        given = expect(request.given, SchemaBody)
        problems = await broker_of(self._node).schemas.check(
            request.path["subject"], given.schema_type, given.text
        )
        return Checked(problems=list(problems))

    async def set_compatibility(self, request: AdminRequest) -> Compatibility:
        """Set the rule that new versions of a subject must keep."""
        given, subject = expect(request.given, CompatibilityBody), request.path["subject"]
        schemas = broker_of(self._node).schemas
        before = {each.name: each.compatibility for each in await schemas.subjects()}
        request.notes["before"] = before.get(subject)
        await schemas.set_compatibility(subject, given.compatibility or None)
        now = {each.name: each.compatibility for each in await schemas.subjects()}
        return Compatibility(subject=subject, compatibility=now.get(subject, given.compatibility))

    async def delete(self, request: AdminRequest) -> DeletedSchema:
        """Delete a version of a subject, or all. Raises UnknownSchema."""
        asked, subject = expect(request.asked, VersionsQuery), request.path["subject"]
        schemas = broker_of(self._node).schemas
        versions = [
            version
            for each in await schemas.subjects()
            if each.name == subject
            for version, _ in each.versions
            if asked.version in (0, version)
        ]
        if not versions:
            raise UnknownSchema(f"subject {subject!r} has no such version")
        request.notes["before"] = {"versions": versions}
        if not asked.dry_run:
            await schemas.delete(subject, asked.version or None)
        return DeletedSchema(subject=subject, versions=versions)


def _answer(found: SchemaInfo) -> SchemaAnswer:
    return SchemaAnswer(
        subject=found.subject,
        version=found.version,
        schema_id=found.schema_id,
        schema_type=found.schema_type,
        text=found.text,
    )
