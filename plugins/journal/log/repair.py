"""A whole segment in place of a damaged one: good batches from its file, the others from another
replica, whose committed records are the same.

It is written aside, made durable and put in place by one change of the manifest, as compaction does
it. A crash before that leaves a stray file, which the next start removes, and the damaged segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from lakemq.broker_core.api.errors import CorruptLog, Unavailable
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.replica_ports import FetchCommitted
from lakemq.broker_core.api.types import Offset
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.segment.damage import Damage, readable, survey
from lakemq.plugins.journal.segment.files import NEW_SUFFIX, FileHandle
from lakemq.plugins.journal.segment.index import SparseIndex
from lakemq.plugins.journal.segment.manifest import SegmentInfo
from lakemq.plugins.journal.segment.walk import BadBatch, BatchAt, walk

_STEP_BYTES: Final = 4 * 1024 * 1024
"""A reader thread copies so much in one go."""
T = TypeVar("T")
_REPAIR_SUFFIX: Final = ".repair" + NEW_SUFFIX


class Missing(NamedTuple):
    """Offsets that are to be had elsewhere."""

    offset: Offset
    end: Offset
    """The first one that is not missing."""


class SegmentRepair:
    """Of one sealed segment with a local file. Blocking; one thread at a time."""

    def __init__(self, folder: LogFolder, segment: SegmentInfo, *, gaps: bool) -> None:
        """`gaps`: offsets may be missing between batches, as compaction leaves them. OSError."""
        self.whole = False
        """Whether there is nothing left to be copied or added."""
        self._folder = folder
        self._segment = segment
        self._gaps = gaps
        self._gapped = False
        self._new = replace(segment, generation=segment.generation + 1)
        self._next_offset = segment.base_offset
        self._epoch = -1
        self._index = SparseIndex(
            segment.base_offset, self._new.generation, folder.active_index.interval_bytes
        )
        self._old: FileHandle | None = None
        index = folder.known_index(segment)
        with suppress(FileNotFoundError):
            self._old = folder.files.open(folder.path / segment.log_name)
        self._found = self._survey(() if index is None else index.positions)
        self._stray = folder.path / (self._new.log_name + _REPAIR_SUFFIX)
        self._handle = folder.files.create(self._stray)

    def _survey(self, known: Sequence[int]) -> Iterator[BatchAt | Damage]:
        size, base = self._segment.size_bytes, self._segment.base_offset
        if self._old is None:
            return iter([Damage(0, size, base, -1, "its file is missing")])
        return survey(readable(self._old.read_at), 0, size, base, known)

    def copy(self) -> Missing | None:
        """Copy good batches: up to the next damage, which is returned and then to be added, or some
        of them, or all that are left (`whole`). Raises CorruptLog, OSError."""
        copied: list[BatchAt] = []
        size = 0
        missing = None
        for found in self._found:
            if isinstance(found, Damage):
                behind = found.next_offset if found.next_offset >= 0 else self._segment.next_offset
                missing = Missing(self._end_of(copied), Offset(behind))
                break
            copied.append(found)
            size += len(found.data)
            if size >= _STEP_BYTES:
                break
        else:
            self.whole = True
        self._write(copied)
        return missing

    def _end_of(self, copied: list[BatchAt]) -> Offset:
        return Offset(copied[-1].header.last_offset + 1 if copied else self._next_offset)

    def add(self, batches: bytes, end: Offset) -> None:
        """Append whole batches of another replica, which has nothing more below `end`. Raises
        CorruptLog where they do not fit, OSError."""
        try:
            self._write(list(walk(lambda at, size: batches[at : at + size], 0, len(batches))))
        except BadBatch as bad:
            raise CorruptLog(f"what another replica has is damaged: {bad}") from None
        if self._next_offset > end:
            raise CorruptLog(f"batches up to offset {self._next_offset} in place of {end}")
        if self._next_offset < end:
            self._skip_to(end)

    def _write(self, batches: list[BatchAt]) -> None:
        for batch in batches:
            header = batch.header
            if not self._follows(header):
                raise CorruptLog(
                    f"a batch of offset {header.base_offset}, epoch {header.leader_epoch} behind "
                    f"offset {self._next_offset - 1}, epoch {self._epoch}"
                )
            if header.base_offset > self._next_offset:
                self._skip_to(header.base_offset)
            self._handle.write_at(self._index.covered_bytes, [batch.data])
            self._index.add(header)
            self._next_offset, self._epoch = header.last_offset + 1, header.leader_epoch

    def _follows(self, header: BatchHeader) -> bool:
        # A log that starts within a batch has all of that batch.
        begins = self._gaps and self._epoch < 0 and header.last_offset >= self._next_offset
        ascends = header.base_offset >= self._next_offset or begins
        return ascends and header.leader_epoch >= self._epoch

    def _skip_to(self, offset: int) -> None:
        if not self._gaps:
            raise CorruptLog(f"offsets {self._next_offset}..{offset - 1} are nowhere")
        self._next_offset, self._gapped = offset, True

    def finish(self) -> bool:
        """Put the new file in the place of the old one, durably; False: the log has changed
        meanwhile, and does not need it. Raises CorruptLog, OSError, StorageFenced."""
        old, size = self._segment, self._index.covered_bytes
        # Replicas have the same bytes as long as neither has been compacted.
        if not self._gapped and not old.may_have_gaps and size != old.size_bytes:
            raise CorruptLog(
                f"{old.log_name} had {old.size_bytes} bytes, put together it has {size}"
            )
        if self._next_offset > old.next_offset:
            raise CorruptLog(f"{old.log_name} ends at {old.next_offset}, not {self._next_offset}")
        self._handle.sync()
        self._close()
        gaps = old.gaps or (self._gapped and not old.compacted)
        new = replace(self._new, size_bytes=size, gaps=gaps)
        return self._folder.put_in_place([old], new, self._stray, self._index)

    def abandon(self) -> None:
        """Leave the log as it is."""
        self._close()
        with suppress(OSError):  # The next start removes it.
            self._folder.files.remove(self._stray)

    def _close(self) -> None:
        self._handle.close()
        if self._old is not None:
            self._old.close()
            self._old = None


async def repair_segment(
    context: LogContext, folder: LogFolder, segment: SegmentInfo, fetch: FetchCommitted, *,
    gaps: bool,
) -> bool:  # fmt: skip
    """Put a sealed segment together again; False: the log has changed meanwhile, and does not need
    it. Raises CorruptLog, what `fetch` raises, Unavailable (try again), StorageFenced."""
    step = partial(_in_thread, context)
    try:
        repair = await step(lambda: SegmentRepair(folder, segment, gaps=gaps))
        try:
            while not repair.whole:
                missing = await step(repair.copy)
                while missing is not None and missing.offset < missing.end:
                    batches, end = await fetch(*missing)
                    if not missing.offset < end <= missing.end:
                        raise CorruptLog(f"offsets up to {end} in answer to {missing}")
                    await step(partial(repair.add, batches, end))
                    missing = Missing(end, missing.end)
            done = await step(repair.finish)
        except BaseException:
            await step(repair.abandon)
            raise
    except OSError as error:
        raise Unavailable(f"{segment.log_name} is not repaired yet: {error}") from None
    context.counters.repaired_segments += done
    return done


async def _in_thread(context: LogContext, work: Callable[[], T]) -> T:
    """The thread is waited for also by who is cancelled: it may write to a file that is open."""
    future = context.loop.run_in_executor(context.readers, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
