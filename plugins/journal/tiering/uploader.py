"""Tiering: sealed segments are copied to an object store, read from there, deleted there.

A segment is copied once it is sealed and read back before it counts as copied; its local file goes
when local retention says so. The manifest tells where each segment is; a copy of the manifest lies
beside the objects, so the store alone is enough to find every record in it.

Of a replicated partition the leader alone writes to the store. Other replicas, and a new leader,
adopt what it has stored: sealed segments are equal, byte by byte, on all replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final

from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.maintenance.retention import expired
from lakemq.plugins.journal.segment.files import FileHandle, replace_file
from lakemq.plugins.journal.segment.manifest import (
    MANIFEST_NAME,
    BadManifest,
    RemotePlace,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
)
from lakemq.plugins.journal.segment.sums import encode_sums, sum_up
from lakemq.plugins.journal.segment.walk import walk
from lakemq.plugins.journal.tiering.object_store import (
    ObjectMissing,
    ObjectShort,
    ObjectStore,
    StoreError,
    name_of,
    object_name,
)

_CHUNK_BYTES: Final = 8 * 1024 * 1024
_LOOK_BYTES: Final = 16 * 1024
"""Read of the end of an object that is adopted."""


class Tier:
    """Moves one partition's segments."""

    def __init__(self, store: ObjectStore, folder: LogFolder, *, leads: bool = True) -> None:
        """`leads`: whether this replica may write to the store; the others adopt."""
        self._store = store
        self._folder = folder
        self._leads = leads
        self._others: set[SegmentInfo] = set()
        """Segments under whose name the store has other bytes, which other replicas read."""

    def adopt(self, offset_end: int) -> int:
        """Take over where another replica has stored sealed segments below `offset_end` that this
        one has too; returns how many. StoreError, OSError, StorageFenced."""
        folder = self._folder
        wanted = {
            segment.log_name: segment
            for segment in folder.manifest.segments
            if self._is_uncopied(segment, offset_end)
        }
        if not wanted:
            return 0
        changes: dict[SegmentInfo, SegmentInfo] = {}
        for other in self._stored():
            segment, place = wanted.get(other.log_name), other.remote
            if segment is None or place is None:
                continue
            try:
                if self._is_copy(segment, other, place):
                    changes[segment] = replace(segment, remote=place)
                else:
                    self._others.add(segment)
            except (ObjectMissing, ObjectShort):
                pass  # the leader copies it again
        return len(changes) if changes and self._replace(changes) else 0

    def _stored(self) -> tuple[SegmentInfo, ...]:
        """What the copy of a manifest in the store names. StoreError."""
        manifest = self._folder.manifest
        name = object_name(manifest, MANIFEST_NAME)
        try:
            found = decode_manifest(self._store.read_all(name))
        except ObjectMissing:
            return ()
        except BadManifest as error:
            if self._leads:
                return ()  # it is written again with the next change
            raise StoreError(f"{name}: {error}") from None
        if (found.topic_id, found.partition) != (manifest.topic_id, manifest.partition):
            raise StoreError(f"{name} is of partition {found.partition} of {found.topic_id}")
        return found.segments

    def _is_copy(self, segment: SegmentInfo, other: SegmentInfo, place: RemotePlace) -> bool:
        """Whether the object holds the bytes of this replica's segment; if so, its sums are kept
        beside it."""
        folder, name = self._folder, object_name(self._folder.manifest, segment.log_name)
        if place.uri != self._store.url + name or (
            (other.next_offset, other.size_bytes, place.position, place.size_bytes)
            != (segment.next_offset, segment.size_bytes, 0, segment.size_bytes)
        ):
            return False
        with closing(folder.files.open(folder.path / segment.log_name)) as handle:
            sums = sum_up(handle.read_at, segment.size_bytes)
            last = min(_LOOK_BYTES, segment.size_bytes)
            if sums.crc32c != place.crc32c:
                return False
            # The manifest may be older than the object's end: the object is looked at, too.
            there = self._store.read(name, segment.size_bytes - last, last)
            if there != handle.read_at(segment.size_bytes - last, last):
                return False
        replace_file(folder.files, folder.path / segment.sums_name, encode_sums(sums))
        return True

    def _is_uncopied(self, segment: SegmentInfo, offset_end: int) -> bool:
        return bool(
            segment.sealed
            and segment.next_offset <= offset_end
            and segment.local
            and segment.remote is None
            and segment.size_bytes
        )

    def copy_next(self, offset_end: int) -> bool:
        """Copy the oldest sealed segment below `offset_end` that is not yet in the store; False:
        there is none.

        BadBatch: it is damaged, and stays as it is. StoreError, OSError, StorageFenced.
        """
        for segment in self._folder.manifest.segments:
            if self._is_uncopied(segment, offset_end) and segment not in self._others:
                self._copy(segment)
                return True
        return False

    def _copy(self, segment: SegmentInfo) -> None:
        folder, store = self._folder, self._store
        name = object_name(folder.manifest, segment.log_name)
        # Held open until it has been compared: retention may remove its name meanwhile.
        with closing(folder.files.open(folder.path / segment.log_name)) as handle:
            for _ in walk(handle.read_at, 0, segment.size_bytes):
                pass  # Each batch is checked: damage must not be uploaded unnoticed.
            store.put(name, _chunks(handle, segment.size_bytes))

            def same(position: int, size: int) -> bytes:
                there = store.read(name, position, size)
                if there != handle.read_at(position, size):
                    raise StoreError(f"{name} differs from what was written to it")
                return there

            sums = sum_up(same, segment.size_bytes)
        # Before the manifest names the copy, which readers check by them.
        replace_file(folder.files, folder.path / segment.sums_name, encode_sums(sums))
        place = RemotePlace(store.url + name, 0, segment.size_bytes, sums.crc32c)
        if not self._replace({segment: replace(segment, remote=place)}):
            store.delete(name)  # Retention or compaction took the segment meanwhile.
            folder.files.remove(folder.path / segment.sums_name)

    def _replace(self, changes: dict[SegmentInfo, SegmentInfo]) -> bool:
        """Change segments in the manifest, all of them or, when one is gone, none."""
        folder = self._folder
        with folder.changing:
            segments = folder.manifest.segments
            if not set(changes) <= set(segments):
                return False
            folder.commit(
                folder.manifest.with_segments(*(changes.get(each, each) for each in segments))
            )
        if self._leads:
            self.copy_manifest()
        return True

    def copy_manifest(self) -> None:
        """Store the manifest of this moment beside the objects, in place of its older copy.
        StoreError."""
        manifest = self._folder.manifest
        data = encode_manifest(manifest)
        self._store.put(object_name(manifest, MANIFEST_NAME), iter([data]))

    def drop_local(
        self,
        now_ms: int,
        offset_end: int,
        *,
        bytes_max: int | None,
        age_max_ms: int | None,
        retention_by: str,
    ) -> int:
        """Give up local files of segments that are in the store; returns how many.

        As retention: the oldest first, and none at or behind `offset_end`.
        """
        folder = self._folder
        local = [segment for segment in folder.manifest.segments if segment.local]
        count = expired(
            local, folder.active_index.covered_bytes, now_ms,
            bytes_max=bytes_max, age_max_ms=age_max_ms, retention_by=retention_by,
        )  # fmt: skip
        changes = {}
        for segment in local[:count]:
            if segment.remote is None or segment.next_offset > offset_end:
                break
            changes[segment] = replace(segment, local=False)
        if not changes or not self._replace(changes):
            return 0
        # Behind the manifest: a crash in between leaves a stray, which the next start removes.
        for segment in changes:
            folder.files.remove(folder.path / segment.log_name)
        return len(changes)

    def sweep(self) -> int:
        """Delete objects that the log has given up; returns how many."""
        folder = self._folder
        garbage = folder.manifest.garbage
        if not garbage:
            return 0
        # No copy of the manifest may name an object that is deleted.
        self.copy_manifest()
        # Another leader may have stored other bytes under a name that was given up here.
        named = {each.remote.uri for each in folder.manifest.segments if each.remote is not None}
        for uri in garbage:
            if uri not in named:
                self._store.delete(name_of(self._store, uri))
        with folder.changing:
            # Forgotten last: after a crash before this they are deleted once more, which changes
            # nothing.
            left = tuple(uri for uri in folder.manifest.garbage if uri not in garbage)
            folder.commit(replace(folder.manifest, garbage=left))
        return len(garbage)


def _chunks(handle: FileHandle, size: int) -> Iterator[bytes]:
    for position in range(0, size, _CHUNK_BYTES):
        yield handle.read_at(position, min(_CHUNK_BYTES, size - position))


def delete_topic_objects(store: ObjectStore, topic_id: str) -> int:
    """Delete all that the store has of a topic; returns how many objects that were."""
    names = store.names(f"{topic_id}/")
    for name in names:
        store.delete(name)
    return len(names)
