"""One partition's folder: its manifest, and the indexes of its segments. Thread-safe.

A task that changes the set of segments (roll, retention, compaction, tiering) holds `changing`; who
reads takes the manifest of the moment and goes on with it. A file that is gone meanwhile is a
reason to look again, not an error.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from lakemq.broker_core.api.errors import CorruptLog, StorageFenced
from lakemq.plugins.journal.maintenance.retention import starting_at
from lakemq.plugins.journal.segment.damage import Damage, readable, survey
from lakemq.plugins.journal.segment.files import Files, replace_file
from lakemq.plugins.journal.segment.index import BadIndex, SparseIndex, decode_index, encode_index
from lakemq.plugins.journal.segment.manifest import (
    MANIFEST_NAME,
    Manifest,
    SegmentInfo,
    encode_manifest,
)
from lakemq.plugins.journal.segment.walk import BadBatch, Read
from lakemq.plugins.journal.tiering.object_store import ObjectStore, StoreError
from lakemq.plugins.journal.tiering.remote_segment import RemoteSegment, open_remote

_log: Final = logging.getLogger(__name__)
_INDEXES_MAX: Final = 1024
_NO_END: Final = 1 << 63


class SegmentReader(Protocol):
    """A segment that is open for reading."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only at the end. OSError, StoreError."""

    def close(self) -> None:
        """Release the file, if there is one."""


class IndexCache:
    """Indexes of sealed segments, the most recently used ones; shared by all partitions."""

    def __init__(self, entries_max: int = _INDEXES_MAX) -> None:
        # Reader threads of all partitions share it, and a look-up changes the order.
        self._lock = threading.Lock()
        self._entries_max = entries_max
        self._indexes: OrderedDict[Path, SparseIndex] = OrderedDict()

    def get(self, path: Path) -> SparseIndex | None:
        """The cached index of a file; None: it is not cached."""
        with self._lock:
            index = self._indexes.get(path)
            if index is not None:
                self._indexes.move_to_end(path)
            return index

    def put(self, path: Path, index: SparseIndex) -> None:
        """Cache an index; the least recently used make room."""
        with self._lock:
            self._indexes[path] = index
            while len(self._indexes) > self._entries_max:
                self._indexes.popitem(last=False)

    def drop(self, path: Path) -> None:
        """Remove an index whose segment changed or went."""
        with self._lock:
            self._indexes.pop(path, None)


class LogFolder:
    """The files of one partition."""

    def __init__(
        self,
        files: Files,
        path: Path,
        manifest: Manifest,
        active_index: SparseIndex,
        indexes: IndexCache,
        store: ObjectStore | None = None,
    ) -> None:
        self.files = files
        self.store = store
        """Where segments are that have no local file."""
        self.path = path
        self.active_index = active_index
        """Index of the active segment; its `covered_bytes` are durable."""
        self.changing = threading.Lock()
        self.damages: dict[str, Damage] = {}
        """Damage met by readers and the scrub, by segment name; shown in the status."""
        self.on_damage: Callable[[], None] = lambda: None
        """Called, on any thread, when a segment is found damaged that was not known to be."""
        self._manifest = manifest
        self._indexes = indexes

    @property
    def manifest(self) -> Manifest:
        """The manifest of this moment; it is immutable, so a reader may go on with it."""
        return self._manifest

    def commit(self, manifest: Manifest) -> None:
        """Make `manifest` the truth, durably. The caller holds `changing`.

        OSError: nothing has changed. StorageFenced: unknown whether it did.
        """
        replace_file(self.files, self.path / MANIFEST_NAME, encode_manifest(manifest))
        try:
            self.files.sync_folder(self.path)
        except OSError as error:
            # Renamed, but perhaps not durably: after a crash either manifest may be there, so
            # nothing can be built on this one.
            raise StorageFenced(f"fsync of folder {self.path} failed: {error}") from None
        self._manifest = manifest

    def mark_gaps(self) -> None:
        """Note that offsets of the active segment may have gaps. As `commit`; OSError too."""
        with self.changing:
            *sealed, active = self._manifest.segments
            if not active.gaps:
                self.commit(self._manifest.with_segments(*sealed, replace(active, gaps=True)))

    def adopt(self, topic: str) -> None:
        """Name the topic where a rebuilt manifest can't; on disk with the next change."""
        if not self._manifest.topic:
            self._manifest = replace(self._manifest, topic=topic)

    def open_segment(self, segment: SegmentInfo) -> SegmentReader:
        """Wherever it is. FileNotFoundError, OSError, StoreError."""
        if segment.local:
            return self.files.open(self.path / segment.log_name)
        if self.store is None or segment.remote is None:
            raise StoreError(f"{segment.log_name} is in an object store, and none is configured")
        return open_remote(self.files, self.path, self.store, segment, segment.remote)

    def is_remote(self, offset: int) -> bool:
        """Whether the segment of that offset has no local file."""
        return not self.segment_at(offset).local

    def segment_at(self, offset: int) -> SegmentInfo:
        """The segment that holds an offset; the active one for those behind the log's end."""
        segments = self._manifest.segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        return segments[max(0, at)]

    def segment_end(self, offset: int) -> int:
        """Offset behind the range of the segment that holds `offset`; of the active one, which has
        no end yet, one behind all offsets."""
        segment = self.segment_at(offset)
        return segment.next_offset if segment.sealed else _NO_END

    def covered_bytes(self, segment: SegmentInfo) -> int:
        """How much of the segment's file holds batches that are durable."""
        # Taken once: a roll may replace it between two looks.
        index = self.active_index
        if segment.sealed:
            return segment.size_bytes
        if index.base_offset == segment.base_offset:
            return index.covered_bytes
        return self.sealed_since(segment).size_bytes

    def sealed_since(self, segment: SegmentInfo) -> SegmentInfo:
        """What became of a segment that was active in an older manifest."""
        for now in self._manifest.segments:
            if now.base_offset == segment.base_offset:
                return now
        return segment

    def size_bytes(self) -> int:
        """Bytes of record batches on this disk."""
        segments = self._manifest.segments
        return self.active_index.covered_bytes + sum(s.size_bytes for s in segments if s.local)

    def known_index(self, segment: SegmentInfo) -> SparseIndex | None:
        """A sealed segment's index, if it can be had without reading the segment."""
        path = self.path / segment.index_name
        index = self._indexes.get(path)
        if index is None:
            index = self._load_index(path, segment)
            if index is not None:
                self._indexes.put(path, index)
        return index

    def records_end(self, count: int = -1) -> int:
        """Offset behind the last record of the first `count` segments, -1: of the sealed ones; or
        where the log begins. Their ranges may go on behind it."""
        segments = self._manifest.segments
        for segment in reversed(segments[:count]):
            if segment.size_bytes:
                index = self.known_index(segment)
                return segment.next_offset if index is None else index.next_offset
        return segments[0].base_offset

    def index_of(self, segment: SegmentInfo, read: Read) -> SparseIndex:
        """The segment's index: from memory, from its file, or rebuilt from the segment."""
        if not segment.sealed and self.active_index.base_offset == segment.base_offset:
            return self.active_index
        path = self.path / segment.index_name
        index = self._indexes.get(path)
        if index is None:
            index = self._load_index(path, segment)
            if index is None:
                index = self._rebuild_index(path, segment, read)
            self._indexes.put(path, index)
        return index

    def _load_index(self, path: Path, segment: SegmentInfo) -> SparseIndex | None:
        try:
            index = decode_index(self.files.read(path), self.active_index.interval_bytes)
        except (OSError, BadIndex):
            return None
        fits = (
            index.base_offset == segment.base_offset
            and index.generation == segment.generation
            and index.covered_bytes == segment.size_bytes
        )
        return index if fits else None

    def _rebuild_index(self, path: Path, segment: SegmentInfo, read: Read) -> SparseIndex:
        interval = self.active_index.interval_bytes
        index = SparseIndex(segment.base_offset, segment.generation, interval)
        for found in survey(read, 0, segment.size_bytes, segment.base_offset):
            if isinstance(found, Damage):
                self.note_damage(segment, found)
                index.covered_bytes = found.end_position
            else:
                index.covered_bytes = found.position
                index.add(found.header)
        with suppress(OSError):  # A hint only: the next one who needs it makes it again.
            replace_file(self.files, path, encode_index(index))
        return index

    def keep_index(self, index: SparseIndex) -> None:
        """Write the index of a segment that is being sealed. OSError when it can't be written."""
        path = self.path / f"{index.base_offset:020d}-{index.generation:06d}.index"
        replace_file(self.files, path, encode_index(index))
        self._indexes.put(path, index)

    def forget_index(self, segment: SegmentInfo) -> None:
        """The segment is appended to again, so the index of its seal is no longer right."""
        self._indexes.drop(self.path / segment.index_name)
        self.damages.pop(segment.log_name, None)

    def drop_files(self, segment: SegmentInfo) -> None:
        """Remove the files of a segment that the manifest no longer names."""
        self._indexes.drop(self.path / segment.index_name)
        self.damages.pop(segment.log_name, None)
        for name in (segment.log_name, segment.index_name, segment.sums_name):
            self.files.remove(self.path / name)

    def put_in_place(
        self, group: Sequence[SegmentInfo], new: SegmentInfo, stray: Path, index: SparseIndex
    ) -> bool:
        """Have `new`, whose bytes are in the synced file `stray`, take the place of neighbours in
        the manifest; False: they have changed meanwhile, and `stray` is gone.

        OSError: the log is as it was. StorageFenced.
        """
        with self.changing:
            segments = self._manifest.segments
            at = segments.index(group[0]) if group[0] in segments else -1
            if at < 0 or segments[at : at + len(group)] != tuple(group):
                self.files.remove(stray)
                return False
            # Within the lock: another rewriter may have given its file the same name just now. The
            # name appears when the file is whole and synced: where a manifest is rebuilt from
            # names, the higher generation is believed (`Recovery._manifest_from_names`).
            self.files.rename(stray, self.path / new.log_name)
            self.keep_index(index)
            after = segments[at + len(group) :]
            manifest = self._manifest.with_segments(*segments[:at], new, *after)
            self.commit(manifest.discarding(group) if new.remote is None else manifest)
        for segment in group:
            self.drop_files(segment)
        return True

    def start_at(self, offset: int, offset_end: int) -> None:
        """Move the log's start forward to `offset`, durably; segments below it that a start does
        not need (`offset_end`) go at once. OSError: nothing has changed. StorageFenced."""
        with self.changing:
            if offset <= self._manifest.log_start_offset:
                return
            manifest, gone = starting_at(self._manifest, offset, offset_end)
            self.commit(manifest)
        # Outside the lock: the manifest without them is durable, a crash leaves strays at most.
        for segment in gone:
            self.drop_files(segment)

    def damage_at(
        self, segment: SegmentInfo, index: SparseIndex, bad: BadBatch, handle: SegmentReader
    ) -> Damage:
        """What a reader ran into, measured: where it begins and ends, which offsets are in it."""
        size = self.covered_bytes(segment)
        entry = bisect_right(index.positions, bad.position) - 1
        start = index.positions[entry] if entry >= 0 else 0
        first = index.offsets[entry] if entry >= 0 else segment.base_offset
        damage = Damage(bad.position, size, first, -1, bad.reason)
        for found in survey(readable(handle.read_at), start, size, first, index.positions):
            if isinstance(found, Damage) and found.end_position > bad.position:
                damage = found
                break
        if isinstance(handle, RemoteSegment) and handle.trouble:
            damage = damage._replace(reason=handle.trouble)
        self.note_damage(segment, damage)
        return damage

    def note_missing(self, segment: SegmentInfo) -> None:
        """The file of a segment that the manifest names is not there."""
        reason = "its file is missing"
        whole = Damage(0, segment.size_bytes, segment.base_offset, -1, reason)
        self.note_damage(segment, whole)

    def note_damage(self, segment: SegmentInfo, damage: Damage) -> None:
        """Remember it for the status; said and counted once for each segment."""
        known = segment.log_name in self.damages
        self.damages[segment.log_name] = damage
        if not known:
            what = describe_damage(damage, segment, self.covered_end(segment))
            _log.error("%s: %s", self.path, what)
            self.on_damage()

    def corrupt(self, segment: SegmentInfo, damage: Damage) -> CorruptLog:
        """The error for a read of a record that is damaged."""
        return CorruptLog(describe_damage(damage, segment, self.covered_end(segment)))

    def covered_end(self, segment: SegmentInfo) -> int:
        """Offset behind the segment's last durable record."""
        now = segment if segment.sealed else self.sealed_since(segment)
        return now.next_offset if now.sealed else self.active_index.next_offset


def describe_damage(damage: Damage, segment: SegmentInfo, end_offset: int) -> str:
    """One line for errors, the status and `verify`: file, position, offsets."""
    last = (damage.next_offset if damage.next_offset >= 0 else end_offset) - 1
    return (
        f"{segment.log_name} position {damage.position}..{damage.end_position}: "
        f"offsets {damage.first_offset}..{last} are damaged: {damage.reason}"
    )


def describe_missing(segment: SegmentInfo) -> str:
    """One line for errors and the status about a segment without its file."""
    last = segment.next_offset - 1 if segment.sealed else "?"
    what = "is missing" if segment.local else "is not in the object store"
    return f"{segment.log_name} {what}: offsets {segment.base_offset}..{last} are gone"
