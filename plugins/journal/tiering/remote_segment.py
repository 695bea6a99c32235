"""A segment in an object store, read as a file is. Edge, blocking.

What the store gives counts only where its sums say that it is what was stored: an object swapped
for another one is full of valid batches. Single foreign blocks are shown as zeros, so that readers
find damage there and the records around it; an object without one good block is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lakemq.plugins.journal.segment.files import Files, replace_file
from lakemq.plugins.journal.segment.manifest import RemotePlace, SegmentInfo
from lakemq.plugins.journal.segment.sums import (
    BLOCK_BYTES,
    BadSums,
    BlockSums,
    decode_sums,
    encode_sums,
    sum_up,
)
from lakemq.plugins.journal.tiering.object_store import (
    ObjectShort,
    ObjectStore,
    StoreError,
    name_of,
)

_FOREIGN_MAX: Final = 64
"""Foreign blocks without a good one before them, after which the object is another one."""


class ForeignObject(StoreError):
    """The object is not the one that was stored."""


class RemoteSegment:
    """Every method raises StoreError."""

    def __init__(self, store: ObjectStore, place: RemotePlace, sums: BlockSums) -> None:
        self._store = store
        self._place = place
        self._sums = sums
        self._good = 0
        self._foreign: set[int] = set()

    def read_at(self, position: int, size: int) -> bytes:
        """ForeignObject: nothing that was read of it is as stored."""
        size = min(size, self._place.size_bytes - position)
        if size <= 0:
            return b""
        first = position // BLOCK_BYTES
        start = first * BLOCK_BYTES
        end = min(_blocks(position + size) * BLOCK_BYTES, self._place.size_bytes)
        # Whole blocks are read, for only those have sums.
        data = _read(self._store, self._place, start, end - start)
        foreign = self._sums.foreign(first, data)
        self._good += _blocks(end - start) - len(foreign)
        if foreign:
            self._foreign.update(foreign)
            self._refuse_whole()
            data = _without(data, [block - first for block in foreign])
        return data[position - start : position - start + size]

    def _refuse_whole(self) -> None:
        # One good block shows that it is the right object, however damaged.
        wanted = min(_FOREIGN_MAX, _blocks(self._place.size_bytes))
        if not self._good and len(self._foreign) >= wanted:
            raise ForeignObject(
                f"{self._place.uri} is not the object that was stored: none of the "
                f"{len(self._foreign)} blocks read has the CRC-32C of then"
            )

    @property
    def trouble(self) -> str:
        """What was found wrong so far; empty: nothing."""
        if not self._foreign:
            return ""
        place = self._place
        start = min(self._foreign) * BLOCK_BYTES
        end = min((max(self._foreign) + 1) * BLOCK_BYTES, place.size_bytes)
        return f"bytes {start}..{end} of {place.uri} are not those that were stored (CRC-32C)"

    def close(self) -> None:
        """Nothing is held open."""


def _blocks(size: int) -> int:
    return (size + BLOCK_BYTES - 1) // BLOCK_BYTES


def _without(data: bytes, blocks: Iterable[int]) -> bytes:
    """`data` with zeros for these blocks of it."""
    clean = bytearray(data)
    for block in blocks:
        start = block * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, len(clean))
        clean[start:end] = bytes(end - start)
    return bytes(clean)


def open_remote(
    files: Files, folder: Path, store: ObjectStore, segment: SegmentInfo, place: RemotePlace
) -> RemoteSegment:
    """With the sums that lie in the folder, or, where they don't, with sums made from the object.

    ForeignObject: it is not the one that was stored. StoreError.
    """
    sums = kept_sums(files, folder, segment, place)
    if sums is None:
        sums = sums_of(store, place)
        with suppress(OSError):  # A hint only: the next one who needs it makes it again.
            replace_file(files, folder / segment.sums_name, encode_sums(sums))
    return RemoteSegment(store, place, sums)


def kept_sums(
    files: Files, folder: Path, segment: SegmentInfo, place: RemotePlace
) -> BlockSums | None:
    """The sums that lie in the folder; None: they can't be had or are not this segment's."""
    try:
        return decode_sums(files.read(folder / segment.sums_name), place.size_bytes, place.crc32c)
    except (OSError, BadSums):
        return None


def _read(store: ObjectStore, place: RemotePlace, position: int, size: int) -> bytes:
    try:
        return store.read(name_of(store, place.uri), place.position + position, size)
    except ObjectShort as error:
        raise ForeignObject(f"{place.uri} is not the object that was stored: {error}") from None


def sums_of(store: ObjectStore, place: RemotePlace) -> BlockSums:
    """The sums of an object, read whole. ForeignObject: it is not the one stored. StoreError."""
    sums = sum_up(lambda at, size: _read(store, place, at, size), place.size_bytes)
    if sums.crc32c != place.crc32c:
        raise ForeignObject(
            f"{place.uri} is not the object that was stored: CRC-32C {sums.crc32c:08x}, "
            f"{place.crc32c:08x} was stored"
        )
    return sums
