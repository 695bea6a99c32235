"""Items in the order of the time at which they are due: the timer of every schedule."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_DEAD_MIN = 64
"""Dead entries below this are not worth a new heap."""


class DueQueue(Generic[T]):
    """A heap by due time; items of the same time come in the order in which they were added.

    Nothing is removed from the middle of a heap: `is_live` tells whether an item still counts, and
    one that does not is dropped when it comes to the top, or by `prune` (lazy deletion, as in the
    implementation notes of Python's `heapq`).
    """

    def __init__(self, is_live: Callable[[T], bool]) -> None:
        self._is_live = is_live
        self._heap: list[tuple[int, int, T]] = []
        self._order = count()

    def __len__(self) -> int:
        """Items in the heap, dead ones too."""
        return len(self._heap)

    def add(self, due_ms: int, item: T) -> None:
        """The item may be added again once it was taken."""
        # The number keeps the order of equal times, and items are never compared.
        heapq.heappush(self._heap, (due_ms, next(self._order), item))

    def first(self) -> tuple[int, T] | None:
        """When the next item is due, and the item; None: there is none."""
        heap = self._heap
        while heap and not self._is_live(heap[0][2]):
            heapq.heappop(heap)
        return (heap[0][0], heap[0][2]) if heap else None

    def take(self, now_ms: int) -> T | None:
        """The next item, out of the queue; None: nothing is due."""
        first = self.first()
        if first is None or first[0] > now_ms:
            return None
        heapq.heappop(self._heap)
        return first[1]

    def prune(self, live: int) -> None:
        """Drop the items that are not live, when they are most of the heap: `live` are."""
        # Only when most are dead, so that the cost of a new heap is spread over as many removals.
        if len(self._heap) > 2 * live + _DEAD_MIN:
            self._heap = [each for each in self._heap if self._is_live(each[2])]
            heapq.heapify(self._heap)
