"""What waits for its time, by key: the queue of every schedule."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

_DEAD_MIN = 64
"""Dead entries of the heap below this are not worth a new one."""


class DueItem(Protocol):
    """What a queue must know of an item; it stays as it is while it is held."""

    @property
    def key(self) -> str:
        """Name of the item, one of its kind in a queue."""

    @property
    def due_ms(self) -> int:
        """When it is due (ms since 1970, UTC)."""

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, as the queue counts it (bytes)."""


T = TypeVar("T", bound=DueItem)


class DueQueue(Generic[T]):
    """Items by key, handed out in the order of their time.

    An item is held, and counts, from `add` to `remove`: while it is being stored, while it waits,
    and while it is being delivered. It is handed out only when it is scheduled, which its owner
    does when it is on disk and again when it could not be delivered.

    Nothing is removed from the middle of the heap: an entry that does not count any more is dropped
    when it comes to the top, or with all others when they are most of the heap (lazy deletion, as
    in the implementation notes of Python's `heapq`).
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        """Of all items that are held."""
        self._items: dict[str, T] = {}
        self._scheduled: dict[str, int] = {}
        """Key -> number of its entry in the heap."""
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        """Items that are held."""
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """All that are held, in the order in which they came."""
        return iter(self._items.values())

    def get(self, key: str) -> T | None:
        """The item that is held under a key; None: there is none."""
        return self._items.get(key)

    def is_scheduled(self, key: str) -> bool:
        """Whether it is held and will be handed out."""
        return key in self._scheduled

    def add(self, item: T) -> None:
        """Hold an item, in place of one of the same key. It is not scheduled yet."""
        self.remove(item.key)
        self._items[item.key] = item
        self.size_bytes += item.size_bytes

    def remove(self, key: str) -> T | None:
        """Forget an item; None: it is not held."""
        item = self._items.pop(key, None)
        if item is not None:
            self.size_bytes -= item.size_bytes
            self.unschedule(key)
        return item

    def schedule(self, item: T, due_ms: int | None = None) -> None:
        """Hand an item out once, at its time or at `due_ms`, behind others of the same time. Does
        nothing when it is not held any more."""
        if self._items.get(item.key) is item:
            # The number keeps the order of equal times, and items are never compared.
            self._count += 1
            self._scheduled[item.key] = self._count
            at_ms = item.due_ms if due_ms is None else due_ms
            heapq.heappush(self._heap, (at_ms, self._count, item))

    def unschedule(self, key: str) -> None:
        """It is not handed out, but still held."""
        if self._scheduled.pop(key, None) is None:
            return
        # Only when most are dead, so that the cost of a new heap is spread over as many removals.
        if len(self._heap) > 2 * len(self._scheduled) + _DEAD_MIN:
            self._heap = [each for each in self._heap if self._counts(each)]
            heapq.heapify(self._heap)

    def _counts(self, entry: tuple[int, int, T]) -> bool:
        return self._scheduled.get(entry[2].key) == entry[1]

    def next_ms(self) -> int | None:
        """When the next item is due; None: none is scheduled."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int, count_max: int, bytes_max: int | None = None) -> list[T]:
        """What is due, in the order of time, up to the limits but one at least. It stays held, and
        is not handed out again unless it is scheduled again."""
        taken: list[T] = []
        size = 0
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            item = self._heap[0][2]
            size += item.size_bytes
            if taken and (len(taken) >= count_max or (bytes_max is not None and size > bytes_max)):
                break
            del self._scheduled[item.key]  # so that `next_ms` drops its entry
            taken.append(item)
        return taken
