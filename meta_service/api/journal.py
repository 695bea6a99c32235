"""Manifests of segments that lie in an object store. Pure.

A segment's object is announced before it is written and named in the manifest when it is whole;
what the manifest no longer names is garbage until somebody has deleted it. So no crash leaves an
object that nobody knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who changes a manifest: only the partition's leader, in its leader epoch."""

    topic: str
    topic_id: str
    partition: int
    leader: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """Records [base_offset, end_offset) of a partition, in one object."""

    base_offset: int
    end_offset: int
    size_bytes: int
    location: str
    """Key in the object store, 1 to 1,024 characters."""
    checksum: bytes
    """As the journal computes it, at most 64 bytes."""
    max_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What of a partition is tiered: [start_offset, end_offset), without gap."""

    revision: int
    """Of its last change; 0: nothing was ever tiered."""
    start_offset: int
    end_offset: int
    size_bytes: int
    segments: tuple[TieredSegment, ...]
    """In order; `manifest()` gives some of them."""
    more: bool = False
    """There are more behind the last one."""


class JournalPort(Protocol):
    """Part of `MetaClient`. Changes raise CompareFailed for who is not the leader any more."""

    async def begin_upload(self, who: PartitionLeader, location: str) -> None:
        """Announce an object. Raises AlreadyExists when it was announced before."""

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
        """All at once; the new revision.

        `put`: segments whose uploads were begun; they begin where the manifest ends, or cover the
        very offsets of those in `remove`. `remove`: base offsets; their objects become garbage.
        `start_offset`: where the manifest begins now; the segments below it must be removed with
        it. `abandon`: uploads that failed; their objects become garbage.
        """

    async def manifest(
        self, topic_id: str, partition: int, *, after: int = -1, limit: int = 1000
    ) -> Manifest:
        """With segments whose base offset is above `after`."""

    async def uploads(self, topic_id: str, partition: int) -> Sequence[str]:
        """Objects announced and neither in the manifest nor abandoned."""

    async def garbage(self, *, limit: int = 1000) -> Sequence[str]:
        """Objects that shall be deleted."""

    async def drop_garbage(self, locations: Sequence[str]) -> None:
        """They are deleted: forget them. Unknown ones are left out."""
