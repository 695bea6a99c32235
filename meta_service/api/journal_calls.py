"""Calls on manifests of tiered segments."""

from __future__ import annotations

from collections.abc import Sequence

from meta_service.api import journal_pb2 as pb
from meta_service.api.calls import Calls
from meta_service.api.journal import Manifest, PartitionLeader, TieredSegment


def _who(who: PartitionLeader) -> pb.PartitionLeader:
    return pb.PartitionLeader(
        topic=who.topic,
        topic_id=who.topic_id,
        partition=who.partition,
        leader=who.leader,
        leader_epoch=who.leader_epoch,
    )


def segment_message(segment: TieredSegment) -> pb.TieredSegment:
    return pb.TieredSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        location=segment.location,
        checksum=segment.checksum,
        max_timestamp_ms=segment.max_timestamp_ms,
    )


def segment_of(message: pb.TieredSegment) -> TieredSegment:
    return TieredSegment(
        message.base_offset,
        message.end_offset,
        message.size_bytes,
        message.location,
        message.checksum,
        message.max_timestamp_ms,
    )


class JournalCalls(Calls):
    """Implements `JournalPort`."""

    async def begin_upload(self, who: PartitionLeader, location: str) -> None:
        request = pb.BeginUploadRequest(who=_who(who), location=location)
        await self._write(lambda t: t.journal.BeginUpload, request)

    async def change_manifest(
        self,
        who: PartitionLeader,
        *,
        put: Sequence[TieredSegment] = (),
        remove: Sequence[int] = (),
        start_offset: int | None = None,
        abandon: Sequence[str] = (),
        expected_revision: int | None = None,
    ) -> int:
        request = pb.ChangeManifestRequest(
            who=_who(who),
            put=[segment_message(segment) for segment in put],
            remove=remove,
            start_offset=start_offset,
            abandon=abandon,
            expected_revision=expected_revision,
        )
        return int((await self._write(lambda t: t.journal.ChangeManifest, request)).revision)

    async def manifest(
        self, topic_id: str, partition: int, *, after: int = -1, limit: int = 1000
    ) -> Manifest:
        request = pb.GetManifestRequest(
            topic_id=topic_id,
            partition=partition,
            after=after if after >= 0 else None,
            limit=limit,
        )
        response = await self._call(lambda t: t.journal.GetManifest, request)
        return Manifest(
            response.revision,
            response.start_offset,
            response.end_offset,
            response.size_bytes,
            tuple(map(segment_of, response.segments)),
            response.more,
        )

    async def uploads(self, topic_id: str, partition: int) -> Sequence[str]:
        request = pb.GetManifestRequest(topic_id=topic_id, partition=partition)
        response = await self._call(lambda t: t.journal.ListUploads, request)
        return list(response.locations)

    async def garbage(self, *, limit: int = 1000) -> Sequence[str]:
        request = pb.ListGarbageRequest(limit=limit)
        return list((await self._call(lambda t: t.journal.ListGarbage, request)).locations)

    async def drop_garbage(self, locations: Sequence[str]) -> None:
        request = pb.DropGarbageRequest(locations=locations)
        await self._write(lambda t: t.journal.DropGarbage, request)
