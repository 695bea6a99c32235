"""Offsets that wait for the end of a transaction (KIP-98, `sendOffsetsToTransaction`). No IO.

They are in force as soon as they are held: the table has them, so who is assigned a partition next
starts behind them, and other commits there are refused until the transaction is decided or void.
What was committed before is kept with them. A partition whose committed offset is neither the one
before nor ours has been committed again since, and is left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.transactions.types import SINK, TRANSACTION, CommitTry, Owner
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.offset_table import (
    Committed,
    OffsetKey,
    OffsetTable,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

KEY: Final = 2
"""First byte of a key in the topic of offsets: what follows names a group and an owner."""
_FORMER: Final = 1
_VERSION: Final = 2
_KINDS: Final = {SINK: 1, TRANSACTION: 2}
_NAMES: Final = {number: name for name, number in _KINDS.items()}
_FORMER_HEAD: Final = struct.Struct("<BI")
_HEAD: Final = struct.Struct("<BBHHIqqI")
_KEY: Final = struct.Struct("<BBHH")
_ROW: Final = struct.Struct("<HHH")
_ABSENT: Final = 0xFFFF
"""Length that stands for an absent value."""
_TRIES_MAX: Final = 10_000
"""What is forgotten costs little: offsets of a try that comes late are in force until its
coordinator says that it is void."""

Change = tuple[Committed | None, Committed | None]
"""(before, from now on)"""


class HeldOffsets(NamedTuple):
    """Offsets of one group in one transaction."""

    group: str
    changes: Mapping[TopicPartition, Change]
    commit: CommitTry | None = None
    """None: a build from before decided it; they are in the commit's record alone."""


def encode_held(held: HeldOffsets) -> bytes:
    """As the commit's record has them, and the topic of offsets. A build from before wrote them
    without a commit."""
    group, commit = held.group.encode(), held.commit
    if commit is None:
        parts = [_FORMER_HEAD.pack(_FORMER, len(held.changes))]
    else:
        name = commit.owner.name.encode()
        parts = [
            _HEAD.pack(
                _VERSION, _KINDS[commit.owner.kind], len(group), len(name), commit.epoch,
                commit.batch_id, commit.number, len(held.changes),
            ),
            group,
            name,
        ]  # fmt: skip
    for place, (before, after) in held.changes.items():
        key = encode_key(OffsetKey(held.group, place))
        values = [None if each is None else encode_value(each) for each in (before, after)]
        sizes = [_ABSENT if each is None else len(each) for each in values]
        parts += (_ROW.pack(len(key), *sizes), key, *(each for each in values if each is not None))
    return b"".join(parts)


def decode_held(data: bytes) -> HeldOffsets:
    """ValueError: not offsets of this version, or the one before."""
    try:
        if data[:1] == bytes((_FORMER,)):
            (_, count), at = _FORMER_HEAD.unpack_from(data), _FORMER_HEAD.size
            commit, group = None, ""
        else:
            commit, group, count, at = _decode_head(data)
        changes: dict[TopicPartition, Change] = {}
        for _ in range(count):
            key_bytes, *sizes = _ROW.unpack_from(data, at)
            at += _ROW.size + key_bytes
            named, place = decode_key(data[at - key_bytes : at])
            if commit is not None and named != group:
                raise ValueError(f"offsets of group {named!r} beside those of {group!r}")
            group = named
            found: list[Committed | None] = []
            for size in sizes:
                value = None if size == _ABSENT else decode_value(data[at : at + size])
                at += 0 if size == _ABSENT else size
                found.append(value)
            changes[place] = (found[0], found[1])
    except struct.error as error:
        raise ValueError(f"committed offsets: {error}") from None
    return HeldOffsets(group, changes, commit)


def _decode_head(data: bytes) -> tuple[CommitTry, str, int, int]:
    version, kind, group_bytes, name_bytes, epoch, batch_id, number, count = _HEAD.unpack_from(data)
    if version != _VERSION or kind not in _NAMES:
        raise ValueError(f"version {version} and kind {kind} of committed offsets")
    at = _HEAD.size + group_bytes
    end = at + name_bytes
    if end > len(data) or batch_id < 0 or number < 0:
        raise ValueError(f"committed offsets of {len(data)} bytes")
    owner = Owner(_NAMES[kind], data[at:end].decode())
    return CommitTry(owner, epoch, batch_id, number), data[_HEAD.size : at].decode(), count, end


def held_key(group: str, owner: Owner) -> bytes:
    """Key in the topic of offsets, whose value is as `encode_held` gives it."""
    names = group.encode(), owner.name.encode()
    return b"".join((_KEY.pack(KEY, _KINDS[owner.kind], *map(len, names)), *names))


def decode_held_key(key: bytes) -> tuple[str, Owner]:
    """ValueError: not a key of this version."""
    if len(key) < _KEY.size:
        raise ValueError(f"not a key of held offsets: {key[:32]!r}")
    version, kind, group_bytes, name_bytes = _KEY.unpack_from(key)
    at = _KEY.size + group_bytes
    if version != KEY or kind not in _NAMES or len(key) != at + name_bytes:
        raise ValueError(f"not a key of held offsets: {key[:32]!r}")
    return key[_KEY.size : at].decode(), Owner(_NAMES[kind], key[at:].decode())


def still_due(
    changes: Mapping[TopicPartition, Change], now: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed | None]:
    """What is to be written: all but the partitions that were committed again since."""
    return {
        place: after
        for place, (before, after) in changes.items()
        if now.get(place) in (before, after)
    }


@dataclass(slots=True)
class _Held:
    offsets: HeldOffsets
    asked_ms: int
    """When they were held, or last asked for."""
    stored: bool


class HeldTable:
    """All offsets that are held, and their effect on the table of committed ones."""

    def __init__(self, table: OffsetTable) -> None:
        self._table = table
        self._held: dict[tuple[str, Owner], _Held] = {}
        self._places: dict[tuple[str, TopicPartition], tuple[str, Owner]] = {}
        self._tries: dict[tuple[str, Owner], int] = {}
        """The newest of each owner: a call may come behind a later one."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, held: HeldOffsets, now_ms: int, *, stored: bool) -> None:
        """They are in force, unless something was committed there since. `stored`: whether the
        topic of offsets has them, or may have."""
        assert held.commit is not None
        key = held.group, held.commit.owner
        if len(self._tries) >= _TRIES_MAX:
            self._tries.clear()
        self._tries[key] = held.commit.number
        self._held[key] = _Held(held, now_ms, stored)
        self._places.update(((held.group, place), key) for place in held.changes)
        self._table.put(held.group, still_due(held.changes, self._table.of(held.group)))

    def find(self, group: str, owner: Owner) -> HeldOffsets | None:
        """What the owner's transaction holds of the group."""
        found = self._held.get((group, owner))
        return None if found is None else found.offsets

    def is_stored(self, held: HeldOffsets) -> bool:
        """Whether the topic of offsets has to be told that they are not held any more."""
        assert held.commit is not None
        found = self._held.get((held.group, held.commit.owner))
        return found is not None and found.stored

    def release(self, held: HeldOffsets) -> None:
        """It is decided, and applied: they stay in force."""
        assert held.commit is not None
        key = held.group, held.commit.owner
        if self.find(*key) is held:
            del self._held[key]
            for place in held.changes:
                if self._places.get((held.group, place)) == key:
                    del self._places[held.group, place]

    def undo(self, held: HeldOffsets) -> list[TopicPartition]:
        """It is void: what was committed before is in force again; of which partitions."""
        now = self._table.of(held.group)
        back = {
            place: before
            for place, (before, ours) in held.changes.items()
            if now.get(place) == ours
        }  # fmt: skip
        self._table.put(held.group, back)
        self.release(held)
        return list(back)

    def check_try(self, group: str, commit: CommitTry) -> None:
        """Raises Unavailable when a later try of the owner was held."""
        newest = self._tries.get((group, commit.owner), -1)
        if commit.number < newest:
            raise Unavailable(
                f"group {group}: try {commit.number} of {commit.owner} comes behind try {newest}"
            )

    def check_free(self, group: str, places: Iterable[TopicPartition]) -> None:
        """Raises Unavailable for a partition whose offset is held."""
        for place in places:
            key = self._places.get((group, place))
            if key is not None:
                raise Unavailable(
                    f"group {group}: {key[1]} commits {place.topic}/{place.partition} and is not "
                    "decided yet; try again"
                )

    def groups(self) -> set[str]:
        """Names of groups of which anything is held."""
        return {name for name, _ in self._held}

    def due(self, since_ms: int, now_ms: int) -> list[HeldOffsets]:
        """Those that are held since then or earlier, and were not asked for after that; to be asked
        for now."""
        found = [each for each in self._held.values() if each.asked_ms <= since_ms]
        for each in found:
            each.asked_ms = now_ms
        return [each.offsets for each in found]

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Forget the groups for whose name `gone` is true."""
        for each in list(self._held.values()):
            if gone(each.offsets.group):
                self.release(each.offsets)
