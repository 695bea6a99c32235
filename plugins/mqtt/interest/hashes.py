"""Sets of 64-bit hashes of topic names, 8 bytes an entry."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

HASH_BYTES: Final = 8
_BUCKET_BITS: Final = 12
_BUCKETS: Final = 1 << _BUCKET_BITS
_SHIFT: Final = 64 - _BUCKET_BITS


class Hasher:
    """Hashes names under a key: names that collide in one cluster do not in another."""

    def __init__(self, key: str) -> None:
        self._start = hashlib.blake2b(digest_size=HASH_BYTES, key=key.encode()[:64])

    def __call__(self, name: str) -> int:
        one = self._start.copy()
        one.update(name.encode())
        return int.from_bytes(one.digest(), "big")


class HashSet:
    """Sorted arrays, one for each beginning of 12 bits: a million entries take 8 MB and some."""

    __slots__ = ("_buckets", "_count")

    def __init__(self) -> None:
        self._buckets: list[array[int] | None] = [None] * _BUCKETS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry: int) -> bool:
        bucket = self._buckets[entry >> _SHIFT]
        if bucket is None:
            return False
        place = bisect_left(bucket, entry)
        return place < len(bucket) and bucket[place] == entry

    def add(self, entry: int) -> bool:
        """False: it was there."""
        bucket = self._buckets[entry >> _SHIFT]
        if bucket is None:
            bucket = self._buckets[entry >> _SHIFT] = array("Q")
        place = bisect_left(bucket, entry)
        if place < len(bucket) and bucket[place] == entry:
            return False
        bucket.insert(place, entry)
        self._count += 1
        return True

    def discard(self, entry: int) -> bool:
        """False: it was not there."""
        bucket = self._buckets[entry >> _SHIFT]
        if bucket is None:
            return False
        place = bisect_left(bucket, entry)
        if place == len(bucket) or bucket[place] != entry:
            return False
        del bucket[place]
        self._count -= 1
        return True

    def update(self, entries: array[int]) -> None:
        """Add sorted entries, which as a rule come behind all that are there, in bulk."""
        start, end = 0, len(entries)
        while start < end:
            number = entries[start] >> _SHIFT
            behind = (
                bisect_left(entries, (number + 1) << _SHIFT, start)
                if number + 1 < _BUCKETS
                else end
            )
            run = entries[start:behind]
            bucket = self._buckets[number]
            if bucket is None:
                self._buckets[number] = run
                self._count += len(run)
            elif bucket[-1:] < run[:1]:
                bucket.extend(run)
                self._count += len(run)
            else:
                for entry in run:
                    self.add(entry)
            start = behind

    def parts(self, count_max: int) -> Iterator[array[int]]:
        """All entries, sorted, about `count_max` at a time. Entries may be added and removed
        between: those of buckets that come later are told as they are by then."""
        part = array("Q")
        for number in range(_BUCKETS):
            bucket = self._buckets[number]
            if bucket is None:
                continue
            part.extend(bucket)
            if len(part) >= count_max:
                yield part
                part = array("Q")
        yield part


def packed(entries: array[int]) -> bytes:
    """As bytes, little endian."""
    return entries.tobytes() if _LITTLE else _swapped(entries).tobytes()


def unpacked_hashes(data: bytes) -> array[int] | None:
    """In rising order, each once; None: the bytes are none."""
    if len(data) % HASH_BYTES:
        return None
    found = array("Q")
    found.frombytes(data)
    return array("Q", sorted(set(found if _LITTLE else _swapped(found))))


def _swapped(entries: array[int]) -> array[int]:
    copy = array("Q", entries)
    copy.byteswap()
    return copy


_LITTLE: Final = array("H", [1]).tobytes()[0] == 1
