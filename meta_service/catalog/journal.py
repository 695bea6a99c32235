"""Manifests of tiered segments in the catalog. Pure.

A manifest covers [start, end) without gap or overlap. That holds because every change keeps it: new
segments begin where it ends, others take the place of segments with the very same offsets, and the
front is cut off together with its segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from meta_service.api.errors import AlreadyExists, CompareFailed, InvalidArgument, NotFound
from meta_service.api.journal import TieredSegment
from meta_service.catalog.command_codec import (
    Command,
    check_blob,
    check_hex,
    check_integer,
    check_items,
    check_list,
    check_name,
    command,
)
from meta_service.catalog.draft import Draft
from meta_service.catalog.entries import check_expected, check_label, compare
from meta_service.catalog.tables import pack, unpack
from meta_service.catalog.topics import find_topic

JOURNAL_PREFIX: Final = b"\x00journal/"
TIER_PREFIX: Final = JOURNAL_PREFIX + b"tier/"
SEGMENT_PREFIX: Final = JOURNAL_PREFIX + b"segment/"
OBJECT_PREFIX: Final = JOURNAL_PREFIX + b"object/"
"""What is announced or in a manifest: its location belongs to no other object of the partition."""
GARBAGE_PREFIX: Final = JOURNAL_PREFIX + b"garbage/"
BY_TOPIC: Final = (TIER_PREFIX, SEGMENT_PREFIX, OBJECT_PREFIX)
SUFFIX_BYTES: Final = 20
"""Topic id and partition, behind those prefixes."""
UPLOADING: Final = b"u"
IN_MANIFEST: Final = b"m"
LEVEL: Final = 2
CHANGES_MAX: Final = 500
"""Segments and objects in one command."""
LOCATION_CHARACTERS_MAX: Final = 1024
_OFFSET_MAX: Final = 2**63 - 1


class Tier(NamedTuple):
    """A partition's manifest without its segments."""

    start_offset: int = 0
    end_offset: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ManifestCommand(Command):
    """Base of what only a partition's leader may ask."""

    level: ClassVar[int] = LEVEL

    topic: str
    topic_id: str
    partition: int
    leader: str
    leader_epoch: int

    def check(self) -> None:
        check_name(self.topic, "topic")
        check_hex(self.topic_id, "topic_id")
        check_integer(self.partition, "partition", 0, 2**31)
        check_name(self.leader, "leader")
        check_integer(self.leader_epoch, "leader_epoch", 0, 2**62)
        self.check_change()

    def check_change(self) -> None:
        """Raises InvalidArgument that names the field."""
        raise NotImplementedError


@command("journal.upload")
@dataclass(frozen=True, slots=True)
class BeginUpload(ManifestCommand):
    location: str

    def check_change(self) -> None:
        check_label(self.location, "location", LOCATION_CHARACTERS_MAX)


@command("journal.change")
@dataclass(frozen=True, slots=True)
class ChangeManifest(ManifestCommand):
    put: tuple[tuple[int, int, int, str, bytes, int], ...]
    """Fields of `TieredSegment`."""
    remove: tuple[int, ...]
    start_offset: int | None
    abandon: tuple[str, ...]
    expected_revision: int | None

    def check_change(self) -> None:
        for name in ("put", "remove", "abandon"):
            check_list(getattr(self, name), name)
        if len(self.put) + len(self.remove) + len(self.abandon) > CHANGES_MAX:
            raise InvalidArgument(f"a change holds at most {CHANGES_MAX} segments and objects")
        for segment in self.put:
            base, end, size, location, checksum, timestamp = check_items(segment, "put", 6)
            check_integer(base, "put.base_offset", 0, _OFFSET_MAX)
            check_integer(end, "put.end_offset", base + 1, _OFFSET_MAX)
            check_integer(size, "put.size_bytes", 0, 2**53)
            check_label(location, "put.location", LOCATION_CHARACTERS_MAX)
            check_blob(checksum, "put.checksum", 64)
            check_integer(timestamp, "put.max_timestamp_ms", -(2**53), 2**53)
        for base in self.remove:
            check_integer(base, "remove", 0, _OFFSET_MAX)
        for location in self.abandon:
            check_label(location, "abandon", LOCATION_CHARACTERS_MAX)
        if self.start_offset is not None:
            check_integer(self.start_offset, "start_offset", 0, _OFFSET_MAX)
        check_expected(self.expected_revision)


@command("journal.garbage-")
@dataclass(frozen=True, slots=True)
class DropGarbage(Command):
    """These objects are deleted."""

    level: ClassVar[int] = LEVEL

    locations: tuple[str, ...]

    def check(self) -> None:
        check_list(self.locations, "locations")
        if len(self.locations) > CHANGES_MAX:
            raise InvalidArgument(f"locations: at most {CHANGES_MAX} at once")
        for location in self.locations:
            check_label(location, "locations", LOCATION_CHARACTERS_MAX)


@command("journal.collect")
@dataclass(frozen=True, slots=True)
class CollectTopic(Command):
    """Turn manifests of a topic that is gone into garbage, some rows at a time."""

    level: ClassVar[int] = LEVEL

    topic_id: str
    """Ids are never given again, so a topic that was gone when this was decided still is."""
    keys: tuple[bytes, ...]

    def check(self) -> None:
        check_hex(self.topic_id, "topic_id")
        check_list(self.keys, "keys")
        if len(self.keys) > CHANGES_MAX:
            raise InvalidArgument(f"keys: at most {CHANGES_MAX} at once")
        for key in self.keys:
            check_blob(key, "keys", 4096)


# ------------------------------------------------------------ rows


def partition_suffix(topic_id: str, partition: int) -> bytes:
    return bytes.fromhex(topic_id) + partition.to_bytes(4, "big")


def tier_key(topic_id: str, partition: int) -> bytes:
    return TIER_PREFIX + partition_suffix(topic_id, partition)


def segments_prefix(topic_id: str, partition: int) -> bytes:
    return SEGMENT_PREFIX + partition_suffix(topic_id, partition)


def segment_key(topic_id: str, partition: int, base_offset: int) -> bytes:
    return segments_prefix(topic_id, partition) + base_offset.to_bytes(8, "big")


def objects_prefix(topic_id: str, partition: int) -> bytes:
    return OBJECT_PREFIX + partition_suffix(topic_id, partition)


def object_key(who: ManifestCommand, location: str) -> bytes:
    return objects_prefix(who.topic_id, who.partition) + location.encode()


def garbage_key(location: str) -> bytes:
    return GARBAGE_PREFIX + location.encode()


def decode_tier(value: bytes) -> Tier:
    fields: Any = unpack(value)
    return Tier(*fields)


def decode_segment(key: bytes, value: bytes) -> TieredSegment:
    fields: Any = unpack(value)
    return TieredSegment(int.from_bytes(key[-8:], "big"), *fields)


# ------------------------------------------------------------ handlers


def _check_leader(draft: Draft, command: ManifestCommand) -> None:
    """Raises CompareFailed, NotFound."""
    topic = find_topic(draft, command.topic)
    if topic.topic_id != command.topic_id or command.partition >= len(topic.partitions):
        raise NotFound(f"topic {command.topic!r} has no such partition, or was made anew")
    now = topic.partitions[command.partition]
    if (now.leader, now.leader_epoch) != (command.leader, command.leader_epoch):
        raise CompareFailed(
            f"partition {command.partition} of {command.topic!r} is led by {now.leader} in leader "
            f"epoch {now.leader_epoch}"
        )


def begin_upload(draft: Draft, command: BeginUpload) -> Any:
    _check_leader(draft, command)
    key = object_key(command, command.location)
    if draft.row(key) is not None or draft.row(garbage_key(command.location)) is not None:
        raise AlreadyExists(f"object {command.location!r} was announced before")
    draft.put_row(key, UPLOADING)
    return None


def change_manifest(draft: Draft, command: ChangeManifest) -> Any:
    """[start offset, end offset, bytes] of the manifest now."""
    _check_leader(draft, command)
    key = tier_key(command.topic_id, command.partition)
    compare(draft, key, command.expected_revision, f"the manifest of {command.topic!r}")
    row = draft.row(key)
    tier = decode_tier(row.value) if row else None
    put = [TieredSegment(*fields) for fields in command.put]
    gone = [_segment(draft, command, base) for base in command.remove]
    new = _changed(tier, put, gone, command.start_offset)
    for segment in gone:
        draft.delete_row(segment_key(command.topic_id, command.partition, segment.base_offset))
        _discard(draft, command, segment.location)
    for location in command.abandon:
        _check_uploading(draft, command, location)
        _discard(draft, command, location)
    for fields, segment in zip(command.put, put, strict=True):
        _check_uploading(draft, command, segment.location)
        draft.put_row(object_key(command, segment.location), IN_MANIFEST)
        at = segment_key(command.topic_id, command.partition, segment.base_offset)
        draft.put_row(at, pack(fields[1:]))
    draft.put_row(key, pack(new))
    return list(new)


def _check_uploading(draft: Draft, command: ChangeManifest, location: str) -> None:
    row = draft.row(object_key(command, location))
    if row is None or row.value != UPLOADING:
        raise NotFound(f"object {location!r} is not announced")


def _discard(draft: Draft, command: ChangeManifest, location: str) -> None:
    draft.delete_row(object_key(command, location))
    draft.put_row(garbage_key(location), b"")


def _segment(draft: Draft, command: ChangeManifest, base_offset: int) -> TieredSegment:
    key = segment_key(command.topic_id, command.partition, base_offset)
    row = draft.row(key)
    if row is None:
        raise NotFound(f"the manifest of {command.topic!r} has no segment at offset {base_offset}")
    return decode_segment(key, row.value)


def _changed(
    tier: Tier | None,
    put: list[TieredSegment],
    gone: list[TieredSegment],
    start_offset: int | None,
) -> Tier:
    """The manifest behind the change. Raises InvalidArgument if it had a gap or an overlap."""
    if len({segment.base_offset for segment in gone}) < len(gone):
        raise InvalidArgument("remove: names a segment twice")
    if tier is None:
        first = min((segment.base_offset for segment in put), default=0)
        tier = Tier(first, first, 0)
    start = tier.start_offset if start_offset is None else start_offset
    if not tier.start_offset <= start <= tier.end_offset:
        raise InvalidArgument(
            f"start_offset: must be from {tier.start_offset} to {tier.end_offset}"
        )
    cut = [segment for segment in gone if segment.end_offset <= start]
    replaced = [segment for segment in gone if segment.end_offset > start]
    added = [segment for segment in put if segment.base_offset >= tier.end_offset]
    replacing = [segment for segment in put if segment.base_offset < tier.end_offset]
    if _ranges(cut) != ([(tier.start_offset, start)] if start > tier.start_offset else []):
        raise InvalidArgument("start_offset: the segments below it, and only they, must be removed")
    if _ranges(replaced) != _ranges(replacing):
        raise InvalidArgument("put: must cover the very offsets of the segments removed")
    end = max((segment.end_offset for segment in added), default=tier.end_offset)
    if _ranges(added) != ([(tier.end_offset, end)] if added else []):
        raise InvalidArgument(f"put: must go on at offset {tier.end_offset} without gap")
    size = sum(segment.size_bytes for segment in put) - sum(each.size_bytes for each in gone)
    return Tier(start, end, tier.size_bytes + size)


def _ranges(segments: Iterable[TieredSegment]) -> list[tuple[int, int]]:
    """Offsets covered, neighbours joined. Raises InvalidArgument for an overlap."""
    found: list[tuple[int, int]] = []
    for segment in sorted(segments, key=lambda each: each.base_offset):
        if found and segment.base_offset < found[-1][1]:
            raise InvalidArgument(f"put: two segments hold offset {segment.base_offset}")
        if found and segment.base_offset == found[-1][1]:
            found[-1] = (found[-1][0], segment.end_offset)
        else:
            found.append((segment.base_offset, segment.end_offset))
    return found


def drop_garbage(draft: Draft, command: DropGarbage) -> Any:
    """Number of objects forgotten."""
    return sum(draft.delete_row(garbage_key(location)) for location in command.locations)


def collect_topic(draft: Draft, command: CollectTopic) -> Any:
    """Number of rows that went."""
    topic_id = bytes.fromhex(command.topic_id)
    count = 0
    for key in command.keys:
        if not key.startswith(tuple(prefix + topic_id for prefix in BY_TOPIC)):
            raise InvalidArgument(f"keys: {key!r} is not of that topic's manifests")
        if draft.delete_row(key):
            count += 1
            if key.startswith(OBJECT_PREFIX):
                draft.put_row(GARBAGE_PREFIX + key[len(OBJECT_PREFIX) + SUFFIX_BYTES :], b"")
    return count
