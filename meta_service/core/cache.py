"""The whole KV space in memory, as of the last command applied. Read without waiting."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence

from lakemq.meta_service.catalog.tables import Row, prefix_end


class Cache:
    """Rows by key, and the keys in order. One thread reads and updates it."""

    def __init__(self) -> None:
        self.revision = 0
        self.applied_index = 0
        self.hits = 0
        self.misses = 0
        self.size_bytes = 0
        """Of keys and values."""
        self._rows: dict[bytes, Row] = {}
        self._keys: list[bytes] = []

    def __len__(self) -> int:
        return len(self._keys)

    def load(self, rows: Iterable[tuple[bytes, Row]], revision: int, applied_index: int) -> None:
        """Load stored rows in place of what is there, which come in the order of their keys."""
        self._rows = dict(rows)
        self._keys = list(self._rows)
        self.size_bytes = sum(len(key) + len(row.value) for key, row in self._rows.items())
        self.revision, self.applied_index = revision, applied_index

    def update(
        self, rows: Sequence[tuple[bytes, Row | None]], revision: int, applied_index: int
    ) -> None:
        """Take over what one command changed."""
        for key, row in rows:
            old = self._rows.get(key)
            if old is not None:
                self.size_bytes -= len(key) + len(old.value)
            if row is not None:
                if old is None:
                    # O(n) in the number of keys, but one memory move of pointers; scans are plain
                    # slices.
                    bisect.insort(self._keys, key)
                self._rows[key] = row
                self.size_bytes += len(key) + len(row.value)
            elif old is not None:
                del self._rows[key]
                del self._keys[bisect.bisect_left(self._keys, key)]
        self.revision, self.applied_index = revision, applied_index

    def get(self, key: bytes) -> Row | None:
        """The row; None: the key is absent."""
        row = self._rows.get(key)
        if row is None:
            self.misses += 1
        else:
            self.hits += 1
        return row

    def scan(
        self, prefix: bytes, limit: int = 0, *, after: bytes = b""
    ) -> Iterator[tuple[bytes, Row]]:
        """(key, row) with that prefix behind `after`, in order; at most `limit`, 0: all."""
        start = bisect.bisect_left(self._keys, prefix)
        if after:
            start = max(start, bisect.bisect_right(self._keys, after))
        end_key = prefix_end(prefix)
        end = len(self._keys) if end_key is None else bisect.bisect_left(self._keys, end_key)
        if limit:
            end = min(end, start + limit)
        # A copy of the keys, but rows are looked up as they are given: a caller that waits between
        # two of them must take a list first.
        for key in self._keys[start:end]:
            yield key, self._rows[key]
