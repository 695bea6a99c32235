"""Schemas as the catalog keeps them.

The catalog numbers and keeps texts; whether one is compatible with another is found out before it
is registered, and `expected_version` makes sure that nothing came in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

SCHEMA_TYPES: Final = ("json-schema", "avro", "protobuf")
COMPATIBILITIES: Final = (
    "none",
    "backward",
    "backward-transitive",
    "forward",
    "forward-transitive",
    "full",
    "full-transitive",
)
DEFAULT_COMPATIBILITY: Final = "backward"


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of a subject's schema. Never changes."""

    subject: str
    version: int
    """1 and up, without gaps at registration; a deleted one is not given again."""
    schema_id: int
    """1 and up, unique in the cluster."""
    schema_type: str
    """`json-schema`, `avro` or `protobuf`."""
    text: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What schemas are versions of."""

    name: str
    compatibility: str | None
    """One of `COMPATIBILITIES`; None: the cluster's default."""
    latest_version: int
    """0: none was registered."""
    versions: tuple[tuple[int, int], ...]
    """(version, schema id) of those that are there, oldest first."""
    revision: int


@dataclass(frozen=True, slots=True)
class SubjectChange:
    """A subject was changed (`subject` is set) or deleted (None)."""

    revision: int
    name: str
    subject: Subject | None


class SchemasPort(Protocol):
    """Part of `MetaClient`."""

    async def register_schema(
        self, subject: str, schema_type: str, text: str, *, expected_version: int | None = None
    ) -> Schema:
        """The new latest version; the latest as it is, if it has this very type and text.

        Raises CompareFailed unless the latest version is the expected one (0: there is none).
        """

    async def schema(self, schema_id: int) -> Schema | None:
        """None: there is no schema of that id."""

    async def schema_version(self, subject: str, version: int | None = None) -> Schema | None:
        """None stands for the latest version."""

    async def subject(self, name: str) -> Subject | None:
        """None: there is no such subject."""

    async def subjects(self) -> tuple[int, Sequence[Subject]]:
        """(revision, all subjects by name)."""

    async def delete_schema(self, subject: str, version: int | None = None) -> None:
        """Delete one version, or the whole subject. Raises NotFound."""

    async def set_compatibility(self, subject: str, compatibility: str | None) -> None:
        """Of a subject, or of the cluster (empty subject). None: back to the default."""

    async def default_compatibility(self) -> str:
        """That of subjects which have none of their own."""

    def watch_subjects(self, start_revision: int) -> AsyncIterator[SubjectChange]:
        """Changes from that revision on, no gap, no repeat. Raises Compacted."""
