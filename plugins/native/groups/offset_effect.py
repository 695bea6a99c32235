"""Offsets that are committed with a transaction (KIP-98, `sendOffsetsToTransaction`).

They are in force when the commit is decided: the table has them from then on, and the commit's
record holds them, with those that were committed before. They are written to the offsets topic
afterwards, perhaps twice, and after a crash late: a partition whose committed offset is neither the
one before nor ours has been committed again since, and is left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from lakemq.broker_core.api.errors import InvalidRequest, NotLeader
from lakemq.broker_core.api.transactions.types import Decision
from lakemq.broker_core.api.types import Principal, TopicPartition
from lakemq.plugins.native.groups.offset_log import OffsetLog
from lakemq.plugins.native.groups.offset_table import (
    Committed,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from lakemq.plugins.native.proto import native_pb2 as pb

OFFSETS: Final = "offsets"
"""Name under which offsets take part in commits."""
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BI")
_ROW: Final = struct.Struct("<HHH")
_ABSENT: Final = 0xFFFF
"""Length that stands for an absent value."""

Change = tuple[Committed | None, Committed | None]
"""(before, from now on)"""


@dataclass(frozen=True, slots=True)
class OffsetsAsked:
    """Offsets to commit with a transaction."""

    request: pb.CommitOffsetsRequest
    principal: Principal


def encode_changes(group: str, changes: Mapping[TopicPartition, Change]) -> bytes:
    """The effect of a transaction on the offsets of a group, as bytes."""
    parts = [_HEAD.pack(_VERSION, len(changes))]
    for place, (before, after) in changes.items():
        key = encode_key(OffsetKey(group, place))
        values = [None if each is None else encode_value(each) for each in (before, after)]
        sizes = [_ABSENT if each is None else len(each) for each in values]
        parts += (_ROW.pack(len(key), *sizes), key, *(each for each in values if each is not None))
    return b"".join(parts)


def decode_changes(data: bytes) -> tuple[str, dict[TopicPartition, Change]]:
    """ValueError: not changes of this version."""
    try:
        version, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"version {version} of committed offsets")
        group, changes, at = "", {}, _HEAD.size
        for _ in range(count):
            key_bytes, *sizes = _ROW.unpack_from(data, at)
            at += _ROW.size + key_bytes
            group, place = decode_key(data[at - key_bytes : at])
            found: list[Committed | None] = []
            for size in sizes:
                value = None if size == _ABSENT else decode_value(data[at : at + size])
                at += 0 if size == _ABSENT else size
                found.append(value)
            changes[place] = (found[0], found[1])
    except struct.error as error:
        raise ValueError(f"committed offsets: {error}") from None
    return group, changes


def still_due(
    changes: Mapping[TopicPartition, Change], now: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed | None]:
    """What is to be written: all but the partitions that were committed again since."""
    return {
        place: after
        for place, (before, after) in changes.items()
        if now.get(place) in (before, after)
    }


class Groups(Protocol):
    """The consumer groups of a node, as far as transactions commit their offsets."""

    def check_here(self, name: str) -> None:
        """Raises NotLeader, Unavailable where this node does not coordinate the group (now)."""

    def is_here(self, name: str) -> bool:
        """Whether `check_here` raises nothing."""

    @property
    def offsets(self) -> OffsetLog:
        """Offsets that are committed."""

    def checked(
        self, request: pb.CommitOffsetsRequest, principal: Principal
    ) -> tuple[int, dict[TopicPartition, tuple[int, str]]]:
        """Member epoch and (offset, metadata) by partition of a commit that may be taken. Raises
        the LakeMQError that refuses it."""

    def withdraw(self, name: str, places: Iterable[TopicPartition], member_id: str) -> None:
        """Offsets that the table showed for a moment were not committed after all."""


class OffsetsParticipant:
    """Implements the `Participant` port."""

    def __init__(self, host: Groups) -> None:
        self._host = host

    def decide(self, asked: object) -> Decision:
        """Raises what `Groups.checked` raises; InvalidRequest where another node coordinates the
        group."""
        assert isinstance(asked, OffsetsAsked)
        group, member_id = asked.request.group, asked.request.member_id
        try:
            self._host.check_here(group)
        except NotLeader as error:
            raise InvalidRequest(
                f"group {group} has its coordinator on node {error.leader or '(none now)'}, this "
                "transactional id has its on another: a transaction commits offsets of groups of "
                "its own node only; choose another transactional id or group name"
            ) from None
        epoch, offsets = self._host.checked(asked.request, asked.principal)
        log = self._host.offsets
        after = log.changes(group, epoch, offsets)
        changes = {place: (log.table.of(group).get(place), after[place]) for place in after}
        log.table.put(group, after)

        def undo() -> None:
            # What was committed again meanwhile is newer than both, and stays.
            back = {
                place: before
                for place, (before, ours) in changes.items()
                if log.table.of(group).get(place) == ours
            }
            log.table.put(group, back)
            self._host.withdraw(group, back, member_id)

        return Decision(encode_changes(group, changes), undo)

    def restore(self, data: bytes) -> None:
        """Take an effect of a transaction that was prepared before a restart, or before this node
        was the group's coordinator again."""
        group, _ = decode_changes(data)
        if self._host.is_here(group):
            self._due(data)

    async def apply(self, data: bytes) -> None:
        """Make the offsets of a committed transaction durable. NotLeader, Unavailable: later."""
        self._host.check_here(decode_changes(data)[0])
        group, due = self._due(data)
        if due:
            await self._host.offsets.write(group, due)

    def _due(self, data: bytes) -> tuple[str, dict[TopicPartition, Committed | None]]:
        """The group and what is to be written; puts it into the table."""
        group, changes = decode_changes(data)
        table = self._host.offsets.table
        due = still_due(changes, table.of(group))
        if due:
            table.put(group, due)
        return group, due
