"""Tiering: sealed segments are copied to an object store, read from there, deleted there.

A segment is copied once it is sealed and read back before it counts as copied; its local file goes
when local retention says so. The manifest tells where each segment is; a copy of the manifest lies
beside the objects, so the store alone is enough to find every record in it.
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
    RemotePlace,
    SegmentInfo,
    encode_manifest,
)
from lakemq.plugins.journal.segment.sums import encode_sums, sum_up
from lakemq.plugins.journal.segment.walk import walk
from lakemq.plugins.journal.tiering.object_store import (
    ObjectStore,
    StoreError,
    name_of,
    object_name,
)

_CHUNK_BYTES: Final = 8 * 1024 * 1024


class Tier:
    """Moves one partition's segments."""

    def __init__(self, store: ObjectStore, folder: LogFolder) -> None:
        self._store = store
        self._folder = folder

    def copy_next(self, offset_end: int) -> bool:
        """Copy the oldest sealed segment below `offset_end` that is not yet in the store; False:
        there is none.

        BadBatch: it is damaged, and stays as it is. StoreError, OSError, StorageFenced.
        """
        for segment in self._folder.manifest.segments:
            if not segment.sealed or segment.next_offset > offset_end:
                break
            if segment.local and segment.remote is None and segment.size_bytes:
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
        for uri in garbage:
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
