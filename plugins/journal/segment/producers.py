"""Idempotent producers of one partition: which batch may come next, and what came last.

As Kafka's KIP-98: a producer numbers its records per partition; the log takes a batch only if it
follows the last one of that producer, and answers a repeated one with the offsets of then. The
last five batches of each producer are remembered, so that five may be under way at a time.

Bytes (little-endian), `docs/formats/journal.md`: u32 count, then per producer i64 id, u16 epoch,
u16 number of batches, i64 last seen (ms), then per batch i32 first sequence, i32 last sequence,
i64 base offset, i64 last offset.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import OutOfOrderSequence, ProducerFenced
from lakemq.broker_core.api.records.batch import BatchHeader

BATCHES_REMEMBERED: Final = 5
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
"""Sequences count from 0 to 2**31 - 1 and begin again at 0."""
_COUNT: Final = struct.Struct("<I")
_PRODUCER: Final = struct.Struct("<qHHq")
_BATCH: Final = struct.Struct("<iiqq")


class Appended(NamedTuple):
    """A batch that a producer appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class Producer(NamedTuple):
    """What a partition remembers of one producer."""

    epoch: int
    seen_ms: int
    """When the log last heard of it (broker's clock)."""
    batches: tuple[Appended, ...]
    """The newest `BATCHES_REMEMBERED`, oldest first; at least one."""


class ProducerTable:
    """Producers of one partition by id."""

    __slots__ = ("_producers",)

    def __init__(self, producers: dict[int, Producer] | None = None) -> None:
        self._producers = {} if producers is None else producers

    def __len__(self) -> int:
        return len(self._producers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerTable) and other._producers == self._producers

    def copy(self) -> ProducerTable:
        """An independent copy, to be changed and dropped."""
        # Shallow: the entries are immutable.
        return ProducerTable(dict(self._producers))

    def check(self, header: BatchHeader) -> Appended | None:
        """None: the batch may be appended. Appended: it is there already.

        ProducerFenced: an older epoch. OutOfOrderSequence: it doesn't follow what came last, which
        for a producer or epoch not seen yet means that it doesn't begin at 0.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            expected = 0
        elif header.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id}: epoch {header.producer_epoch} is over, "
                f"{producer.epoch} writes now"
            )
        else:
            last = _last_sequence(header)
            for batch in producer.batches:
                if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                    return batch
            expected = (producer.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} epoch {header.producer_epoch}: "
                f"sequence {header.base_sequence}, expected {expected}"
            )
        return None

    def note(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch that was appended; its header is stamped."""
        batch = Appended(
            header.base_sequence, _last_sequence(header), header.base_offset, header.last_offset
        )
        known = self._producers.get(header.producer_id)
        # A new epoch begins with sequence 0 and without a past; batches of the old one would be
        # taken for repetitions.
        batches: tuple[Appended, ...] = (batch,)
        if known is not None and known.epoch == header.producer_epoch:
            batches = (*known.batches[1 - BATCHES_REMEMBERED :], batch)
        self._producers[header.producer_id] = Producer(header.producer_epoch, now_ms, batches)

    def truncate(self, offset: int) -> set[int]:
        """Forget the batches at or behind `offset`. Returns the producers of which older batches
        are to be searched below it (`note_older`); `forget_unfound` ends the search."""
        wanted: set[int] = set()
        for producer_id, known in list(self._producers.items()):
            left = tuple(batch for batch in known.batches if batch.base_offset < offset)
            if len(left) == len(known.batches):
                continue
            # Fewer than are remembered, from sequence 0 on: that is all of its epoch.
            complete = (
                len(known.batches) < BATCHES_REMEMBERED and known.batches[0].first_sequence == 0
            )
            if not left and complete and known.epoch == 0:
                del self._producers[producer_id]
                continue
            self._producers[producer_id] = known._replace(batches=left)
            if not left or not complete:
                wanted.add(producer_id)
        return wanted

    def note_older(self, header: BatchHeader, offset: int) -> bool:
        """After `truncate(offset)`: remember a batch below it, the newest first; whether older
        ones of its producer are still wanted."""
        known = self._producers[header.producer_id]
        if not known.batches:
            # Above the cut it may have had a newer epoch.
            known = known._replace(epoch=header.producer_epoch)
        if header.producer_epoch != known.epoch:
            return False
        first = known.batches[0].base_offset if known.batches else offset
        if header.base_offset < first:
            batch = Appended(
                header.base_sequence, _last_sequence(header), header.base_offset, header.last_offset
            )
            known = known._replace(batches=(batch, *known.batches))
            self._producers[header.producer_id] = known
        return len(known.batches) < BATCHES_REMEMBERED

    def forget_unfound(self) -> None:
        """Forget the producers that have no batch below the cut."""
        for producer_id in [key for key, value in self._producers.items() if not value.batches]:
            del self._producers[producer_id]

    def expire(self, seen_before_ms: int, producers_max: int) -> int:
        """Forget producers not heard of since, and the longest silent of too many; how many."""
        producers = self._producers
        old = [key for key, value in producers.items() if value.seen_ms < seen_before_ms]
        for key in old:
            del producers[key]
        surplus = len(producers) - producers_max
        if surplus > 0:
            silent = sorted(producers, key=lambda key: producers[key].seen_ms)[:surplus]
            for key in silent:
                del producers[key]
            old += silent
        return len(old)

    def encode(self) -> bytes:
        """The bytes of a producer snapshot; `docs/formats/journal.md` describes them."""
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, producer in sorted(self._producers.items()):
            parts.append(
                _PRODUCER.pack(producer_id, producer.epoch, len(producer.batches), producer.seen_ms)
            )
            parts += [_BATCH.pack(*batch) for batch in producer.batches]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> ProducerTable:
        """Inverse of `encode`. struct.error if the bytes end early; a CRC guards them around."""
        (count,) = _COUNT.unpack_from(data)
        producers, at = {}, _COUNT.size
        for _ in range(count):
            producer_id, epoch, batch_count, seen_ms = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            batches = []
            for _ in range(batch_count):
                batches.append(Appended(*_BATCH.unpack_from(data, at)))
                at += _BATCH.size
            producers[producer_id] = Producer(epoch, seen_ms, tuple(batches))
        return cls(producers)


def _last_sequence(header: BatchHeader) -> int:
    """By offsets, not by count: compaction takes records out of a batch, but not numbers."""
    return (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MASK
