"""Retention: which segments a partition no longer has to keep.

Only whole sealed segments go, the oldest first. Their age counts from when they were sealed, so by
the broker's own clock, or, where the topic's `retention_by` says so, from their newest record
(`docs/decisions/0012-retention-by-append-time.md`). Records below the log's start, which an
operator may have moved, are kept by no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakemq.broker_core.api.types import TopicConfig
from lakemq.plugins.journal.segment.manifest import Manifest, SegmentInfo


def ages_from_ms(segment: SegmentInfo, retention_by: str) -> int:
    """When a sealed segment's age begins. No record of it was appended later than it was sealed, so
    a timestamp behind that is of the future, and does not count; nor does one before 1970."""
    newest_ms = segment.max_timestamp_ms
    if retention_by == "record" and 0 <= newest_ms < segment.sealed_ms:
        return newest_ms
    return segment.sealed_ms


def expired(
    segments: Sequence[SegmentInfo],
    active_bytes: int,
    now_ms: int,
    *,
    bytes_max: int | None,
    age_max_ms: int | None,
    retention_by: str,
) -> int:
    """How many of the oldest sealed segments go. `None`: no limit."""
    sealed = [segment for segment in segments if segment.sealed]
    total = active_bytes + sum(segment.size_bytes for segment in sealed)
    count = 0
    for segment in sealed:
        too_large = bytes_max is not None and total > bytes_max
        too_old = (
            age_max_ms is not None and now_ms - ages_from_ms(segment, retention_by) > age_max_ms
        )
        # The first that stays ends it: a log has one start and no holes.
        if not too_large and not too_old:
            break
        total -= segment.size_bytes
        count += 1
    return count


def retained(
    manifest: Manifest,
    active_bytes: int,
    config: TopicConfig,
    now_ms: int,
    offset_end: int,
    *,
    by_policy: bool = True,
) -> tuple[Manifest, Sequence[SegmentInfo]]:
    """(manifest without what has expired, what has expired), nothing at or behind `offset_end`;
    topics that only compact, and logs that do not go `by_policy`, keep all from the log's start
    on."""
    count = below_start(manifest)
    if by_policy and "delete" in config.cleanup.split(","):
        expired_count = expired(
            manifest.segments, active_bytes, now_ms,
            bytes_max=config.retention_bytes, age_max_ms=config.retention_ms,
            retention_by=config.retention_by,
        )  # fmt: skip
        count = max(count, expired_count)
    # A start reads what is behind `offset_end` to find producers: it stays.
    while count and manifest.segments[count - 1].next_offset > offset_end:
        count -= 1
    return without_oldest(manifest, count), manifest.segments[:count]


def below_start(manifest: Manifest) -> int:
    """How many of the oldest segments hold nothing that may still be read."""
    count = 0
    for segment in manifest.segments:
        if not segment.sealed or segment.next_offset > manifest.log_start_offset:
            break
        count += 1
    return count


def starting_at(
    manifest: Manifest, offset: int, offset_end: int
) -> tuple[Manifest, Sequence[SegmentInfo]]:
    """(manifest whose log starts at `offset` or behind, segments that go with what is below it);
    none goes at or behind `offset_end`."""
    moved = replace(manifest, log_start_offset=max(manifest.log_start_offset, offset))
    count = below_start(moved)
    while count and manifest.segments[count - 1].next_offset > offset_end:
        count -= 1
    return without_oldest(moved, count), manifest.segments[:count]


def without_oldest(manifest: Manifest, count: int) -> Manifest:
    """The manifest without its first `count` segments; the log starts behind them."""
    if not count:
        return manifest
    kept = manifest.segments[count:]
    start = max(manifest.log_start_offset, kept[0].base_offset)
    gone = manifest.segments[:count]
    return replace(manifest, log_start_offset=start, segments=kept).discarding(gone)
