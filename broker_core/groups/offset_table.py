"""Committed offsets of consumer groups, and their encoding in the topic `_lakemq_offsets`.

One record per (group, topic, partition): the topic is compacted, so the newest record of a key is
its committed offset; a null value deletes it. `docs/formats/native.md` gives the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.groups.types import METADATA_MAX_BYTES
from lakemq.broker_core.api.types import TopicPartition

OFFSETS_TOPIC: Final = "_lakemq_offsets"
_VERSION: Final = 1
_KEY_HEAD: Final = struct.Struct("<BHH")
_KEY_TAIL: Final = struct.Struct("<I")
_VALUE: Final = struct.Struct("<Bqqq16s")


class OffsetKey(NamedTuple):
    """Key of a committed offset."""

    group: str
    place: TopicPartition


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    """Of the next record to read."""
    epoch: int
    """Of the member that committed it; 0: none."""
    committed_ms: int
    topic_id: str
    metadata: str = ""


def encode_key(key: OffsetKey) -> bytes:
    """A key's bytes in the topic of offsets."""
    group, topic = key.group.encode(), key.place.topic.encode()
    head = _KEY_HEAD.pack(_VERSION, len(group), len(topic))
    return b"".join((head, group, topic, _KEY_TAIL.pack(key.place.partition)))


def decode_key(data: bytes) -> OffsetKey:
    """ValueError: not a key of this version."""
    if len(data) < _KEY_HEAD.size or data[0] != _VERSION:
        raise ValueError(f"not an offset key: {data[:32]!r}")
    _, group_bytes, topic_bytes = _KEY_HEAD.unpack_from(data)
    group_end = _KEY_HEAD.size + group_bytes
    topic_end = group_end + topic_bytes
    if len(data) != topic_end + _KEY_TAIL.size:
        raise ValueError(f"an offset key of {len(data)} bytes")
    (partition,) = _KEY_TAIL.unpack_from(data, topic_end)
    topic = data[group_end:topic_end].decode()
    return OffsetKey(data[_KEY_HEAD.size : group_end].decode(), TopicPartition(topic, partition))


def encode_value(committed: Committed) -> bytes:
    """A committed offset's bytes in the topic of offsets."""
    return (
        _VALUE.pack(
            _VERSION,
            committed.offset,
            committed.epoch,
            committed.committed_ms,
            bytes.fromhex(committed.topic_id),
        )
        + committed.metadata.encode()
    )


def decode_value(data: bytes) -> Committed:
    """ValueError: not a value of this version."""
    if len(data) < _VALUE.size or data[0] != _VERSION:
        raise ValueError(f"not a committed offset: {data[:32]!r}")
    _, offset, epoch, committed_ms, topic_id = _VALUE.unpack_from(data)
    metadata = data[_VALUE.size :].decode()
    return Committed(offset, epoch, committed_ms, topic_id.hex(), metadata)


def encode_entries(
    group: str, changes: Mapping[TopicPartition, Committed | None]
) -> dict[bytes, bytes | None]:
    """Records of the topic of offsets; None deletes."""
    return {
        encode_key(OffsetKey(group, partition)): None if each is None else encode_value(each)
        for partition, each in changes.items()
    }


class OffsetTable:
    """All committed offsets, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, Committed]] = {}
        self._epochs: dict[str, int] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record of the topic, in offset order. ValueError: it is not of this version, and
        changes nothing."""
        group, place = decode_key(key)
        self._set(group, place, None if value is None else decode_value(value))

    def put(self, group: str, changes: Mapping[TopicPartition, Committed | None]) -> None:
        """Set committed offsets of a group; None deletes one."""
        for place, committed in changes.items():
            self._set(group, place, committed)

    def merge(self, other: OffsetTable) -> None:
        """Take all of another table, of groups that are not in this one."""
        self._groups.update(other._groups)
        self._epochs.update(other._epochs)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Forget the groups for whose name `gone` is true, and their epochs."""
        self._groups = {name: each for name, each in self._groups.items() if not gone(name)}
        self._epochs = {name: each for name, each in self._epochs.items() if not gone(name)}

    def _set(self, group: str, place: TopicPartition, committed: Committed | None) -> None:
        offsets = self._groups.get(group)
        if committed is not None:
            if offsets is None:
                offsets = self._groups[group] = {}
            offsets[place] = committed
            # Kept when the offsets go: epochs of a group that comes back do not begin again.
            if committed.epoch > self._epochs.get(group, -1):
                self._epochs[group] = committed.epoch
        elif offsets is not None:
            offsets.pop(place, None)
            if not offsets:
                del self._groups[group]

    def groups(self) -> list[str]:
        """Names of groups that have committed offsets."""
        return sorted(self._groups)

    def of(self, group: str) -> Mapping[TopicPartition, Committed]:
        """Committed offsets of a group."""
        return self._groups.get(group, {})

    def offset(self, group: str, place: TopicPartition, topic_id: str) -> int:
        """The committed offset; -1: none, or one of an earlier topic of that name."""
        found = self.of(group).get(place)
        return found.offset if found is not None and found.topic_id == topic_id else -1

    def highest_epoch(self, group: str) -> int:
        """Highest member epoch that ever committed."""
        return self._epochs.get(group, 0)


def check_commit(offset: int, metadata: str) -> None:
    """Raises InvalidRequest, naming the field."""
    if not -1 <= offset < 1 << 63:
        raise InvalidRequest(f"offset is {offset}; it takes 0 and more, or -1 to forget")
    if len(metadata.encode()) > METADATA_MAX_BYTES:
        raise InvalidRequest(f"metadata takes {METADATA_MAX_BYTES} bytes")
