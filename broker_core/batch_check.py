"""What a producer's batch must be like before a topic takes it. Pure."""

from __future__ import annotations

from typing import Final

from broker_core.api.errors import BatchTooLarge, CorruptBatch
from broker_core.api.record_batch import (
    CONTROL,
    HEADER_BYTES,
    SPARSE,
    BatchHeader,
    check_body,
    read_header,
)
from broker_core.api.types import TopicInfo

_RAW_BYTES: Final = 64 * 1024 * 1024
"""A decompressed batch may be so large whatever the topic says."""


def checked_header(topic: TopicInfo, batch: bytes) -> BatchHeader:
    """Header and both CRCs are right, sizes within limits. BatchTooLarge, CorruptBatch."""
    limit = topic.config.batch_bytes_max
    if len(batch) > limit:
        raise BatchTooLarge(f"batch of {len(batch)} bytes; topic {topic.name} takes {limit}")
    header = read_header(batch)
    if header.attributes & (SPARSE | CONTROL):
        raise CorruptBatch("producers send neither sparse nor control batches")
    if header.raw_body_bytes > max(limit, _RAW_BYTES):
        raise BatchTooLarge(f"batch of {header.raw_body_bytes} bytes when decompressed")
    check_body(header, batch[HEADER_BYTES:])
    return header
