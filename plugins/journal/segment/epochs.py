"""Which leader epochs the batches of a log were appended in, and where each begins.

The table is fed from batch headers alone: an epoch is in it from its first batch on. What a leader
says of its present epoch would be wrong for a follower that still copies batches of older ones.
It answers where two logs part (KIP-101, KIP-279).

An epoch begins where the batch before its first one ends. Where compaction left a gap between the
two, that is the lowest of the offsets at which it may have begun: so a log that has other records
in the gap parts there, rather than being taken for a beginning of this one.

Bytes (little-endian), `docs/formats/journal.md`: u32 count, then per epoch i32 epoch, i64 offset at
which it begins.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from lakemq.broker_core.api.records.batch import BatchHeader

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<iq")
NO_EPOCH = -1
"""Below every epoch: of a log without batches."""

EpochStarts = tuple[tuple[int, int], ...]
"""(epoch, offset at which it begins) of each epoch, both ascending."""


class EpochTable:
    """Epochs of one log, ascending, and the offset at which each begins."""

    __slots__ = ("_epochs", "_starts", "last")

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.last = NO_EPOCH
        """The newest epoch; `NO_EPOCH` without one."""
        self.extend(starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochTable) and other.starts() == self.starts()

    def __repr__(self) -> str:
        return f"EpochTable({self.starts()!r})"

    def starts(self) -> EpochStarts:
        """What the table holds."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def extend(self, starts: Iterable[tuple[int, int]]) -> None:
        """Take in (epoch, offset) pairs behind what the table holds; those that are known already
        change nothing."""
        for epoch, offset in starts:
            if epoch > self.last:
                self._add(epoch, offset)

    def copy(self) -> EpochTable:
        """An independent copy."""
        return EpochTable(self.starts())

    def note(self, header: BatchHeader, end: int) -> None:
        """Take in the next batch of a log that ended at `end` before it. Call it where
        `header.leader_epoch != last`: nothing changes within an epoch, nor by an epoch that falls,
        which no log holds."""
        if header.leader_epoch > self.last:
            self._add(header.leader_epoch, end)

    def _add(self, epoch: int, offset: int) -> None:
        self._epochs.append(epoch)
        self._starts.append(offset)
        self.last = epoch

    def epoch_at(self, offset: int) -> int:
        """Epoch of the last batch that begins below `offset`; `NO_EPOCH` without one."""
        at = bisect_left(self._starts, offset)
        return self._epochs[at - 1] if at else NO_EPOCH

    def end_of(self, epoch: int, log_start: int, log_end: int) -> tuple[int, int]:
        """(greatest epoch not above `epoch`, offset behind its last record) in a log of these
        bounds; (`NO_EPOCH`, `log_start`) without one."""
        at = bisect_right(self._epochs, epoch)
        if not at:
            return NO_EPOCH, log_start
        return self._epochs[at - 1], self._starts[at] if at < len(self._starts) else log_end

    def truncate(self, offset: int) -> None:
        """Forget what begins at or behind `offset`."""
        at = bisect_left(self._starts, offset)
        del self._epochs[at:], self._starts[at:]
        self.last = self._epochs[-1] if at else NO_EPOCH

    def forget_before(self, offset: int) -> None:
        """Forget the epochs that end at or below `offset`, the log's start; never the last one."""
        at = bisect_right(self._starts, offset) - 1
        if at > 0:
            del self._epochs[:at], self._starts[:at]

    def encode(self) -> bytes:
        """The table's bytes in a checkpoint; `docs/formats/journal.md` describes them."""
        return _COUNT.pack(len(self._epochs)) + b"".join(
            _ENTRY.pack(epoch, start) for epoch, start in self.starts()
        )

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> tuple[EpochTable, int]:
        """(table, position behind it). struct.error if the bytes end early, ValueError unless
        epochs and offsets ascend; a CRC guards them around."""
        (count,) = _COUNT.unpack_from(data, position)
        end = position + _COUNT.size + count * _ENTRY.size
        if end > len(data):
            raise struct.error(f"{count} epochs in {len(data) - position} bytes")
        entries = _ENTRY.iter_unpack(data[position + _COUNT.size : end])
        return cls(ascending(entries)), end


def ascending(starts: Iterable[tuple[int, int]]) -> EpochStarts:
    """(epoch, offset) pairs as read from a file. ValueError unless both ascend from 0 on."""
    found = tuple((int(epoch), int(offset)) for epoch, offset in starts)
    before = (-1, -1)
    for each in found:
        if each[0] <= before[0] or each[1] <= before[1]:
            raise ValueError(f"epoch and offset {each} follow {before}")
        before = each
    return found
