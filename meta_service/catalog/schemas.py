"""Schemas in the catalog: dense versions in each subject, ids unique in the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound, Overloaded
from lakemq.meta_service.api.schemas import COMPATIBILITIES, SCHEMA_TYPES, Schema, Subject
from lakemq.meta_service.catalog.command_codec import Command, check_integer, check_text, command
from lakemq.meta_service.catalog.draft import Draft
from lakemq.meta_service.catalog.entries import check_choice, check_label
from lakemq.meta_service.catalog.tables import (
    ID_BLOCKS,
    decode_number,
    encode_number,
    pack,
    unpack,
)

SCHEMA_PREFIX: Final = b"\x00schema/"
SUBJECT_PREFIX: Final = SCHEMA_PREFIX + b"subject/"
ID_PREFIX: Final = SCHEMA_PREFIX + b"id/"
DEFAULT_KEY: Final = SCHEMA_PREFIX + b"default"
LEVEL: Final = 2
TEXT_MAX_BYTES: Final = 256 * 1024
VERSIONS_MAX: Final = 1000
"""Versions that one subject has at a time."""
_ID_COUNTER: Final = ID_BLOCKS + b"schema"
_ID_MAX: Final = 2**32 - 1


@command("schema+")
@dataclass(frozen=True, slots=True)
class RegisterSchema(Command):
    """Register the next version of a subject; the broker has checked its compatibility."""

    level: ClassVar[int] = LEVEL

    subject: str
    schema_type: str
    text: str
    expected_version: int | None

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_label(self.subject, "subject")
        check_choice(self.schema_type, "schema_type", SCHEMA_TYPES)
        check_text(self.text, "text", TEXT_MAX_BYTES)
        if not 0 < len(self.text.encode(errors="replace")) <= TEXT_MAX_BYTES:
            raise InvalidArgument(f"text: must be 1 to {TEXT_MAX_BYTES} bytes")
        if self.expected_version is not None:
            check_integer(self.expected_version, "expected_version", 0, 2**31)


@command("schema-")
@dataclass(frozen=True, slots=True)
class DeleteSchema(Command):
    """Delete a version of a subject, or the subject with all its versions."""

    level: ClassVar[int] = LEVEL

    subject: str
    version: int | None
    """None: the whole subject."""

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        check_label(self.subject, "subject")
        if self.version is not None:
            check_integer(self.version, "version", 1, 2**31)


@command("schema~")
@dataclass(frozen=True, slots=True)
class SetCompatibility(Command):
    """Set the compatibility rule of a subject or of the cluster; None takes it back."""

    level: ClassVar[int] = LEVEL

    subject: str
    """Empty: the cluster's default."""
    compatibility: str | None

    def check(self) -> None:
        """Raises InvalidArgument that names the field."""
        if self.subject != "":
            check_label(self.subject, "subject")
        if self.compatibility is not None:
            check_choice(self.compatibility, "compatibility", COMPATIBILITIES)


# ------------------------------------------------------------ rows


def subject_key(name: str) -> bytes:
    """The subject's key in the KV space."""
    return SUBJECT_PREFIX + name.encode()


def id_key(schema_id: int) -> bytes:
    """The schema's key in the KV space; big-endian, so that keys are in the order of ids."""
    return ID_PREFIX + schema_id.to_bytes(4, "big")


def decode_subject(key: bytes, value: bytes, revision: int) -> Subject:
    """`revision`: the row's `mod_revision`."""
    fields: Any = unpack(value)
    compatibility, latest, versions = fields
    name = key[len(SUBJECT_PREFIX) :].decode()
    return Subject(name, compatibility, latest, versions, revision)


def _save(draft: Draft, subject: Subject) -> None:
    body = [subject.compatibility, subject.latest_version, subject.versions]
    draft.put_row(subject_key(subject.name), pack(body))


def decode_schema(key: bytes, value: bytes) -> Schema:
    """The schema of a row of the KV space."""
    fields: Any = unpack(value)
    subject, version, schema_type, text = fields
    schema_id = int.from_bytes(key[len(ID_PREFIX) :], "big")
    return Schema(subject, version, schema_id, schema_type, text)


def _find(draft: Draft, name: str) -> Subject | None:
    row = draft.row(subject_key(name))
    return decode_subject(subject_key(name), row.value, row.mod_revision) if row else None


# ------------------------------------------------------------ handlers


def register_schema(draft: Draft, command: RegisterSchema) -> Any:
    """[version, schema id]. Raises CompareFailed, Overloaded."""
    subject = _find(draft, command.subject) or Subject(command.subject, None, 0, (), 0)
    same = _same_as_latest(draft, subject, command)
    if same is not None:
        return same
    if command.expected_version not in (None, subject.latest_version):
        raise CompareFailed(
            f"subject {subject.name!r} is at version {subject.latest_version}, expected was "
            f"{command.expected_version}"
        )
    if len(subject.versions) >= VERSIONS_MAX:
        raise Overloaded(f"subject {subject.name!r} has {VERSIONS_MAX} versions already")
    schema_id, version = _next_id(draft), subject.latest_version + 1
    body = [subject.name, version, command.schema_type, command.text]
    draft.put_row(id_key(schema_id), pack(body))
    versions = (*subject.versions, (version, schema_id))
    _save(draft, Subject(subject.name, subject.compatibility, version, versions, 0))
    return [version, schema_id]


def _same_as_latest(draft: Draft, subject: Subject, command: RegisterSchema) -> Any:
    """[version, schema id] of the latest version if it is this very schema; else None."""
    # Its latest version was deleted: numbers are not given twice, so this is a new one.
    if not subject.versions or subject.versions[-1][0] != subject.latest_version:
        return None
    version, schema_id = subject.versions[-1]
    row = draft.row(id_key(schema_id))
    assert row is not None  # written and deleted together with the subject's row
    latest = decode_schema(id_key(schema_id), row.value)
    is_same = (latest.schema_type, latest.text) == (command.schema_type, command.text)
    return [version, schema_id] if is_same else None


def _next_id(draft: Draft) -> int:
    schema_id = decode_number(draft.get(_ID_COUNTER)) + 1
    if schema_id > _ID_MAX:
        raise Overloaded("all schema ids have been given")
    draft.set(_ID_COUNTER, encode_number(schema_id))
    return schema_id


def delete_schema(draft: Draft, command: DeleteSchema) -> Any:
    """Number of versions deleted. Raises NotFound."""
    subject = _find(draft, command.subject)
    if subject is None:
        raise NotFound(f"subject {command.subject!r} does not exist")
    gone = [pair for pair in subject.versions if command.version in (None, pair[0])]
    if not gone and command.version is not None:
        raise NotFound(f"subject {subject.name!r} has no version {command.version}")
    for _, schema_id in gone:
        draft.delete_row(id_key(schema_id))
    if command.version is None:
        draft.delete_row(subject_key(subject.name))
    else:
        left = tuple(pair for pair in subject.versions if pair not in gone)
        _save(draft, Subject(subject.name, subject.compatibility, subject.latest_version, left, 0))
    return len(gone)


def set_compatibility(draft: Draft, command: SetCompatibility) -> Any:
    """None. A subject without versions is made where there is none of that name."""
    if not command.subject:
        if command.compatibility is None:
            draft.delete_row(DEFAULT_KEY)
        else:
            draft.put_row(DEFAULT_KEY, pack(command.compatibility))
        return None
    subject = _find(draft, command.subject) or Subject(command.subject, None, 0, (), 0)
    changed = Subject(
        subject.name, command.compatibility, subject.latest_version, subject.versions, 0
    )
    _save(draft, changed)
    return None
