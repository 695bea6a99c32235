"""Compaction by key: what is kept, and how batches look without the rest.

Of every key the record with the highest offset is kept. A record with a null value (tombstone)
takes the older ones of its key with it and goes itself later: once its segment has been compacted
before, so every reader had a chance to meet it, and its timestamp is old enough. Records without a
key, control batches and the very last record of the range are always kept; the last one so that
from every offset below the high watermark there is a batch to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import (
    CONTROL,
    HAS_KEYS,
    ProducerStamp,
    RecordBatch,
    encode,
)
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.journal.segment.manifest import SegmentInfo


@dataclass
class LatestOffsets:
    """Key -> highest offset seen, for at most `keys_max` keys."""

    keys_max: int
    offsets: dict[bytes, int] = field(default_factory=dict)

    def take(self, batch: RecordBatch) -> bool:
        """Take a batch in, offsets ascending from batch to batch. False: no room for its keys."""
        if not batch.header.attributes & HAS_KEYS or batch.header.attributes & CONTROL:
            return True
        keys = batch.keys()
        fresh = {key for key in keys if key is not None and key not in self.offsets}
        if len(self.offsets) + len(fresh) > self.keys_max:
            return False
        for key, offset in zip(keys, batch.offsets(), strict=True):
            if key is not None:
                self.offsets[key] = offset
        return True


@dataclass(frozen=True)
class KeepRule:
    """Which records stay."""

    latest: LatestOffsets
    last_offset: int
    """The last record of the range, kept in any case."""
    tombstones_before_ms: int
    """Tombstones older than this go, where `tombstones_go`."""

    def keep(self, batch: RecordBatch, tombstones_go: bool) -> list[bool]:
        """For each record of a batch whether it stays."""
        latest, last = self.latest.offsets, self.last_offset
        offsets = batch.offsets()
        # A key that `latest` lacks has no record in the segments that are new, so its record in
        # compacted ones is the newest.
        flags = [
            key is None or latest.get(key, offset) <= offset or offset == last
            for key, offset in zip(batch.keys(), offsets, strict=True)
        ]
        if tombstones_go and batch.header.base_timestamp_ms < self.tombstones_before_ms:
            rows = zip(batch.keys(), batch.values(), batch.timestamps_ms(), offsets, strict=True)
            for at, (key, value, time, offset) in enumerate(rows):
                if value is None and key is not None and offset != last:
                    flags[at] = flags[at] and time >= self.tombstones_before_ms
        return flags


def compacted_batch(data: bytes, rule: KeepRule, tombstones_go: bool) -> bytes:
    """The batch without what goes: as it is if all stays, empty if nothing does."""
    try:
        batch = RecordBatch(data)
    except CorruptBatch:
        return data  # whole outside, garbage inside: what it holds is not known
    header = batch.header
    if not header.attributes & HAS_KEYS or header.attributes & CONTROL:
        return data
    flags = rule.keep(batch, tombstones_go)
    if all(flags):
        return data
    offsets = list(compress(batch.offsets(), flags))
    if not offsets:
        return b""
    heads = list(compress(batch.encoded_headers(), flags))
    columns = Columns(
        list(compress(batch.values(), flags)),
        list(compress(batch.keys(), flags)),
        heads if any(heads) else None,
        list(compress(batch.timestamps_ms(), flags)),
    )
    # Base offset and base sequence stay those of the whole batch: every record keeps its own.
    return encode(
        columns,
        compression=header.compression,
        producer=ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence),
        base_offset=header.base_offset,
        offset_deltas=[offset - header.base_offset for offset in offsets],
        leader_epoch=header.leader_epoch,
        attributes=header.attributes,
    )


def is_due(
    segments: Sequence[SegmentInfo], now_ms: int, *, dirty_ratio_min: float, lag_max_ms: int
) -> bool:
    """Whether enough sealed bytes, or old enough ones, have not been compacted yet."""
    dirty = [segment for segment in segments if not segment.compacted and segment.size_bytes]
    if not dirty:
        return False
    total = sum(segment.size_bytes for segment in segments)
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    lag = now_ms - min(segment.sealed_ms for segment in dirty)
    return dirty_bytes >= dirty_ratio_min * total or lag >= lag_max_ms


def groups(
    segments: Sequence[SegmentInfo], segment_max_bytes: int
) -> Iterator[Sequence[SegmentInfo]]:
    """Neighbours that become one segment each: as many as fit into one before compaction."""
    group: list[SegmentInfo] = []
    size = 0
    for segment in segments:
        if group and size + segment.size_bytes > segment_max_bytes:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size_bytes
    if group:
        yield group
