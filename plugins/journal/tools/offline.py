"""Looking at a journal's folder without opening it: what `verify`, `dump` and `stats` find.

Objects of tiered segments are read too, where the caller opens their store. Only reads; a node may
be running on the same folder, and then what it is writing meanwhile may show as a torn end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.plugins.journal.log.folder import describe_damage, describe_missing
from lakemq.plugins.journal.log.recovery import CUT_SUFFIX
from lakemq.plugins.journal.segment.checkpoint import BadCheckpoint, Checkpoint, decode_checkpoint
from lakemq.plugins.journal.segment.damage import Damage, survey
from lakemq.plugins.journal.segment.fence_mark import FENCE_NAME
from lakemq.plugins.journal.segment.files import Files
from lakemq.plugins.journal.segment.index import BadIndex, SparseIndex, decode_index
from lakemq.plugins.journal.segment.manifest import (
    CHECKPOINT_NAME,
    MANIFEST_NAME,
    BadManifest,
    Manifest,
    RemotePlace,
    SegmentInfo,
    decode_manifest,
    segment_of,
)
from lakemq.plugins.journal.segment.walk import CHUNK_BYTES, BatchAt, Read
from lakemq.plugins.journal.storage import TOPICS
from lakemq.plugins.journal.tiering.object_store import ObjectStore, StoreError, object_name
from lakemq.plugins.journal.tiering.remote_segment import RemoteSegment, kept_sums, sums_of

OpenStore = Callable[[str], ObjectStore]
"""The store whose objects' URIs begin so. Raises ConfigError."""

ERROR: Final = "error"
"""Records are lost or cannot be read."""
WARNING: Final = "warning"
"""Not as it should be, but nothing is lost: the next start puts it right."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or notable in a folder."""

    severity: str
    partition: Path
    message: str


@dataclass
class PartitionReport:
    """What there is of one partition."""

    path: Path
    manifest: Manifest | None = None
    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    batches: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    """Bodies when decompressed, and headers."""
    end_offset: int = 0
    last_epoch: int = -1
    """Leader epoch of the last batch."""
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    codecs: Counter[str] = field(default_factory=Counter)
    producers: set[int] = field(default_factory=set)

    def take(self, header: BatchHeader) -> None:
        """Count one whole batch."""
        self.records += header.record_count
        self.batches += 1
        self.bytes += header.total_bytes
        self.raw_bytes += header.raw_body_bytes + header.total_bytes - header.body_bytes
        self.codecs[header.compression.name.lower()] += 1
        self.end_offset = max(self.end_offset, header.last_offset + 1)
        self.last_epoch = header.leader_epoch
        if header.producer_id >= 0:
            self.producers.add(header.producer_id)
        oldest, newest = self.min_timestamp_ms, self.max_timestamp_ms
        base, top = header.base_timestamp_ms, header.max_timestamp_ms
        self.min_timestamp_ms = base if oldest is None else min(oldest, base)
        self.max_timestamp_ms = top if newest is None else max(newest, top)


def partition_folders(files: Files, data_dir: Path) -> list[Path]:
    """Folders of all partitions below a node's data folder, or below the journal's own."""
    for root in (data_dir, data_dir / "journal"):
        topics = root / TOPICS
        if files.exists(topics):
            return [
                topics / topic_id / name
                for topic_id in files.names(topics)
                for name in sorted(filter(str.isdecimal, files.names(topics / topic_id)), key=int)
            ]
    raise FileNotFoundError(f"{data_dir}: no journal here: neither topics/ nor journal/topics/")


class PartitionCheck:
    """Reads one partition, every byte of it; with `open_store` also what lies in object stores."""

    def __init__(self, files: Files, path: Path, open_store: OpenStore | None = None) -> None:
        self._open_store = open_store
        self._files = files
        self._path = path
        self._report = PartitionReport(path)
        self._names = set(files.names(path))
        self._report.manifest = self._manifest()

    @property
    def topic(self) -> str:
        """Its name; empty without a manifest that can be read."""
        return self._report.manifest.topic if self._report.manifest else ""

    def run(self) -> PartitionReport:
        """Check the files of the partition."""
        report, manifest = self._report, self._report.manifest
        if manifest is None:
            return report
        report.end_offset = manifest.log_start_offset
        self._whose(manifest)
        for segment in manifest.segments:
            if segment.local:
                self._segment(segment)
            if segment.remote is not None and self._open_store is not None:
                self._remote(manifest, segment, segment.remote, self._open_store)
            report.end_offset = max(report.end_offset, segment.next_offset)
        self._strays(manifest)
        return report

    def _found(self, severity: str, message: str) -> None:
        self._report.findings.append(Finding(severity, self._path, message))

    def _manifest(self) -> Manifest | None:
        if MANIFEST_NAME not in self._names:
            logs = any(segment_of(name) for name in self._names)
            self._found(ERROR if logs else WARNING, "there is no manifest")
            return None
        try:
            return decode_manifest(self._files.read(self._path / MANIFEST_NAME))
        except BadManifest as error:
            self._found(ERROR, f"the manifest cannot be read: {error}")
            return None

    def _whose(self, manifest: Manifest) -> None:
        named = (manifest.topic_id, str(manifest.partition))
        if named != (self._path.parent.name, self._path.name):
            self._found(ERROR, f"the manifest is of partition {named[1]} of topic {named[0]}")

    def _remote(
        self, manifest: Manifest, segment: SegmentInfo, place: RemotePlace, open_store: OpenStore
    ) -> None:
        name = object_name(manifest, segment.log_name)
        if not place.uri.endswith(f"/{name}"):
            self._found(ERROR, f"{segment.log_name}: {place.uri} is another segment's object")
            return
        try:
            store = open_store(place.uri.removesuffix(name))
            sums = kept_sums(self._files, self._path, segment, place) or sums_of(store, place)
            handle = RemoteSegment(store, place, sums)
            if segment.local:
                for position in range(0, place.size_bytes, CHUNK_BYTES):
                    handle.read_at(position, CHUNK_BYTES)
            else:
                self._index(segment, self._batches(segment, handle.read_at, place.size_bytes),
                            handle.read_at)  # fmt: skip
        except (StoreError, ConfigError) as error:
            self._found(ERROR, f"{segment.log_name} in the object store: {error}")
            return
        if handle.trouble:
            self._found(ERROR, f"{segment.log_name} in the object store: {handle.trouble}")

    def _segment(self, segment: SegmentInfo) -> None:
        if segment.log_name not in self._names:
            self._found(ERROR, describe_missing(segment))
            return
        with closing(self._files.open(self._path / segment.log_name)) as handle:
            size = segment.size_bytes if segment.sealed else handle.size()
            if handle.size() < size:
                self._found(ERROR, f"{segment.log_name} has {handle.size()} of {size} bytes")
                size = handle.size()
            index = self._batches(segment, handle.read_at, size)
            if segment.sealed:
                self._index(segment, index, handle.read_at)
            else:
                self._checkpoint(segment, size)

    def _batches(self, segment: SegmentInfo, read: Read, size: int) -> SparseIndex:
        """Look at each batch of a segment; the index that it should have."""
        index = SparseIndex(segment.base_offset, segment.generation)
        offset = segment.base_offset
        for found in survey(read, 0, size, offset):
            if isinstance(found, Damage):
                self._damage(segment, found, size)
                continue
            self._batch(segment, found, offset)
            offset = found.header.last_offset + 1
            index.covered_bytes = found.position
            index.add(found.header)
        return index

    def _batch(self, segment: SegmentInfo, batch: BatchAt, offset: int) -> None:
        header = batch.header
        gap = header.base_offset != offset and not segment.may_have_gaps
        if header.base_offset < offset or (gap and not self._report.findings):
            self._found(
                ERROR,
                f"{segment.log_name} position {batch.position}: base offset {header.base_offset}, "
                f"expected {offset}",
            )
        if header.leader_epoch < self._report.last_epoch:
            self._found(
                ERROR,
                f"{segment.log_name} position {batch.position}: epoch {header.leader_epoch} "
                f"behind epoch {self._report.last_epoch}",
            )
        self._report.take(header)

    def _damage(self, segment: SegmentInfo, damage: Damage, size: int) -> None:
        # Only the active segment can be torn: a sealed one was synced whole before the manifest
        # said so.
        torn = not segment.sealed and damage.end_position == size
        end = segment.next_offset if segment.sealed else damage.first_offset + 1
        text = describe_damage(damage, segment, end)
        if torn:
            text = (
                f"{segment.log_name}: {size - damage.position} bytes behind position "
                f"{damage.position} are no whole batch ({damage.reason}); a start cuts them off"
            )
        self._found(WARNING if torn else ERROR, text)

    def _index(self, segment: SegmentInfo, right: SparseIndex, read: Read) -> None:
        """Entries may lie closer or wider apart than ours would: each must lie on a batch."""
        name = segment.index_name
        if name not in self._names:
            self._found(WARNING, f"{name} is missing; it is rebuilt when it is needed")
            return
        try:
            index = decode_index(self._files.read(self._path / name), right.interval_bytes)
        except BadIndex as error:
            self._found(WARNING, f"{name} cannot be read: {error}; it is rebuilt")
            return
        ends = (index.base_offset, index.covered_bytes, index.next_offset)
        if ends[:2] != (segment.base_offset, segment.size_bytes):
            self._found(WARNING, f"{name} is of another segment: {ends}; it is rebuilt")
        elif len(index.times) and not self._entries_hold(segment, index, read):
            self._found(ERROR, f"{name} points to places where no batch begins; delete it")

    def _entries_hold(self, segment: SegmentInfo, index: SparseIndex, read: Read) -> bool:
        wanted = dict(zip(index.positions, index.offsets, strict=True))
        for found in survey(read, 0, segment.size_bytes, segment.base_offset):
            if isinstance(found, BatchAt):
                if wanted.pop(found.position, found.header.base_offset) != (
                    found.header.base_offset
                ):
                    return False
            elif wanted:
                for position in range(found.position, found.end_position):
                    wanted.pop(position, None)
        return not wanted

    def _checkpoint(self, active: SegmentInfo, size: int) -> None:
        if CHECKPOINT_NAME not in self._names:
            return
        try:
            checkpoint = read_checkpoint(self._files, self._path)
        except BadCheckpoint as error:
            self._found(WARNING, f"the checkpoint cannot be read: {error}; a start scans all")
            return
        index = checkpoint.index
        if index.base_offset == active.base_offset and index.covered_bytes > size:
            self._found(
                ERROR,
                f"{active.log_name} has {size} bytes, {index.covered_bytes} were durable: the "
                f"disk lost offsets up to {index.next_offset - 1}",
            )

    def _strays(self, manifest: Manifest) -> None:
        if FENCE_NAME in self._names:
            self._found(WARNING, "was fenced by a failed write; a start cuts what was not certain")
        # A start removes strays, but never what it has cut off: that may be all there is of a
        # record.
        for name in sorted(self._names - manifest.file_names - {FENCE_NAME}):
            if name.endswith(CUT_SUFFIX):
                self._found(WARNING, f"{name} holds bytes that a recovery cut off")
            else:
                self._found(WARNING, f"{name} does not belong to the log")


def read_checkpoint(files: Files, path: Path) -> Checkpoint:
    """The checkpoint of a partition's folder. BadCheckpoint, OSError."""
    return decode_checkpoint(files.read(path / CHECKPOINT_NAME), 1)


def read_segments(files: Files, path: Path, first_offset: int) -> Iterator[BatchAt | Damage]:
    """What a segment file, or all local segments of a partition's folder, hold from an offset."""
    if path.suffix == ".log":
        key = segment_of(path.name)
        sources = [(path, 0 if key is None else key[0], -1)]
    else:
        manifest = decode_manifest(files.read(path / MANIFEST_NAME))
        sources = [
            (path / segment.log_name, segment.base_offset, segment.size_bytes or -1)
            for segment in manifest.segments
            if segment.local and not 0 <= segment.next_offset <= first_offset
        ]
    for source, base_offset, size in sources:
        with closing(files.open(source)) as handle:
            end = handle.size() if size < 0 else size
            for found in survey(handle.read_at, 0, end, base_offset):
                if isinstance(found, Damage) or found.header.last_offset >= first_offset:
                    yield found
