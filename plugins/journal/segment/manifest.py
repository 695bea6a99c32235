"""Manifest of a partition: which segments make up the log.

A file is part of the log if and only if the manifest names it; every other file is a leftover of
an interrupted roll, compaction or deletion. It is replaced as a whole (write new, fsync, rename,
fsync folder), so each change of the set of segments happens at once or not at all.

Bytes, `docs/formats/journal.md`: a line `LMQM 2 <CRC-32C of the rest, 8 hex digits>`, then JSON.
Version 1, which knew no epochs, is read and becomes version 2 when it is next written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import google_crc32c

from lakemq.plugins.journal.segment.epochs import EpochStarts, ascending

MAGIC: Final = b"LMQM"
VERSION: Final = 2
_VERSION_1: Final = 1
MANIFEST_NAME: Final = "manifest"
CHECKPOINT_NAME: Final = "checkpoint"
_SEGMENT_NAME: Final = re.compile(r"^(\d{20})-(\d{6})\.(log|index|sums)$")


class BadManifest(Exception):
    """Bytes that are no manifest of this version. Never crosses the journal's door."""


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """Where an object store holds a copy of a sealed segment."""

    uri: str
    position: int
    """First byte within the object."""
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment. The last one of a manifest is active: its size and end are found by recovery."""

    base_offset: int
    generation: int
    """0 as first written; each compaction writes a higher one."""
    created_ms: int
    next_offset: int = -1
    """Offset behind its range, which may be behind its last record; -1: active."""
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    sealed_ms: int = -1
    compacted: bool = False
    """Whether offsets within may have gaps."""
    local: bool = True
    """False: only the object store has it."""
    remote: RemotePlace | None = None
    gaps: bool = False
    """Whether batches within were copied from a leader whose compaction had left gaps."""

    @property
    def may_have_gaps(self) -> bool:
        """Whether an offset may be missing between two of its batches."""
        return self.compacted or self.gaps

    @property
    def sealed(self) -> bool:
        """Whether no more batches are appended to it."""
        return self.next_offset >= 0

    @property
    def stem(self) -> str:
        """Name of its files without what follows the dot: base offset and generation."""
        return f"{self.base_offset:020d}-{self.generation:06d}"

    @property
    def log_name(self) -> str:
        """File name of its batches."""
        return self.stem + ".log"

    @property
    def index_name(self) -> str:
        """File name of its index."""
        return self.stem + ".index"

    @property
    def sums_name(self) -> str:
        """File name of its block sums."""
        return self.stem + ".sums"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The segments of a log, ascending and without gap, and its start offset."""

    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    segments: tuple[SegmentInfo, ...]
    """By base offset, without gap between one's `next_offset` and the next one's base."""
    garbage: tuple[str, ...] = ()
    """URIs of objects that the log has given up and that are still to be deleted."""
    epochs: EpochStarts = ()
    """Epochs of the batches in sealed segments, and where each begins."""

    def with_segments(self, *segments: SegmentInfo) -> Manifest:
        """A copy with other segments."""
        return replace(self, segments=segments)

    @property
    def file_names(self) -> set[str]:
        """Every file of the folder that belongs to the log."""
        names = {MANIFEST_NAME, CHECKPOINT_NAME}
        for segment in self.segments:
            names.add(segment.index_name)
            if segment.local:
                names.add(segment.log_name)
            if segment.remote is not None:
                names.add(segment.sums_name)
        return names

    def discarding(self, segments: Sequence[SegmentInfo]) -> Manifest:
        """The manifest with the remote copies of these segments marked for deletion."""
        uris = tuple(segment.remote.uri for segment in segments if segment.remote is not None)
        return replace(self, garbage=(*self.garbage, *uris)) if uris else self


def encode_manifest(manifest: Manifest) -> bytes:
    """Manifest -> bytes."""
    body = json.dumps(asdict(manifest), indent=1).encode() + b"\n"
    return b"%s %d %08x\n" % (MAGIC, VERSION, google_crc32c.value(body)) + body


def decode_manifest(data: bytes) -> Manifest:
    """Bytes -> manifest. BadManifest says what is wrong."""
    line, _, body = data.partition(b"\n")
    words = line.split(b" ")
    if len(words) != 3 or words[0] != MAGIC:
        raise BadManifest(f"first line is {line[:40]!r}")
    if words[1] not in (b"%d" % VERSION, b"%d" % _VERSION_1):
        raise BadManifest(
            f"version {words[1]!r}; this build reads versions {_VERSION_1}, {VERSION}"
        )
    if words[2] != b"%08x" % google_crc32c.value(body):
        raise BadManifest("CRC-32C does not match")
    try:
        fields: dict[str, Any] = json.loads(body)
        segments = tuple(_segment(entry) for entry in fields.pop("segments"))
        garbage = tuple(fields.pop("garbage"))
        if words[1] == b"%d" % _VERSION_1:
            fields["epochs"] = _epochs_of_version_1(segments)
        epochs = ascending(fields.pop("epochs"))
        manifest = Manifest(segments=segments, garbage=garbage, epochs=epochs, **fields)
        _check_chain(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadManifest(f"unexpected content: {error}") from None
    return manifest


def _epochs_of_version_1(segments: tuple[SegmentInfo, ...]) -> EpochStarts:
    """Writers of version 1 stamped epoch 0 on every batch."""
    return ((0, segments[0].base_offset),) if len(segments) > 1 else ()


def _segment(entry: dict[str, Any]) -> SegmentInfo:
    remote = entry.pop("remote")
    return SegmentInfo(**entry, remote=None if remote is None else RemotePlace(**remote))


def _check_chain(manifest: Manifest) -> None:
    if not manifest.segments or manifest.segments[-1].sealed:
        raise BadManifest("no active segment")
    for before, after in zip(manifest.segments, manifest.segments[1:], strict=False):
        # A gap would look like records that never were: better no manifest, which is rebuilt.
        if before.next_offset != after.base_offset:
            raise BadManifest(f"segment {before.stem} is followed by {after.stem}")


def segment_of(name: str) -> tuple[int, int] | None:
    """(base offset, generation) that the name of a segment's file tells; None: it is none."""
    match = _SEGMENT_NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None
