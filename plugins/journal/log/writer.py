"""Writing a partition's log, on a flush thread: one write and one fdatasync per flush.

One flush of a partition runs at a time. What a flush has synced is entered into the index (which
makes it readable) and into the producers; what it could not write is as if it had never come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    LakeMQError,
    StorageFenced,
    StorageFull,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import BatchHeader, recompress
from lakemq.broker_core.api.types import Columns, Compression, TopicConfig
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.segment.checkpoint import Checkpoint, encode_checkpoint
from lakemq.plugins.journal.segment.epochs import EpochTable
from lakemq.plugins.journal.segment.fence_mark import FENCE_NAME, FenceMark, encode_fence_mark
from lakemq.plugins.journal.segment.files import NO_DESCRIPTOR, NO_SPACE, FileHandle, replace_file
from lakemq.plugins.journal.segment.index import SparseIndex
from lakemq.plugins.journal.segment.manifest import CHECKPOINT_NAME, SegmentInfo
from lakemq.plugins.journal.segment.producers import ProducerTable

_log = logging.getLogger(__name__)
_CODECS: Final = {
    "none": Compression.NONE,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class Stamped(NamedTuple):
    """A batch with its place in the log. No data: nothing to write, only to wait for."""

    header: BatchHeader
    data: bytes
    columns: Columns | None = None
    """Its records, for taps; None: taps have to decode `data`."""


class FlushOutcome(NamedTuple):
    """What a flush reached: the first `durable` batches, as they were written."""

    durable: int
    batches: Sequence[Stamped]
    error: LakeMQError | None


@dataclass
class _Run:
    """One flush under way."""

    batches: Sequence[Stamped]
    now_ms: int
    written: int = 0
    """Batches written, from the first."""
    durable: int = 0
    """Batches of them that are synced and entered into the index."""
    unsynced: bool = False
    error: LakeMQError | None = None


class LogWriter:
    """Appends to the active segment of one partition and rolls it."""

    def __init__(
        self,
        folder: LogFolder,
        config: TopicConfig,
        producers: ProducerTable,
        epochs: EpochTable,
        checkpoint_interval_bytes: int,
        producers_max: int,
        checkpoint_offset: int,
        records_end: int,
        high_watermark: Callable[[], int],
    ) -> None:
        self.folder = folder
        self.config = config
        """May be replaced at any time; obeyed from the next flush on."""
        self.producers = producers
        """As of the last durable batch."""
        self.epochs = epochs
        """As of the last durable batch."""
        self.leads_epoch = -1
        """Epoch in which this replica leads; -1: it follows. A follower's segments roll where the
        leader's did, and there alone: so sealed ones are equal byte by byte on all replicas."""
        self.seals_damaged = False
        """Other replicas have what is damaged here."""
        self._rolls: deque[int] = deque()
        """Offsets at which the leader's segments began, ascending: added on the event loop, removed
        here."""
        self._high_watermark = high_watermark
        self._before_active = records_end
        """Offset behind the last record of the segments before the active one."""
        self.producers_seen_before_ms = 0
        self.producers_max = producers_max
        self._checkpoint_interval_bytes = checkpoint_interval_bytes
        self._checkpoint_at = folder.active_index.covered_bytes
        self.checkpoint_offset = checkpoint_offset
        """Base offset of the segment that the durable checkpoint names: what is older may be
        compacted or deleted, for a start needs it no more to find out producers."""
        self._handle: FileHandle | None = None
        self._run = _Run((), 0)

    def write(self, batches: Sequence[Stamped], now_ms: int) -> None:
        """First half of a flush: write what fits into the active segment. Never raises an
        Exception; `sync` must follow and tells what came of it."""
        self._run = run = _Run(batches, now_ms)
        if not batches:
            return  # A flush for housekeeping alone must not seal what has room.
        # Here rather than at the append, which runs on the event loop.
        self._attempt(run, self._compress)
        self._attempt(run, self._write_some)

    def sync(self) -> FlushOutcome:
        """Second half: make it durable, and write and sync the rest where a segment was full.

        Never raises an Exception. What is durable is a prefix of the batches.
        """
        run = self._run
        while True:
            self._attempt(run, self._sync_written)
            if run.error is not None or run.durable == len(run.batches):
                self._run = _Run((), 0)
                return FlushOutcome(run.durable, run.batches, run.error)
            self._attempt(run, self._write_some)

    def _attempt(self, run: _Run, step: Callable[[_Run], None]) -> None:
        if run.error is not None:
            return
        try:
            step(run)
        except LakeMQError as error:
            run.error = error
        except Exception as error:  # Whatever it was: nothing more may be written behind it.
            _log.exception("flush of %s failed", self.folder.path)
            run.error = self.fenced(f"flush failed: {error!r}")

    @property
    def compresses(self) -> bool:
        """Whether batches may lie here otherwise than they came."""
        return self.config.compression in _CODECS

    def _compress(self, run: _Run) -> None:
        codec = _CODECS.get(self.config.compression)
        if codec is not None:
            run.batches = [self._recompressed(batch, codec) for batch in run.batches]

    def _recompressed(self, batch: Stamped, codec: Compression) -> Stamped:
        """The batch in the topic's codec. It stays as it is when its body can't be decompressed,
        for the CRC says that its producer made it so, or would be larger than the topic allows;
        and when it is a copy of another leader's."""
        header = batch.header
        if (
            not batch.data
            or header.leader_epoch != self.leads_epoch
            or header.compression is codec
            or header.raw_body_bytes > self.config.batch_max_bytes
        ):
            return batch
        try:
            return Stamped(*recompress(batch.data, header, codec), batch.columns)
        except CorruptBatch:
            return batch

    def _fitting(self, batches: Sequence[Stamped], first: int, roll: int) -> int:
        """How many batches from `first` on the active segment takes, the next one beginning at
        offset `roll`; -1: not known."""
        count = len(batches) - first
        if self.leads_epoch >= 0:
            room = self.config.segment_max_bytes - self.folder.active_index.covered_bytes
            for at in range(first, len(batches)):
                room -= len(batches[at].data)
                if room < 0:
                    count = at - first
                    break
        if roll >= 0:
            for at in range(first, first + count):
                if batches[at].data and batches[at].header.base_offset >= roll:
                    return at - first
        return count

    def roll_at(self, offset: int) -> None:
        """The leader's segment begins at `offset`: the batch from there on begins one here. On the
        event loop."""
        if not self._rolls or offset > self._rolls[-1]:
            self._rolls.append(offset)

    def records_end(self) -> int:
        """Offset behind the last durable record: lower than where an empty active segment begins,
        if the leader's compaction left a gap before it."""
        index = self.folder.active_index
        return index.next_offset if index.covered_bytes else self._before_active

    def _next_roll(self) -> int:
        """Where the active segment is to end; -1: not known. A segment that has gone on beyond that
        offset is not parted any more."""
        index, rolls = self.folder.active_index, self._rolls
        while rolls and (rolls[0] <= index.base_offset or rolls[0] < index.next_offset):
            rolls.popleft()
        return rolls[0] if rolls else -1

    def is_old(self, now_ms: int) -> bool:
        """Whether the active segment has something in it and is to be sealed for its age, or for
        damage in it that only a sealed segment is mended of."""
        folder, active = self.folder, self.folder.manifest.segments[-1]
        ends = now_ms - active.created_ms >= self.config.segment_age_max_ms or (
            self.seals_damaged and active.log_name in folder.damages
        )
        return ends and folder.active_index.covered_bytes > 0 and self.leads_epoch >= 0

    def _write_some(self, run: _Run) -> None:
        """Write the batches that the active segment takes, in a new one if it takes none."""
        roll = self._next_roll() if self._rolls else -1
        count = self._fitting(run.batches, run.durable, roll)
        if count == 0 or self.is_old(run.now_ms):
            first = run.batches[run.durable].header.base_offset
            self.roll(run.now_ms, roll if 0 <= roll <= first else -1)
            roll = self._next_roll() if self._rolls else -1
            # A batch that is larger than a segment gets a segment of its own.
            count = max(1, self._fitting(run.batches, run.durable, roll))
        run.written = run.durable + count
        if self.leads_epoch < 0:
            self._mark_gaps(run)
        buffers = [batch.data for batch in run.batches[run.durable : run.written] if batch.data]
        run.unsynced = bool(buffers)
        if not buffers:
            return
        position = self.folder.active_index.covered_bytes
        try:
            # By position rather than O_APPEND: the index says where the log ends, not the file.
            self._open().write_at(position, buffers)
        except OSError as error:
            raise self._unwritten(position, error) from None

    def _mark_gaps(self, run: _Run) -> None:
        """Have the manifest say so before the active segment holds offsets with a gap: recovery
        takes any other gap for the end of the log. Raises StorageFull, StorageFenced."""
        folder, expected = self.folder, self.folder.active_index.next_offset
        for header, data, _ in run.batches[run.durable : run.written]:
            if data and header.base_offset != expected:
                break
            expected = header.last_offset + 1 if data else expected
        else:
            return
        try:
            folder.mark_gaps()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFull(f"no space left to write the manifest of {folder.path}") from None
            raise self.fenced(f"the manifest could not be written: {error}") from None
        except StorageFenced as error:
            raise self.fenced(str(error)) from None

    def _sync_written(self, run: _Run) -> None:
        if run.unsynced:
            try:
                self._open().sync()
            except OSError as error:
                # Never tried again: after a failed fsync Linux takes the pages for clean, so a
                # second one would succeed without having written them (Rebello et al., "Can
                # Applications Recover from fsync Failures?", USENIX ATC 2020).
                raise self.fenced(f"fsync failed: {error}") from None
        index, epochs = self.folder.active_index, self.epochs
        # Only now: the index bounds what readers see, and the producers here are those that the
        # next checkpoint holds.
        for header, data, _ in run.batches[run.durable : run.written]:
            if data:
                if header.leader_epoch != epochs.last:
                    epochs.note(header, self.records_end())
                index.add(header)
                if header.producer_id >= 0:
                    self.producers.note(header, run.now_ms)
        run.durable = run.written
        if index.covered_bytes - self._checkpoint_at >= self._checkpoint_interval_bytes:
            self.checkpoint()

    def _open(self) -> FileHandle:
        if self._handle is None:
            active = self.folder.manifest.segments[-1]
            self._handle = self.folder.files.open(self.folder.path / active.log_name, writable=True)
        return self._handle

    def _unwritten(self, position: int, error: OSError) -> LakeMQError:
        """Take back a write that failed; what it left behind must never be read as a batch."""
        if error.errno in NO_DESCRIPTOR:
            return _no_descriptor(self.folder, error)
        if error.errno not in NO_SPACE:
            return self.fenced(f"write failed: {error}")
        # A full disk is not the end, if the torn write can be taken back.
        try:
            self._open().truncate(position)
        except OSError as second:
            return self.fenced(f"no space, and truncating back to {position} failed: {second}")
        return StorageFull(f"no space left to append to {self.folder.path}")

    def fenced(self, reason: str) -> StorageFenced:
        """Fail-stop: leave a mark that tells the next start where certainty ends."""
        index = self.folder.active_index
        mark = FenceMark(
            index.base_offset, index.generation, index.covered_bytes, index.next_offset, reason
        )
        try:
            replace_file(self.folder.files, self.folder.path / FENCE_NAME, encode_fence_mark(mark))
            self.folder.files.sync_folder(self.folder.path)
        except OSError as error:
            # Without a mark the next start has only the CRCs to go by, as after a crash.
            _log.error("%s: the fence mark could not be written: %s", self.folder.path, error)
        _log.error("%s is fenced: %s", self.folder.path, reason)
        return StorageFenced(f"{self.folder.path}: {reason}; nothing is appended until a restart")

    def run_housekeeping(self, now_ms: int) -> None:
        """What `JournalLog.tick` saw was due. Raises StorageFull, Unavailable, StorageFenced."""
        if self.is_old(now_ms):
            self.roll(now_ms)
        elif self.wants_checkpoint():
            self.checkpoint()

    def roll(self, now_ms: int, at: int = -1) -> None:
        """Seal the active segment and begin the next, at offset `at` if that lies behind the log's
        end. Raises StorageFull, StorageFenced, and Unavailable when nothing could be opened."""
        folder = self.folder
        index = folder.active_index
        if not index.covered_bytes and at <= index.base_offset:
            return
        fresh = SegmentInfo(max(index.next_offset, at), 0, now_ms)
        try:
            # The order is crash-safe: everything in the old segment is synced (`covered_bytes`
            # grows only behind a sync); the new file and the index exist before the manifest names
            # the one and seals the other; a crash before that leaves strays, which recovery
            # removes.
            handle = folder.files.create(folder.path / fresh.log_name)
            try:
                folder.keep_index(index)
                self._commit_roll(fresh, now_ms)
            except BaseException:
                handle.close()
                raise
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFull(f"no space left to roll {folder.path}") from None
            if error.errno in NO_DESCRIPTOR:
                raise _no_descriptor(folder, error) from None
            raise self.fenced(f"roll failed: {error}") from None
        except StorageFenced as error:
            raise self.fenced(str(error)) from None
        self.close()
        self._handle = handle
        self._before_active = index.next_offset if index.covered_bytes else self._before_active
        # It names the new segment, so that a start reads no sealed one to find producers.
        self.checkpoint()

    def _commit_roll(self, fresh: SegmentInfo, now_ms: int) -> None:
        folder, index = self.folder, self.folder.active_index
        with folder.changing:
            *sealed, active = folder.manifest.segments
            done = replace(
                active,
                next_offset=fresh.base_offset,
                size_bytes=index.covered_bytes,
                max_timestamp_ms=index.max_timestamp_ms,
                sealed_ms=now_ms,
            )
            self.epochs.forget_before(folder.manifest.log_start_offset)
            manifest = folder.manifest.with_segments(*sealed, done, fresh)
            folder.commit(replace(manifest, epochs=self.epochs.starts()))
            # Behind the commit: a reader in between takes the new segment for an empty one
            # (`LogFolder.covered_bytes`).
            folder.active_index = SparseIndex(
                fresh.base_offset, fresh.generation, index.interval_bytes
            )

    def wants_checkpoint(self) -> bool:
        """Whether old segments are kept only because no newer checkpoint is durable."""
        return self.checkpoint_offset < self.folder.active_index.base_offset

    def checkpoint(self) -> None:
        """Write down how far the log is durable. A hint: failing to is no failure of the log."""
        index = self.folder.active_index
        # Also if it fails: the next attempt is due an interval later, not at every flush.
        self._checkpoint_at = index.covered_bytes
        self.producers.expire(self.producers_seen_before_ms, self.producers_max)
        try:
            self.write_checkpoint(index, self.producers, self.epochs)
        except OSError as error:
            _log.warning("%s: no checkpoint written: %s", self.folder.path, error)

    def write_checkpoint(
        self, index: SparseIndex, producers: ProducerTable, epochs: EpochTable
    ) -> None:
        """Write a checkpoint durably. OSError: an older one may be there, or this one."""
        committed = min(self._high_watermark(), index.next_offset)
        data = encode_checkpoint(Checkpoint(index, producers, epochs, committed))
        replace_file(self.folder.files, self.folder.path / CHECKPOINT_NAME, data)
        self.folder.files.sync_folder(self.folder.path)
        # Not before its name is durable: from here on older segments may be deleted.
        self.checkpoint_offset = index.base_offset

    def restart(self, producers: ProducerTable, epochs: EpochTable) -> None:
        """Go on behind a cut: the folder's active index ends there. No flush is under way."""
        self.producers, self.epochs = producers, epochs
        self._before_active = self.folder.records_end()
        self._checkpoint_at = self.folder.active_index.covered_bytes
        self._rolls.clear()

    def close(self) -> None:
        """Close the active segment's file; the next flush opens it again."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.close()


def _no_descriptor(folder: LogFolder, error: OSError) -> Unavailable:
    return Unavailable(f"{folder.path} is not written to now: {error.strerror}")
