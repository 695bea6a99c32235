"""Which of a partition's segments an object store holds. Edge: indexes are read from the disk."""

from __future__ import annotations

from lakemq.broker_core.api.records.tiered import TieredSegment, TieredSegments
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.segment.manifest import Manifest, RemotePlace, SegmentInfo
from lakemq.plugins.journal.tiering.object_store import object_name


def tiered_between(
    folder: LogFolder, start: int, end: int, high_watermark: int, count_max: int
) -> TieredSegments:
    """The first `count_max` segments with a remote copy that overlap offsets [start, end)."""
    manifest = folder.manifest
    found: list[TieredSegment] = []
    for segment in manifest.segments:
        place = segment.remote
        if place is None or segment.next_offset <= start or segment.base_offset >= end:
            continue
        if len(found) == count_max:
            break
        found.append(_told(folder, manifest, segment, place, start, end))
    else:
        return TieredSegments(manifest.log_start_offset, high_watermark, tuple(found), False)
    return TieredSegments(manifest.log_start_offset, high_watermark, tuple(found), True)


def _told(
    folder: LogFolder,
    manifest: Manifest,
    segment: SegmentInfo,
    place: RemotePlace,
    start: int,
    end: int,
) -> TieredSegment:
    name = object_name(manifest, segment.log_name)
    first, last = 0, place.size_bytes
    if segment.base_offset < start or segment.next_offset > end:
        # Where the index is not at hand the whole segment is named: a client reads more, and misses
        # nothing.
        index = folder.known_index(segment)
        if index is not None and segment.base_offset < start:
            first = index.position_of(start)
        if index is not None and segment.next_offset > end:
            last = index.position_behind(index.position_of(end - 1))
    return TieredSegment(
        segment.base_offset, segment.next_offset, place.uri.removesuffix(name), name,
        place.position, place.size_bytes, place.crc32c, segment.may_have_gaps, first, last,
    )  # fmt: skip
