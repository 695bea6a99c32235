"""Below `/api/v1/schema-registry/`: paths, names and errors are those of Confluent's API (version
1), so that its clients and serializers work as they are; rights are those on `schema:SUBJECT`.

Subjects, versions and ids are those of the registry. An id is of one subject here, and what is
deleted is gone: there is no soft deletion.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminRequest,
    AdminRoute,
    AnyRoute,
    Need,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest, UnknownSchema
from lakemq.broker_core.api.schemas.types import SchemaInfo, Schemas, SubjectInfo
from lakemq.broker_core.api.types import Operation, Resource
from lakemq.plugins.admin.resources.brokers import broker_of
from lakemq.plugins.admin.resources.rights import may
from lakemq.plugins.admin.resources.schema_registry.errors import (
    INVALID_COMPATIBILITY,
    INVALID_SCHEMA,
    INVALID_VERSION,
    NOT_PERMITTED,
    UNKNOWN_SCHEMA,
    UNKNOWN_SUBJECT,
    UNKNOWN_VERSION,
    RegistryProblem,
    schema_errors,
)
from lakemq.plugins.admin.resources.schema_registry.models import (
    TYPES,
    CheckQuery,
    ConfigBody,
    DeleteQuery,
    FormatQuery,
    ListQuery,
    RegistryQuery,
    SchemaBody,
    described,
    registered,
    rule_name,
    rule_of,
)

ROOT: Final = "schema-registry"
_VERSION_MAX: Final = 2**31 - 1
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_TAKES: Final = (
    "application/json",
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
)
_WITHOUT_BODY: Final = ("", *_TAKES)
"""A page of another site can't send a DELETE without asking first, whatever its type."""


class SchemaRegistryRoutes:
    """Confluent's API."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes; their own documentation describes them."""
        read, write, see, alter, remove = (
            Need(each, "schema", "subject")
            for each in (
                Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER,
                Operation.DELETE,
            )
        )  # fmt: skip
        subject, config = f"{ROOT}/subjects/{{subject}}", f"{ROOT}/config/{{subject}}"
        version, one = f"{subject}/versions/{{version}}", f"{ROOT}/schemas/ids/{{id}}"
        compared = f"{ROOT}/compatibility/subjects/{{subject}}/versions"
        get = partial(AdminRoute, "GET", query=RegistryQuery, described=False)
        post = partial(AdminRoute, "POST", query=RegistryQuery, described=False, takes=_TAKES,
                       body=SchemaBody)  # fmt: skip
        put = partial(AdminRoute, "PUT", query=RegistryQuery, described=False, takes=_TAKES,
                      body=ConfigBody)  # fmt: skip
        delete = partial(AdminRoute, "DELETE", query=DeleteQuery, described=False,
                         takes=_WITHOUT_BODY)  # fmt: skip
        return [
            get(f"{ROOT}/subjects", self.subjects, query=ListQuery, need=EACH),
            get(f"{subject}/versions", self.versions, query=ListQuery, need=see),
            get(version, self.version, query=FormatQuery, need=read),
            get(f"{version}/referencedby", self.referenced_by, need=read),
            post(subject, self.look_up, query=FormatQuery, need=read, audited=False),
            post(f"{subject}/versions", self.register, need=write),
            delete(subject, self.delete_subject, need=remove),
            delete(version, self.delete_version, need=remove),
            get(one, self.by_id, query=FormatQuery, need=EACH),
            get(f"{one}/subjects", self.subjects_of_id, query=ListQuery, need=EACH),
            get(f"{one}/versions", self.versions_of_id, query=ListQuery, need=EACH),
            get(f"{ROOT}/schemas/types", self.types, need=EACH),
            post(compared, self.check, query=CheckQuery, need=read, audited=False),
            post(f"{compared}/{{version}}", self.check, query=CheckQuery, need=read,
                 audited=False),
            get(f"{ROOT}/config", self.config),
            put(f"{ROOT}/config", self.set_config),
            delete(f"{ROOT}/config", self.delete_config, query=RegistryQuery),
            get(config, self.config, need=see),
            put(config, self.set_config, need=alter),
            delete(config, self.delete_config, query=RegistryQuery, need=alter),
            get(f"{ROOT}/mode", self.mode, need=EACH),
            get(f"{ROOT}/mode/{{subject}}", self.mode, need=see),
            get(f"{ROOT}/contexts", self.contexts, query=ListQuery, need=EACH),
        ]  # fmt: skip

    # -- what is there

    async def subjects(self, request: AdminRequest) -> list[str]:
        """Names of subjects that have a version."""
        asked = expect(request.asked, ListQuery)
        found = [
            each.name
            for each in await self._schemas.subjects()
            if each.versions
            and each.name.startswith(asked.subjectPrefix)
            and may(self._node.catalog, request, Operation.DESCRIBE, "schema", each.name)
        ]
        return asked.part(found)

    async def versions(self, request: AdminRequest) -> list[int]:
        """Versions of a subject."""
        subject = await self._subject(request)
        return expect(request.asked, ListQuery).part([version for version, _ in subject.versions])

    async def version(self, request: AdminRequest) -> dict[str, Any]:
        """One version of a subject."""
        found = await self._version(request)
        return registered(found, await self._text(found, request))

    async def referenced_by(self, request: AdminRequest) -> list[int]:
        """None: schemas here refer to no others."""
        await self._version(request)
        return []

    async def by_id(self, request: AdminRequest) -> dict[str, Any]:
        """A schema."""
        found = await self._of_id(request)
        return described(found, await self._text(found, request))

    async def subjects_of_id(self, request: AdminRequest) -> list[str]:
        """The subject of an id."""
        found = await self._of_id(request)
        return expect(request.asked, ListQuery).part([found.subject])

    async def versions_of_id(self, request: AdminRequest) -> list[dict[str, Any]]:
        """The version of an id."""
        found = await self._of_id(request)
        place = {"subject": found.subject, "version": found.version}
        return expect(request.asked, ListQuery).part([place])

    async def types(self, request: AdminRequest) -> list[str]:
        """Types of schemas."""
        return list(TYPES)

    async def mode(self, request: AdminRequest) -> dict[str, str]:
        """All subjects are read and written."""
        return {"mode": "READWRITE"}

    async def contexts(self, request: AdminRequest) -> list[str]:
        """There is one."""
        return expect(request.asked, ListQuery).part(["."])

    # -- what is sent

    async def look_up(self, request: AdminRequest) -> dict[str, Any]:
        """The version of a subject that is the schema which was sent."""
        await self._subject(request)
        found = await self._found(request, *await self._sent(request))
        if found is None:
            raise RegistryProblem(UNKNOWN_SCHEMA, "the subject has no version of this schema")
        return registered(found, await self._text(found, request))

    async def register(self, request: AdminRequest) -> dict[str, Any]:
        """Register a version; one that is there already, be it the latest or not, is answered."""
        kind, text = await self._sent(request)
        found = await self._found(request, kind, text)
        if found is None:
            with schema_errors():
                found = await self._schemas.register(request.path["subject"], kind, text)
        request.notes["after"] = {"version": found.version, "schema_id": found.schema_id}
        return {"id": found.schema_id, "version": found.version}

    async def check(self, request: AdminRequest) -> dict[str, Any]:
        """Compare a schema with one version of a subject, or all that its rule is about."""
        kind, text = await self._sent(request)
        version: int | None = None
        if "version" in request.path:
            try:
                version = (await self._version(request)).version
            except RegistryProblem:
                # A first version fits whatever it is.
                if _number(request.path["version"]) is not None:
                    raise
        with schema_errors():
            problems = await self._schemas.check(request.path["subject"], kind, text, version)
        answer: dict[str, Any] = {"is_compatible": not problems}
        if expect(request.asked, CheckQuery).verbose:
            answer["messages"] = list(problems)
        return answer

    async def delete_subject(self, request: AdminRequest) -> list[int]:
        """Delete a subject, for good."""
        subject = await self._subject(request)
        _for_good(request)
        await self._schemas.delete(subject.name)
        versions = [version for version, _ in subject.versions]
        request.notes["before"] = {"versions": versions}
        return versions

    async def delete_version(self, request: AdminRequest) -> int:
        """Delete a version of a subject, for good."""
        found = await self._version(request)
        _for_good(request)
        await self._schemas.delete(found.subject, found.version)
        request.notes["before"] = {"versions": [found.version]}
        return found.version

    # -- rules

    async def config(self, request: AdminRequest) -> dict[str, str]:
        """The rule that holds: a subject's own or the default."""
        return {"compatibilityLevel": rule_name(await self._rule(request))}

    async def set_config(self, request: AdminRequest) -> dict[str, str]:
        """Set a rule of a subject, or the default one."""
        name = expect(request.given, ConfigBody).compatibility
        subject = request.path.get("subject", "")  # may have no version yet
        try:
            await self._schemas.set_compatibility(subject, rule_of(name))
        except InvalidRequest as error:
            raise RegistryProblem(INVALID_COMPATIBILITY, str(error)) from None
        request.notes["after"] = rule_of(name)
        return {"compatibility": name.upper()}

    async def delete_config(self, request: AdminRequest) -> dict[str, str]:
        """Go back to the default rule; answers the one that held."""
        before = await self._rule(request)
        await self._schemas.set_compatibility(request.path.get("subject", ""), None)
        request.notes["before"] = before
        return {"compatibilityLevel": rule_name(before)}

    async def _rule(self, request: AdminRequest) -> str:
        if "subject" in request.path:
            return (await self._subject(request)).compatibility
        return await self._schemas.default_compatibility()

    # -- parts of a request

    @property
    def _schemas(self) -> Schemas:
        return broker_of(self._node).schemas

    async def _subject(self, request: AdminRequest) -> SubjectInfo:
        """Raises RegistryProblem."""
        name = request.path["subject"]
        try:
            found = await self._schemas.subject(name)
        except (UnknownSchema, InvalidRequest):
            raise RegistryProblem(UNKNOWN_SUBJECT, f"subject {name[:300]!r} not found") from None
        return found

    async def _version(self, request: AdminRequest) -> SchemaInfo:
        """Raises RegistryProblem."""
        text = request.path["version"]
        version = _number(text)
        subject = await self._subject(request)
        try:
            return await self._schemas.get(subject=subject.name, version=version)
        except UnknownSchema:
            raise RegistryProblem(UNKNOWN_VERSION, f"version {text} not found") from None

    async def _of_id(self, request: AdminRequest) -> SchemaInfo:
        """Raises RegistryProblem, NotAuthorized."""
        text, broker = request.path["id"], broker_of(self._node)
        is_id = text.isascii() and text.isdecimal() and 0 < int(text[:12]) <= 2**32 - 1
        try:
            if not is_id:
                raise UnknownSchema(text)
            found = await broker.schemas.get(schema_id=int(text))
        except UnknownSchema:
            raise RegistryProblem(UNKNOWN_SCHEMA, f"schema {text[:20]} not found") from None
        broker.authorize(
            request.principal, Operation.READ, Resource("schema", found.subject), request.context
        )
        return found

    async def _sent(self, request: AdminRequest) -> tuple[str, str]:
        """(type, text) of the schema that was sent. Raises RegistryProblem."""
        given = expect(request.given, SchemaBody)
        kind = TYPES.get((given.schemaType or "AVRO").upper())
        if kind is None:
            raise RegistryProblem(
                INVALID_SCHEMA,
                f"schemaType is {given.schemaType!r:.50}; it takes {', '.join(TYPES)}",
            )
        if given.extra():
            raise RegistryProblem(INVALID_SCHEMA, f"{given.extra()}: this registry keeps none")
        if kind != "protobuf" or not _BASE64.fullmatch(given.schema_):
            return kind, given.schema_
        with schema_errors():
            try:
                descriptor = base64.b64decode(given.schema_, validate=True)
            except ValueError:
                raise InvalidRequest("schema: neither Protobuf source nor base64") from None
            return kind, await self._schemas.protobuf_source(descriptor)

    async def _found(self, request: AdminRequest, kind: str, text: str) -> SchemaInfo | None:
        """Raises RegistryProblem: it is no schema."""
        with schema_errors():
            try:
                return await self._schemas.find(request.path["subject"], kind, text)
            except UnknownSchema:
                return None

    async def _text(self, found: SchemaInfo, request: AdminRequest) -> str:
        asked = expect(request.asked, FormatQuery)
        if asked.format != "serialized" or found.schema_type != "protobuf":
            return found.text
        return base64.b64encode(await self._schemas.protobuf_descriptor(found)).decode()


def _number(text: str) -> int | None:
    """Of a version; None: the latest. Raises RegistryProblem."""
    if text in ("latest", "-1"):
        return None
    if text.isascii() and text.isdecimal() and 0 < int(text[:12]) <= _VERSION_MAX:
        return int(text)
    raise RegistryProblem(
        INVALID_VERSION, f"version is {text[:20]!r}; it takes 1 to {_VERSION_MAX}, or latest"
    )


def _for_good(request: AdminRequest) -> None:
    """Raises RegistryProblem. Confluent's registry keeps what is deleted so, for readers."""
    if not expect(request.asked, DeleteQuery).permanent:
        raise RegistryProblem(
            NOT_PERMITTED,
            "a deletion is for good here, and values of the schema can't be read any more: ask "
            "with permanent=true",
        )
