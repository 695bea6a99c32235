"""Requests and answers of Confluent's Schema Registry API, with its names of fields."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field

from lakemq.broker_core.api.administration.routes import Body, Query, Whole
from lakemq.broker_core.api.schemas.types import TEXT_MAX_BYTES, SchemaInfo

TYPES: Final = {"AVRO": "avro", "JSON": "json-schema", "PROTOBUF": "protobuf"}
"""Names of types -> ours."""
_NAMES: Final = {ours: name for name, ours in TYPES.items()}
_LOWER: Final = {"true": True, "false": False}


def _flag(value: object) -> object:
    """Clients in Python say `True`."""
    return _LOWER.get(value.lower(), value) if isinstance(value, str) else value


RegistryFlag = Annotated[bool, BeforeValidator(_flag), Field(strict=True)]


class RegistryQuery(Query):
    """Parameters that are not known are not looked at: clients send those of newer versions."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class ListQuery(RegistryQuery):
    """Of a list."""

    subjectPrefix: str = ""
    offset: Whole = 0
    limit: Whole = -1
    """Below 1: all."""
    deleted_only: RegistryFlag = False
    deletedOnly: RegistryFlag = False

    def part(self, found: list[Any]) -> list[Any]:
        """What was asked for. Deleted versions are gone, so none is among them."""
        if self.deleted_only or self.deletedOnly:
            return []
        found = found[max(self.offset, 0) :]
        return found[: self.limit] if self.limit > 0 else found


class FormatQuery(RegistryQuery):
    """Of a schema."""

    format: str = ""
    """`serialized`: Protobuf as a FileDescriptorProto in base64."""
    subject: str = ""


class CheckQuery(RegistryQuery):
    """Of a comparison."""

    verbose: RegistryFlag = False


class DeleteQuery(RegistryQuery):
    """Of a deletion."""

    permanent: RegistryFlag = False


class SchemaBody(Body):
    """A schema that is sent. Fields that would change its meaning are refused, not dropped."""

    schema_: str = Field(alias="schema", min_length=1, max_length=TEXT_MAX_BYTES)
    schemaType: str | None = None
    references: list[Any] | None = None
    metadata: dict[str, Any] | None = None
    ruleSet: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None

    def extra(self) -> str:
        """Name of a field that is set and is not for this registry; empty: none is."""
        for name in ("references", "metadata", "ruleSet"):
            if getattr(self, name):
                return name
        # -1 and 0: the registry gives them.
        numbers = (name for name in ("id", "version") if (getattr(self, name) or 0) > 0)
        return next(numbers, "")


class ConfigBody(Body):
    """A rule of compatibility."""

    compatibility: str = Field(max_length=64)


def described(schema: SchemaInfo, text: str) -> dict[str, Any]:
    """A schema and its type, which is not said of Avro."""
    kind = _NAMES[schema.schema_type]
    return {"schema": text} if kind == "AVRO" else {"schemaType": kind, "schema": text}


def registered(schema: SchemaInfo, text: str) -> dict[str, Any]:
    """The same with its place in the registry."""
    place = {"subject": schema.subject, "version": schema.version, "id": schema.schema_id}
    return {**place, **described(schema, text)}


def rule_name(compatibility: str) -> str:
    """`full-transitive` is `FULL_TRANSITIVE` there."""
    return compatibility.upper().replace("-", "_")


def rule_of(name: str) -> str:
    """Inverse of `rule_name`."""
    return name.lower().replace("_", "-")
