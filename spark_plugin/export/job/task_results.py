"""What the tasks of an export answer, and how the answers travel from executor to driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import msgpack

from lakemq.spark_plugin.export.tables.table import WrittenFile


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of the table."""

    file: WrittenFile
    route: str = ""
    """In a routed export: the route whose table the file belongs to."""


@dataclass(frozen=True, slots=True)
class DeadLetterFile:
    """A file with rows of the dead-letter table."""

    file: WrittenFile


@dataclass(frozen=True, slots=True)
class NewFields:
    """Records have fields that need columns or wider types. The task's files do not hold all rows:
    its range is to be read again."""

    partition: int
    start: int
    """First offset of the task."""
    columns: str
    """Column list of the fields."""
    route: str = ""


@dataclass(frozen=True, slots=True)
class NewRoutes:
    """Records name routes that have no table. The task's range is to be read again."""

    partition: int
    start: int
    """First offset of the task."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestFields:
    """Rows with fields in column `_rest`."""

    rows: int
    names: tuple[str, ...]
    """Names of these fields, as many as a task reports."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Records without a value, which delete rows of an upsert."""

    count: int


@dataclass(frozen=True, slots=True)
class SkippedOffsets:
    """Offsets [start, end) that were skipped because their batch is corrupt."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TracedRecords:
    """Some of the records that the task has read belong to traces."""

    contexts: tuple[str, ...]
    """Each a `traceparent` (W3C Trace Context)."""


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The task has read the offsets [start, end). Every task ends with one."""

    partition: int
    start: int
    end: int
    rows: int
    """Rows that the task's files, dead letters included, must hold."""


@dataclass(frozen=True, slots=True)
class BirthsSeen:
    """The newest births of Sparkplug B that the task knows of."""

    partition: int
    low: int
    """See `KnownBirths`."""
    offsets: Mapping[str, int]


TaskResult = (
    BirthsSeen
    | DataFile
    | DeadLetterFile
    | NewFields
    | NewRoutes
    | RestFields
    | SkippedOffsets
    | Tombstones
    | TracedRecords
    | RangeRead
)

_KINDS: Final[Mapping[str, type[TaskResult]]] = {
    "births": BirthsSeen,
    "fields": NewFields,
    "routes": NewRoutes,
    "rest": RestFields,
    "skipped": SkippedOffsets,
    "tombstones": Tombstones,
    "traced": TracedRecords,
    "read": RangeRead,
}


def to_bytes(result: TaskResult) -> bytes:
    """The wire form: a msgpack array of a tag and the fields in their order. Executors and driver
    run the same version, so no other version has to read it."""
    return bytes(msgpack.packb(_fields(result)))


def _fields(result: TaskResult) -> tuple[Any, ...]:
    match result:
        case DataFile(file, route):
            return ("data", file, route)
        case DeadLetterFile(file):
            return ("dead_letter", file)
    (tag,) = (tag for tag, kind in _KINDS.items() if type(result) is kind)
    return (tag, *(getattr(result, each.name) for each in fields(result)))


def from_bytes(data: bytes) -> TaskResult:
    """What `to_bytes` encoded. ValueError for a tag that does not exist."""
    tag, *values = msgpack.unpackb(data, use_list=False)
    match tag, values:
        case "data", (file, route):
            return DataFile(WrittenFile(*file), route)
        case "dead_letter", (file,):
            return DeadLetterFile(WrittenFile(*file))
        case _ if tag in _KINDS:
            return _KINDS[tag](*values)
    raise ValueError(f"unknown task result {tag!r}")
