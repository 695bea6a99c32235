"""Recovery of one partition's folder after whatever happened to it. Edge: blocking file calls.

What the manifest names is the log. Sealed segments are taken at their word (readers check CRCs);
the active one is scanned from the checkpoint on and cut behind its last whole batch. What is kept
is fsynced before any reader may see it: the process that wrote it may have died before it did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from lakemq.plugins.journal.log.folder import IndexCache, LogFolder, describe_missing
from lakemq.plugins.journal.segment.checkpoint import (
    UNKNOWN,
    BadCheckpoint,
    Checkpoint,
    decode_checkpoint,
)
from lakemq.plugins.journal.segment.damage import Damage, find_batches, survey
from lakemq.plugins.journal.segment.epochs import EpochTable
from lakemq.plugins.journal.segment.fence_mark import FENCE_NAME, decode_fence_mark
from lakemq.plugins.journal.segment.files import FileHandle, Files, replace_file
from lakemq.plugins.journal.segment.index import SparseIndex
from lakemq.plugins.journal.segment.manifest import (
    CHECKPOINT_NAME,
    MANIFEST_NAME,
    BadManifest,
    Manifest,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
    segment_of,
)
from lakemq.plugins.journal.segment.producers import ProducerTable
from lakemq.plugins.journal.segment.walk import BadBatch, walk
from lakemq.plugins.journal.tiering.object_store import ObjectStore, StoreError, object_name

_log = logging.getLogger(__name__)
CUT_SUFFIX: Final = ".cut"
"""Bytes that recovery took off the end of a segment though a whole batch lay among them."""


@dataclass
class Recovered:
    """A partition's log, ready to be opened."""

    folder: LogFolder
    producers: ProducerTable
    notes: list[str] = field(default_factory=list)
    """What recovery found and did, one sentence each; empty when all was well."""
    fence: str = ""
    """Why nothing may be appended; empty: all is well."""
    damage: str = ""
    """What may have taken records that were durable: a fence, or a cut with a whole batch in it."""
    checkpoint_offset: int = 0
    """Base offset of the segment that the checkpoint names; 0 without one."""
    epochs: EpochTable = field(default_factory=EpochTable)
    high_watermark: int = 0
    """As far as it is known: what was readable once may lie behind it."""
    records_end: int = 0
    """Offset behind the last record of the segments before the active one."""


@dataclass
class RecoveryContext:
    """What the recoveries of all partitions of one storage engine share."""

    files: Files
    indexes: IndexCache
    now_ms: Callable[[], int]
    interval_bytes: int
    store: ObjectStore | None = None
    clean: bool = False
    """Whether the last process stopped in good order: then what is seen is durable."""


class Recovery:
    """One partition's recovery."""

    def __init__(self, context: RecoveryContext, path: Path) -> None:
        self._context = context
        self._files = context.files
        self._path = path
        self._notes: list[str] = []
        self._fence = ""
        self._damage = ""

    def run(self) -> Recovered | None:
        """None: there is nothing here, not even an empty log."""
        manifest = self._load_manifest()
        if manifest is None:
            return None
        if not self._context.clean:
            # The names seen may be in the page cache only, left by a process that died before it
            # could sync them. What is built on them must not be lost with them.
            sync_folders(self._files, self._path)
        self._remove_leftovers(manifest)
        active = manifest.segments[-1]
        checkpoint = self._load_checkpoint(manifest)
        producers = self._replay_sealed(manifest, checkpoint)
        index = SparseIndex(active.base_offset, active.generation, self._context.interval_bytes)
        if checkpoint is not None and checkpoint.index.base_offset == active.base_offset:
            index = checkpoint.index
        folder = LogFolder(
            self._files, self._path, manifest, index, self._context.indexes, self._context.store
        )
        epochs, records_end = self._epochs(manifest, checkpoint), folder.records_end()
        # Extends `index` in place, which is the folder's active index already.
        self._recover_active(active, index, producers, epochs, records_end)
        self._note_missing(manifest)
        for note in self._notes:
            _log.warning("%s: %s", self._path, note)
        done = 0 if checkpoint is None else checkpoint.index.base_offset
        return Recovered(
            folder, producers, self._notes, self._fence, self._fence or self._damage, done, epochs,
            self._high_watermark(folder, checkpoint), records_end,
        )  # fmt: skip

    # ------------------------------------------------------------ manifest

    def _load_manifest(self) -> Manifest | None:
        path = self._path / MANIFEST_NAME
        reason = "is missing"
        if self._files.exists(path):
            try:
                return decode_manifest(self._files.read(path))
            except BadManifest as error:
                reason = f"cannot be read: {error}"
        manifest = self._manifest_from_names()
        if manifest is not None and self._is_unborn(manifest):
            return None
        if manifest is not None:
            manifest = self._with_remote_segments(manifest)
            self._notes.append(f"the manifest {reason}; rebuilt from the files that are there")
            replace_file(self._files, path, encode_manifest(manifest))
            self._files.sync_folder(self._path)
        return manifest

    def _manifest_from_names(self) -> Manifest | None:
        """The log as its segment files tell it: of two files for the same offsets, the one of the
        higher generation, which is renamed into place only when it is whole."""
        found: dict[int, int] = {}
        for name in self._files.names(self._path):
            key = segment_of(name)
            if key is not None and name.endswith(".log"):
                found[key[0]] = max(found.get(key[0], 0), key[1])
        segments: list[SegmentInfo] = []
        end, epochs, sealed_epochs = -1, EpochTable(), EpochTable()
        for base, generation in sorted(found.items()):
            if base < end:
                continue  # Compaction had merged it into the one before.
            new = SegmentInfo(base, generation, self._context.now_ms())
            sealed_epochs = epochs.copy()
            segment, end = self._measure(new, epochs)
            segments.append(segment)
        if not segments:
            return None
        chained = [
            replace(segment, next_offset=after.base_offset) for segment, after in pairwise(segments)
        ]
        active = segments[-1]
        # The last one is taken for the active one: its end is found by scanning.
        chained.append(
            SegmentInfo(
                active.base_offset, active.generation, active.created_ms, gaps=active.compacted
            )
        )
        # The folders know the topic's id but not its name; `LogFolder.adopt` adds that.
        partition = int(self._path.name) if self._path.name.isdecimal() else 0
        start = segments[0].base_offset
        return Manifest(
            "",
            self._path.parent.name,
            partition,
            start,
            tuple(chained),
            epochs=sealed_epochs.starts(),
        )

    def _is_unborn(self, manifest: Manifest) -> bool:
        """Nothing but the empty first file of a log whose creation was interrupted."""
        (first, *more) = manifest.segments
        empty = self._files.size(self._path / first.log_name) == 0
        fresh = not self._files.exists(self._path / MANIFEST_NAME)
        return not more and first.base_offset == 0 and empty and fresh

    def _with_remote_segments(self, manifest: Manifest) -> Manifest:
        """What the copy of the manifest in the object store knows of segments that have no file
        here any more: those before the first one that has."""
        store, first = self._context.store, manifest.segments[0].base_offset
        if store is None:
            return manifest
        try:
            copy = decode_manifest(store.read_all(object_name(manifest, MANIFEST_NAME)))
        except (StoreError, BadManifest) as error:
            self._notes.append(f"no copy of the manifest in the object store: {error}")
            return manifest
        whose = (copy.topic_id, copy.partition)
        if whose != (manifest.topic_id, manifest.partition):
            self._notes.append(
                f"the manifest in the object store is of partition {whose[1]} of {whose[0]}"
            )
            return manifest
        older = [
            replace(segment, local=False)
            for segment in copy.segments
            if segment.remote is not None and segment.next_offset <= first
        ]
        if not older or older[-1].next_offset != first:
            return manifest
        start = copy.log_start_offset
        return replace(
            manifest, topic=copy.topic, log_start_offset=start,
            segments=(*older, *manifest.segments),
        )  # fmt: skip

    def _measure(self, segment: SegmentInfo, epochs: EpochTable) -> tuple[SegmentInfo, int]:
        path = self._path / segment.log_name
        end, newest, expected, gaps = segment.base_offset, -1, segment.base_offset, False
        with closing(self._files.open(path)) as handle:
            size = handle.size()
            for found in survey(handle.read_at, 0, size, segment.base_offset):
                if isinstance(found, Damage):
                    continue
                gaps |= found.header.base_offset != expected or bool(
                    found.header.last_offset_delta >= found.header.record_count
                )
                if found.header.leader_epoch != epochs.last:
                    epochs.note(found.header, expected)
                expected = end = found.header.last_offset + 1
                newest = max(newest, found.header.max_timestamp_ms)
        sealed = replace(
            segment, size_bytes=size, max_timestamp_ms=newest, sealed_ms=self._context.now_ms(),
            compacted=gaps,
        )  # fmt: skip
        return sealed, end

    def _remove_leftovers(self, manifest: Manifest) -> None:
        """Files of an interrupted roll, compaction or deletion: no acknowledged record is in a
        segment before the manifest that names it is durable."""
        keep = manifest.file_names
        for name in self._files.names(self._path):
            stray = name not in keep and (name.endswith(".new") or segment_of(name) is not None)
            if stray:
                # Not synced: a removal that a crash undoes is repeated at the next start.
                self._files.remove(self._path / name)

    def _note_missing(self, manifest: Manifest) -> None:
        names = set(self._files.names(self._path))
        for segment in manifest.segments:
            if segment.local and segment.log_name not in names:
                self._notes.append(describe_missing(segment))

    # ------------------------------------------------------------ checkpoint, producers

    def _load_checkpoint(self, manifest: Manifest) -> Checkpoint | None:
        path = self._path / CHECKPOINT_NAME
        if not self._files.exists(path):
            return None
        try:
            checkpoint = decode_checkpoint(self._files.read(path), self._context.interval_bytes)
        except BadCheckpoint as error:
            self._notes.append(f"the checkpoint cannot be read: {error}; all segments are scanned")
            return None
        # One ahead of the manifest belongs to a log that is not this one any more: a manifest
        # rebuilt from names may end earlier.
        known = checkpoint.index.base_offset <= manifest.segments[-1].base_offset
        return checkpoint if known else None

    def _replay_sealed(self, manifest: Manifest, checkpoint: Checkpoint | None) -> ProducerTable:
        """Producers as of the end of the last sealed segment, or of the checkpoint if later."""
        producers, from_offset, position = ProducerTable(), -1, 0
        if checkpoint is not None:
            producers = checkpoint.producers.copy()
            from_offset = checkpoint.index.base_offset
            position = checkpoint.index.covered_bytes
        for segment in manifest.segments[:-1]:
            if segment.base_offset < from_offset or not segment.local:
                continue
            start = position if segment.base_offset == from_offset else 0
            self._replay(segment, start, producers)
        return producers

    def _replay(self, segment: SegmentInfo, start: int, producers: ProducerTable) -> None:
        path = self._path / segment.log_name
        if start >= segment.size_bytes or not self._files.exists(path):
            return
        now_ms = self._context.now_ms()
        with closing(self._files.open(path)) as handle:
            for found in survey(handle.read_at, start, segment.size_bytes, segment.base_offset):
                if not isinstance(found, Damage) and found.header.producer_id >= 0:
                    producers.note(found.header, now_ms)

    # ------------------------------------------------------------ epochs, high watermark

    def _epochs(self, manifest: Manifest, checkpoint: Checkpoint | None) -> EpochTable:
        """Epochs of the sealed segments, and of the part of the active one that the checkpoint
        covers."""
        epochs = EpochTable(manifest.epochs)
        base = manifest.segments[-1].base_offset
        if checkpoint is not None and checkpoint.index.base_offset == base:
            epochs.extend(checkpoint.epochs.starts())
        return epochs

    def _high_watermark(self, folder: LogFolder, checkpoint: Checkpoint | None) -> int:
        """Compaction and tiering never pass the high watermark, so it was at least there."""
        manifest = folder.manifest
        known = max(
            (
                each.next_offset
                for each in manifest.segments
                if each.sealed and (each.compacted or each.remote is not None)
            ),
            default=UNKNOWN,
        )
        committed = UNKNOWN if checkpoint is None else checkpoint.committed
        end = folder.active_index.next_offset
        return min(max(known, committed, manifest.log_start_offset), end)

    # ------------------------------------------------------------ active segment

    def _recover_active(
        self,
        active: SegmentInfo,
        index: SparseIndex,
        producers: ProducerTable,
        epochs: EpochTable,
        records_end: int,
    ) -> None:
        path = self._path / active.log_name
        if not self._files.exists(path):
            self._fence = f"the active segment {active.log_name} is missing"
            return
        size = self._files.size(path)
        if size < index.covered_bytes:
            self._fence = (
                f"{active.log_name} has {size} bytes, {index.covered_bytes} were durable: "
                f"the disk lost offsets up to {index.next_offset - 1}"
            )
            return
        marked = self._files.exists(self._path / FENCE_NAME)
        if size == index.covered_bytes and not marked:
            return
        with closing(self._files.open(path, writable=True)) as handle:
            if marked:
                size = self._cut_at_mark(active, handle, size)
            self._scan(handle, size, active.gaps, index, producers, epochs, records_end)
            if index.covered_bytes < size:
                self._cut(handle, active, index, size)
            # The file is right and durable before the mark goes: a crash in between cuts once more.
            handle.sync()
        if marked:
            self._files.remove(self._path / FENCE_NAME)
            self._files.sync_folder(self._path)

    def _cut_at_mark(self, active: SegmentInfo, handle: FileHandle, size: int) -> int:
        """A failed fsync came before this start: nothing behind the mark is to be believed."""
        mark = decode_fence_mark(self._files.read(self._path / FENCE_NAME))
        if mark is None:
            self._notes.append("the fence mark cannot be read; it is not obeyed")
            return size
        certain = mark.durable_bytes
        if (mark.base_offset, mark.generation) != (active.base_offset, active.generation):
            # A mark of an older segment was left by the roll that made this one: nothing in this
            # one has ever been acknowledged.
            certain = 0 if mark.base_offset < active.base_offset else size
        self._notes.append(
            f"was fenced ({mark.reason}); {max(0, size - certain)} bytes that were never certain "
            f"are cut off behind offset {mark.next_offset - 1}"
        )
        if certain < size:
            handle.truncate(certain)
        return min(size, certain)

    def _scan(
        self,
        handle: FileHandle,
        size: int,
        gaps: bool,
        index: SparseIndex,
        producers: ProducerTable,
        epochs: EpochTable,
        records_end: int,
    ) -> None:
        now_ms = self._context.now_ms()
        start = index.covered_bytes
        found = walk(
            handle.read_at, start, size,
            next_offset=index.next_offset, gaps=gaps, epoch=epochs.last,
        )  # fmt: skip
        try:
            for batch in found:
                if batch.header.leader_epoch != epochs.last:
                    end = index.next_offset if index.covered_bytes else records_end
                    epochs.note(batch.header, end)
                index.add(batch.header)
                if batch.header.producer_id >= 0:
                    producers.note(batch.header, now_ms)
        except BadBatch as bad:
            self._notes.append(
                f"{size - bad.position} bytes behind position {bad.position} of "
                f"{index.base_offset:020d} are no whole batch ({bad.reason}) and are cut off"
            )

    def _cut(self, handle: FileHandle, active: SegmentInfo, index: SparseIndex, size: int) -> None:
        """Take the torn tail off; put it aside if it holds a whole batch, which a tear seldom
        leaves and damage to acknowledged records always does."""
        end = index.covered_bytes
        later = next(find_batches(handle.read_at, end + 1, size, index.next_offset), None)
        if later is not None:
            aside = f"{active.stem}-{end}{CUT_SUFFIX}"
            try:
                # Kept before it is cut. Where it cannot be kept it stays in place, and the log is
                # fenced.
                replace_file(self._files, self._path / aside, handle.read_at(end, size - end))
            except OSError as error:
                self._fence = (
                    f"{size - end} bytes behind position {end} of {active.log_name} are to be cut "
                    f"off and cannot be kept in {aside}: {error}; make room and start again"
                )
                return
            self._damage = (
                f"a whole batch at offset {later.header.base_offset} lay behind the tear; the cut "
                f"bytes are kept in {aside}"
            )
            self._notes.append(self._damage)
        handle.truncate(end)


def create_partition(
    context: RecoveryContext, path: Path, topic: str, topic_id: str, partition: int
) -> Recovered:
    """A new, empty log, durable before it is returned."""
    files = context.files
    files.make_folder(path)
    first = SegmentInfo(0, 0, context.now_ms())
    manifest = Manifest(topic, topic_id, partition, 0, (first,))
    files.create(path / first.log_name).close()
    replace_file(files, path / MANIFEST_NAME, encode_manifest(manifest))
    sync_folders(files, path)
    index = SparseIndex(0, 0, context.interval_bytes)
    return Recovered(
        LogFolder(files, path, manifest, index, context.indexes, context.store), ProducerTable()
    )


def sync_folders(files: Files, path: Path) -> None:
    """Make the names of a partition's files durable, and of the folders above up to `topics`."""
    for folder in (path, path.parent, path.parent.parent):
        files.sync_folder(folder)
