"""What the native protocol tells of segments in an object store. Pure but for the log it asks."""

from __future__ import annotations

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.records.tiered import SEGMENTS_MAX, TieredLog, TieredSegment
from lakemq.plugins.native.proto import native_pb2 as pb


async def tiered_segments(
    log: PartitionLog, request: pb.TieredSegmentsRequest
) -> pb.TieredSegmentsResponse:
    """The answer; none of the segments when the storage engine knows no object store. Raises
    InvalidRequest, Unavailable."""
    start, end = request.start_offset, request.end_offset or log.high_watermark
    count_max = request.count_max or SEGMENTS_MAX
    if start < 0 or end < 0:
        raise InvalidRequest(f"offsets are {start} and {end}; they take 0 and more")
    if not 1 <= count_max <= SEGMENTS_MAX:
        raise InvalidRequest(f"count_max is {count_max}; it takes 1 to {SEGMENTS_MAX}")
    if not isinstance(log, TieredLog):
        return pb.TieredSegmentsResponse(
            log_start_offset=log.log_start_offset, high_watermark=log.high_watermark
        )
    found = await log.tiered_segments(start, end, count_max=count_max)
    return pb.TieredSegmentsResponse(
        log_start_offset=found.log_start_offset,
        high_watermark=found.high_watermark,
        segments=[_message(each) for each in found.segments],
        more=found.more,
    )


def _message(segment: TieredSegment) -> pb.TieredSegment:
    return pb.TieredSegment(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        store_url=segment.store_url,
        name=segment.name,
        position=segment.position,
        size_bytes=segment.size_bytes,
        crc32c=segment.crc32c,
        gaps=segment.gaps,
        read_position=segment.read_position,
        read_end_position=segment.read_end_position,
    )
