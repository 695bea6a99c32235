"""Values and port of the schema registry, and the frame that names a schema in a value.

A framed value is a zero byte, the schema's id (u32, big-endian), then the payload: the frame that
Confluent's clients use, so that both read each other's records. Protobuf payloads follow the list
of message indexes of that frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lakemq.broker_core.api.errors import SchemaMismatch
from lakemq.broker_core.api.types import TopicInfo

SCHEMA_TYPES: Final = ("json-schema", "avro", "protobuf")
TEXT_MAX_BYTES: Final = 256 * 1024
_FRAME: Final = struct.Struct(">BI")


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One version of a subject's schema. Never changes."""

    subject: str
    version: int
    schema_id: int
    """Unique in the cluster."""
    schema_type: str
    text: str


@dataclass(frozen=True, slots=True)
class SubjectInfo:
    """A subject: the name under which versions of a schema are registered."""

    name: str
    compatibility: str
    """Its compatibility mode, or the default one."""
    versions: tuple[tuple[int, int], ...]
    """(version, schema id), oldest first."""


class Schemas(Protocol):
    """The registry, as plugins see it. All raise Unavailable."""

    async def register(self, subject: str, schema_type: str, text: str) -> SchemaInfo:
        """Register a new version and return it; the latest version, if it has the same text.
        Raises InvalidRequest, IncompatibleSchema."""

    async def check(
        self, subject: str, schema_type: str, text: str, version: int | None = None
    ) -> Sequence[str]:
        """Why `register` would refuse the text; empty: it would not. `version`: looks at that one
        alone. Raises InvalidRequest: it is no schema."""

    async def find(self, subject: str, schema_type: str, text: str) -> SchemaInfo | None:
        """The newest version that is this schema, however either is laid out; None: there is none.
        Raises InvalidRequest, UnknownSchema: there is no such subject."""

    async def get(
        self, *, schema_id: int = 0, subject: str = "", version: int | None = None
    ) -> SchemaInfo:
        """By id, or of a subject (None: the latest). Raises UnknownSchema."""

    async def subjects(self) -> Sequence[SubjectInfo]:
        """All subjects, by name."""

    async def subject(self, name: str) -> SubjectInfo:
        """One of them. Raises UnknownSchema."""

    async def default_compatibility(self) -> str:
        """The mode of subjects that have none of their own."""

    async def protobuf_source(self, descriptor: bytes) -> str:
        """A serialized FileDescriptorProto as the text of a schema. Raises InvalidRequest: it is
        none, or has parts that would be lost."""

    async def protobuf_descriptor(self, schema: SchemaInfo) -> bytes:
        """The serialized FileDescriptorProto of a Protobuf schema. Raises InvalidRequest."""

    async def delete(self, subject: str, version: int | None = None) -> None:
        """Delete one version; None: the whole subject. Raises UnknownSchema."""

    def check_batch(self, topic: TopicInfo, batch: bytes, steps_max: int | None = None) -> None:
        """Raises SchemaMismatch when a value does not fit the topic's schema, if it has one. The
        caller has checked the batch's CRC. `steps_max`: TooManySteps for a value that takes more.
        """

    async def set_compatibility(self, subject: str, compatibility: str | None) -> None:
        """Set the mode of a subject (None: use the default), or, for an empty `subject`, the
        default."""


def framed(schema_id: int, payload: bytes) -> bytes:
    """The payload after the frame that names its schema."""
    return _FRAME.pack(0, schema_id) + payload


def unframed(value: bytes) -> tuple[int, bytes]:
    """(schema id, payload). Raises SchemaMismatch."""
    if len(value) < _FRAME.size or value[0]:
        raise SchemaMismatch("the value does not begin with the frame of a schema")
    return _FRAME.unpack_from(value)[1], value[_FRAME.size :]
