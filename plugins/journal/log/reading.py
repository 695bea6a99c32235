"""Reading a partition's segments, on a reader thread. Readers never wait for the writer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing

from lakemq.broker_core.api.errors import CorruptLog, OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.stored import open_stored
from lakemq.plugins.journal.log.folder import LogFolder, describe_missing
from lakemq.plugins.journal.segment.manifest import Manifest, SegmentInfo
from lakemq.plugins.journal.segment.walk import BadBatch, Slice, cut_slice, walk
from lakemq.plugins.journal.tiering.object_store import ObjectMissing, StoreError
from lakemq.plugins.journal.tiering.remote_segment import ForeignObject

_LOOKS_MAX = 100
"""How often a reader looks again when retention or compaction removed the file it chose."""


def read_slice(folder: LogFolder, offset: int, offset_end: int, bytes_max: int) -> Slice:
    """Whole batches from the one that holds `offset`, none at or behind `offset_end`.

    Raises OffsetOutOfRange (retention was faster), CorruptLog.
    """
    for _ in range(_LOOKS_MAX):
        manifest = folder.manifest
        if offset < manifest.log_start_offset:
            raise OffsetOutOfRange(f"offset {offset} is below {manifest.log_start_offset}")
        try:
            for segment in _segments_from(manifest.segments, offset):
                cut = _read_segment(folder, segment, offset, offset_end, bytes_max)
                if cut.data:
                    return cut
            return Slice(b"", offset_end)
        except FileNotFoundError:
            if folder.manifest is manifest:
                # The manifest still names it: it is lost, not compacted or deleted meanwhile.
                missing = _segment_at(manifest.segments, offset)
                folder.note_missing(missing)
                raise CorruptLog(describe_missing(missing)) from None
        except (ObjectMissing, ForeignObject) as error:
            gone = _segment_at(manifest.segments, offset)
            raise CorruptLog(f"{describe_missing(gone)}: {error}") from None
        except StoreError as error:
            raise Unavailable(f"offset {offset} is in the object store: {error}") from None
    raise CorruptLog(f"offset {offset}: files vanish faster than they can be read")


def _segment_at(segments: tuple[SegmentInfo, ...], offset: int) -> SegmentInfo:
    return segments[max(0, bisect_right(segments, offset, key=lambda s: s.base_offset) - 1)]


def _segments_from(segments: tuple[SegmentInfo, ...], offset: int) -> Iterator[SegmentInfo]:
    first = max(0, bisect_right(segments, offset, key=lambda s: s.base_offset) - 1)
    yield from segments[first:]


def _read_segment(
    folder: LogFolder, segment: SegmentInfo, offset: int, offset_end: int, bytes_max: int
) -> Slice:
    end = folder.covered_bytes(segment)
    if not end:
        return Slice(b"", -1)
    with closing(folder.open_segment(segment)) as handle:
        index = folder.index_of(segment, handle.read_at)
        start = index.position_of(offset)
        skip = index.position_behind(start) - start
        while True:
            try:
                return cut_slice(
                    handle.read_at, start, end, offset=offset, offset_end=offset_end,
                    bytes_max=bytes_max, skip=skip,
                )  # fmt: skip
            except BadBatch as bad:
                damage = folder.damage_at(segment, index, bad, handle)
                if not 0 <= damage.next_offset <= offset:
                    raise folder.corrupt(segment, damage) from None
                start, skip = damage.end_position, 0  # What is asked for lies behind the damage.


def find_timestamp(folder: LogFolder, timestamp_ms: int, offset_end: int) -> int:
    """First offset below `offset_end` whose record is not older; `offset_end` if there is none.

    Raises CorruptLog when damage lies where the answer would, Unavailable.
    """
    for _ in range(_LOOKS_MAX):
        manifest = folder.manifest
        try:
            return _find_timestamp(folder, manifest, timestamp_ms, offset_end)
        except FileNotFoundError as error:
            if folder.manifest is manifest:
                raise CorruptLog(f"a segment is missing: {error}") from None
        except (ObjectMissing, ForeignObject) as error:
            raise CorruptLog(f"the object of a segment is missing: {error}") from None
        except StoreError as error:
            raise Unavailable(f"the object store: {error}") from None
    raise CorruptLog(f"timestamp {timestamp_ms}: files vanish faster than they can be read")


def _find_timestamp(
    folder: LogFolder, manifest: Manifest, timestamp_ms: int, offset_end: int
) -> int:
    for segment in manifest.segments:
        if segment.sealed and segment.max_timestamp_ms < timestamp_ms:
            continue
        end = folder.covered_bytes(segment)
        if not end:
            continue
        with closing(folder.open_segment(segment)) as handle:
            index = folder.index_of(segment, handle.read_at)
            start = index.position_of_time(timestamp_ms)
            try:
                for batch in walk(handle.read_at, start, end):
                    if batch.header.base_offset >= offset_end:
                        return offset_end
                    if batch.header.max_timestamp_ms >= timestamp_ms:
                        opened = open_stored(batch.data, manifest.topic, manifest.partition)
                        if opened is not None:
                            found = _first_not_older(opened, timestamp_ms)
                            return max(found, manifest.log_start_offset)
            except BadBatch as bad:
                damage = folder.damage_at(segment, index, bad, handle)
                raise folder.corrupt(segment, damage) from None
    return offset_end


def _first_not_older(batch: RecordBatch, timestamp_ms: int) -> int:
    for offset, time in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
        if time >= timestamp_ms:
            return offset
    return batch.header.last_offset + 1  # Not reached while the header tells the truth.
