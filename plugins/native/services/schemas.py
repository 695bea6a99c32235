"""The gRPC edge of `schemas.proto`. Rights are those on the resource `schema` and its subject."""

from __future__ import annotations

from lakemq.broker_core.api.errors import LakeMQError, UnknownSchema
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.schemas.types import SchemaInfo
from lakemq.broker_core.api.types import Operation, Resource
from lakemq.plugins.native.proto import schemas_pb2 as pb
from lakemq.plugins.native.proto.schemas_pb2_grpc import SchemasServicer
from lakemq.plugins.native.server.authentication import Context, principal_of


class SchemaService(SchemasServicer):
    """Implements `schemas.proto`; its docstrings are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def _may(self, context: Context, operation: Operation, subject: str) -> None:
        principal = await principal_of(self._broker, context)
        self._broker.authorize(principal, operation, Resource("schema", subject))

    async def RegisterSchema(
        self, request: pb.RegisterSchemaRequest, context: Context
    ) -> pb.RegisterSchemaResponse:
        """Register a schema under a subject. Raises NotAuthorized, and what `Schemas.register`
        raises."""
        await self._may(context, Operation.WRITE, request.subject)
        made = await self._broker.schemas.register(
            request.subject, request.schema_type, request.text
        )
        return pb.RegisterSchemaResponse(schema=_message(made))

    async def GetSchema(
        self, request: pb.GetSchemaRequest, context: Context
    ) -> pb.GetSchemaResponse:
        """A schema by its id, or by subject and version (0: the newest). Raises UnknownSchema,
        NotAuthorized."""
        await principal_of(self._broker, context)
        if request.schema_id < 0 or request.version < 0:
            raise UnknownSchema("ids and versions begin at 1")
        found = await self._broker.schemas.get(
            schema_id=request.schema_id,
            subject=request.subject,
            version=request.version or None,
        )
        # Only now is the subject known: the request may name an id alone.
        await self._may(context, Operation.READ, found.subject)
        return pb.GetSchemaResponse(schema=_message(found))

    async def ListSubjects(
        self, request: pb.ListSubjectsRequest, context: Context
    ) -> pb.ListSubjectsResponse:
        """Subjects that the caller may describe."""
        principal = await principal_of(self._broker, context)
        answer = pb.ListSubjectsResponse()
        for each in await self._broker.schemas.subjects():
            try:
                self._broker.authorize(principal, Operation.DESCRIBE, Resource("schema", each.name))
            except LakeMQError:
                continue
            answer.subjects.append(
                pb.SchemaSubject(
                    name=each.name,
                    compatibility=each.compatibility,
                    versions=[
                        pb.SubjectVersion(version=version, schema_id=schema_id)
                        for version, schema_id in each.versions
                    ],
                )
            )
        return answer

    async def CheckSchema(
        self, request: pb.CheckSchemaRequest, context: Context
    ) -> pb.CheckSchemaResponse:
        """What keeps a schema from being registered under a subject; empty: nothing. Raises
        NotAuthorized."""
        await self._may(context, Operation.READ, request.subject)
        problems = await self._broker.schemas.check(
            request.subject, request.schema_type, request.text
        )
        return pb.CheckSchemaResponse(problems=problems)

    async def DeleteSchema(
        self, request: pb.DeleteSchemaRequest, context: Context
    ) -> pb.DeleteSchemaResponse:
        """Delete one version of a subject, or (0) all. Raises UnknownSchema, NotAuthorized."""
        await self._may(context, Operation.DELETE, request.subject)
        if request.version < 0:
            raise UnknownSchema("versions begin at 1")
        await self._broker.schemas.delete(request.subject, request.version or None)
        return pb.DeleteSchemaResponse()

    async def SetCompatibility(
        self, request: pb.SetCompatibilityRequest, context: Context
    ) -> pb.SetCompatibilityResponse:
        """Set the rule that new versions of a subject must keep, or, for an empty subject, the
        default; an empty rule goes back to the default. Raises NotAuthorized."""
        await self._may(context, Operation.ALTER, request.subject)
        await self._broker.schemas.set_compatibility(request.subject, request.compatibility or None)
        return pb.SetCompatibilityResponse()


def _message(found: SchemaInfo) -> pb.SchemaVersion:
    return pb.SchemaVersion(
        subject=found.subject,
        version=found.version,
        schema_id=found.schema_id,
        schema_type=found.schema_type,
        text=found.text,
    )
