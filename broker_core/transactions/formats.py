"""Keys and values of the coordinator's own topics: bytes <-> values.

`docs/formats/transactions.md` gives every byte. Little-endian; a CRC-32C guards the batch around.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lakemq.broker_core.api.state.internal_topics import SCHEDULES, STAGED
from lakemq.broker_core.api.transactions.types import SINK, TRANSACTION, Owner, StagedBatchId
from lakemq.broker_core.transactions.state import (
    CommitTarget,
    OwnerState,
    PendingCommit,
    StagedRef,
)

STAGED_TOPIC: Final = STAGED
TRANSACTIONS_TOPIC: Final = "_lakemq_transactions"
SCHEDULES_TOPIC: Final = SCHEDULES
SCHEDULER: Final = "scheduler"
"""Kind of the owners that deliver scheduled batches, one for each partition of their topic."""

FLOOR_KEY: Final = b"\x01\x00"
"""Key of the record that tells below which offset of its partition nothing is staged any more."""

_VERSION: Final = 1
_KINDS: Final = {SINK: 1, TRANSACTION: 2, SCHEDULER: 3}
_NAMES: Final = {number: name for name, number in _KINDS.items()}
_OWNER: Final = struct.Struct("<BBH")
_STAGED: Final = struct.Struct("<IqIII16sIIIH")
_STATE: Final = struct.Struct("<BIqqHIqBIH")
_TARGET: Final = struct.Struct("<H16sIqI")
_ENTRY: Final = struct.Struct("<HqI")
_EFFECT: Final = struct.Struct("<HI")
_NUMBER: Final = ""
"""In place of a participant's name, of the last effect: its data is the number of the try."""
_FLOOR: Final = struct.Struct("<Bq")


class StagedKey(NamedTuple):
    """What the key of a staged batch tells; its value is the batch itself."""

    place: StagedBatchId
    topic: str
    topic_id: str
    partition: int
    records: int
    body_crc32c: int
    """Tells a batch that was sent again from another one."""


def encode_owner(owner: Owner) -> bytes:
    """Key of the topic of transactions; also the beginning of a staged batch's key."""
    name = owner.name.encode()
    return _OWNER.pack(_VERSION, _KINDS[owner.kind], len(name)) + name


def _decode_owner(data: bytes) -> tuple[Owner, int]:
    """The owner, and where it ends. ValueError."""
    try:
        version, kind, size = _OWNER.unpack_from(data)
        end = _OWNER.size + size
        if version != _VERSION or kind not in _NAMES or len(data) < end:
            raise ValueError(f"no owner of version {_VERSION}: {data[:32]!r}")
        return Owner(_NAMES[kind], data[_OWNER.size : end].decode()), end
    except struct.error as error:
        raise ValueError(f"no owner: {error}") from None


def decode_owner(data: bytes) -> Owner:
    """Key of the topic of transactions. ValueError: not a key of this version."""
    owner, end = _decode_owner(data)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes behind the owner")
    return owner


def encode_staged_key(key: StagedKey) -> bytes:
    """Key of a record in the topic of staged batches."""
    place, topic = key.place, key.topic.encode()
    return b"".join(
        (
            encode_owner(place.owner),
            _STAGED.pack(
                place.epoch, place.batch_id, place.task, place.attempt, place.number,
                bytes.fromhex(key.topic_id), key.partition, key.records, key.body_crc32c,
                len(topic),
            ),
            topic,
        )
    )  # fmt: skip


def decode_record_key(data: bytes) -> Owner | StagedKey:
    """Key in the topic of staged batches: an owner's state, or a staged batch. ValueError: not a
    key of this version."""
    owner, end = _decode_owner(data)
    return owner if end == len(data) else _decode_staged(data, owner, end)


def decode_staged_key(data: bytes) -> StagedKey:
    """ValueError: not a key of this version."""
    return _decode_staged(data, *_decode_owner(data))


def _decode_staged(data: bytes, owner: Owner, at: int) -> StagedKey:
    try:
        (epoch, batch_id, task, attempt, index, topic_id, partition, records, crc, size) = (
            _STAGED.unpack_from(data, at)
        )
    except struct.error as error:
        raise ValueError(f"a staged batch's key: {error}") from None
    at += _STAGED.size
    if len(data) != at + size:
        raise ValueError(f"a staged batch's key of {len(data)} bytes")
    place = StagedBatchId(owner, epoch, batch_id, task, attempt, index)
    return StagedKey(place, data[at:].decode(), topic_id.hex(), partition, records, crc)


def encode_floor(offset: int) -> bytes:
    """Value of the record with `FLOOR_KEY`."""
    return _FLOOR.pack(_VERSION, offset)


def decode_floor(data: bytes) -> int:
    """ValueError: not an offset of this version."""
    if len(data) != _FLOOR.size or data[0] != _VERSION:
        raise ValueError(f"no floor of version {_VERSION}: {data[:32]!r}")
    offset: int = _FLOOR.unpack(data)[1]
    return offset


def encode_state(state: OwnerState) -> bytes:
    """Value of the topic of transactions; targets and effects follow the fixed part."""
    pending = state.pending
    targets, effects = (pending.targets, pending.effects) if pending else ((), ())
    if pending is not None and pending.number >= 0:
        effects = (*effects, (_NUMBER, pending.number.to_bytes(8, "little")))
    parts = [
        _STATE.pack(
            _VERSION, state.epoch, state.last_batch_id, state.producer_id, state.producer_epoch,
            state.timeout_ms, state.updated_ms, pending is not None, len(targets), len(effects),
        )
    ]  # fmt: skip
    for target in targets:
        topic = target.topic.encode()
        parts += (
            _TARGET.pack(
                len(topic),
                bytes.fromhex(target.topic_id),
                target.partition,
                target.floor_offset,
                len(target.entries),
            ),
            topic,
        )
        parts += [_ENTRY.pack(*entry) for entry in target.entries]
    for name, data in effects:
        parts += (_EFFECT.pack(len(name.encode()), len(data)), name.encode(), data)
    return b"".join(parts)


def decode_state(data: bytes) -> OwnerState:
    """ValueError: not a state of this version."""
    try:
        (version, epoch, last_batch_id, producer_id, producer_epoch, timeout_ms, updated_ms,
         has_pending, target_count, effect_count) = _STATE.unpack_from(data)  # fmt: skip
        if version != _VERSION:
            raise ValueError(f"version {version} of a state; this build reads {_VERSION}")
        reader = _Reader(data, _STATE.size)
        targets = tuple(reader.target() for _ in range(target_count))
        effects = tuple(reader.effect() for _ in range(effect_count))
        number = -1
        if effects and effects[-1][0] == _NUMBER:
            number = int.from_bytes(effects[-1][1], "little")
            effects = effects[:-1]
            if not 0 <= number < 2**63:
                raise ValueError(f"a try with the number {number}")
    except struct.error as error:
        raise ValueError(f"a state of {len(data)} bytes: {error}") from None
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes behind the state")
    return OwnerState(
        epoch,
        last_batch_id,
        producer_id,
        producer_epoch,
        timeout_ms,
        updated_ms,
        PendingCommit(targets, effects, number) if has_pending else None,
    )


class _Reader:
    """Walks along the parts of a state."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise ValueError(f"a state of {len(self._data)} bytes ends too early")
        return self._data[self.at - size : self.at]

    def target(self) -> CommitTarget:
        size, topic_id, partition, floor, count = _TARGET.unpack(self._bytes(_TARGET.size))
        topic = self._bytes(size).decode()
        rows = self._bytes(count * _ENTRY.size)
        entries = tuple(StagedRef(*row) for row in _ENTRY.iter_unpack(rows))
        return CommitTarget(topic, topic_id.hex(), partition, floor, entries)

    def effect(self) -> tuple[str, bytes]:
        name, size = _EFFECT.unpack(self._bytes(_EFFECT.size))
        return self._bytes(name).decode(), self._bytes(size)
