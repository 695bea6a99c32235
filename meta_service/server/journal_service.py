"""The gRPC service of manifests of tiered segments."""

from __future__ import annotations

import itertools
from typing import Any, Final

from meta_service.api import journal_pb2 as pb
from meta_service.api import journal_pb2_grpc as rpc
from meta_service.api import meta_pb2
from meta_service.api.journal_calls import segment_message
from meta_service.catalog.command_codec import check_hex
from meta_service.catalog.journal import (
    GARBAGE_PREFIX,
    UPLOADING,
    BeginUpload,
    ChangeManifest,
    DropGarbage,
    Tier,
    decode_segment,
    decode_tier,
    objects_prefix,
    segment_key,
    segments_prefix,
    tier_key,
)
from meta_service.server.failures import Context, unary
from meta_service.server.services import Service

LIMIT: Final = 1000
"""Segments or objects in one answer: with locations of 1,024 characters still below 4 MiB."""


def _leader(who: pb.PartitionLeader) -> tuple[str, str, int, str, int]:
    return who.topic, who.topic_id, who.partition, who.leader, who.leader_epoch


def _optional(request: Any, name: str) -> int | None:
    return getattr(request, name) if request.HasField(name) else None


class JournalService(Service, rpc.JournalServicer):
    """Implements `Journal` of journal.proto."""

    @unary
    async def BeginUpload(
        self, request: pb.BeginUploadRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        command = BeginUpload(*_leader(request.who), request.location)
        return await self._written(command, request.once)

    @unary
    async def ChangeManifest(
        self, request: pb.ChangeManifestRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        put = tuple(
            (
                each.base_offset,
                each.end_offset,
                each.size_bytes,
                each.location,
                each.checksum,
                each.max_timestamp_ms,
            )
            for each in request.put
        )
        command = ChangeManifest(
            *_leader(request.who),
            put,
            tuple(request.remove),
            _optional(request, "start_offset"),
            tuple(request.abandon),
            _optional(request, "expected_revision"),
        )
        return await self._written(command, request.once)

    @unary
    async def GetManifest(self, request: pb.GetManifestRequest, context: Context) -> pb.Manifest:
        check_hex(request.topic_id, "topic_id")
        await self._fresh()
        cache = self._gateway.cache
        row = cache.get(tier_key(request.topic_id, request.partition))
        tier = decode_tier(row.value) if row else Tier()
        manifest = pb.Manifest(revision=row.mod_revision if row else 0, **tier._asdict())
        after = b""
        if request.HasField("after"):
            after = segment_key(request.topic_id, request.partition, request.after)
        limit = min(request.limit or LIMIT, LIMIT)
        prefix = segments_prefix(request.topic_id, request.partition)
        found = list(cache.scan(prefix, limit + 1, after=after))
        manifest.more = len(found) > limit
        for key, segment in found[:limit]:
            manifest.segments.append(segment_message(decode_segment(key, segment.value)))
        return manifest

    @unary
    async def ListUploads(self, request: pb.GetManifestRequest, context: Context) -> pb.Locations:
        check_hex(request.topic_id, "topic_id")
        await self._fresh()
        prefix = objects_prefix(request.topic_id, request.partition)
        uploads = (
            key[len(prefix) :].decode()
            for key, row in self._gateway.cache.scan(prefix)
            if row.value == UPLOADING
        )
        return pb.Locations(locations=itertools.islice(uploads, LIMIT))

    @unary
    async def ListGarbage(self, request: pb.ListGarbageRequest, context: Context) -> pb.Locations:
        await self._fresh()
        found = self._gateway.cache.scan(GARBAGE_PREFIX, min(request.limit or LIMIT, LIMIT))
        return pb.Locations(locations=[key[len(GARBAGE_PREFIX) :].decode() for key, _ in found])

    @unary
    async def DropGarbage(
        self, request: pb.DropGarbageRequest, context: Context
    ) -> meta_pb2.WriteResponse:
        return await self._written(DropGarbage(tuple(request.locations)), request.once)
