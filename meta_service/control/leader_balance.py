"""Which replica comes first, and so leads: as many partitions on each node, then as many bytes.

It costs no copy. What need not change stays: numbers that differ by one are even, and bytes are
left alone until a node leads a fifth more than the mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

ABOVE_MEAN: Final = 0.2
"""A node that leads so much more than the mean of bytes gives some away."""
WORTH: Final = 0.05
"""Part of the mean that an exchange must bring: sizes change all the time."""
EXCHANGES_MAX: Final = 200
"""In one plan, so that it takes no longer than the planning of replicas."""


def spread_leaders(
    homes: Sequence[list[str]],
    sizes: Sequence[int],
    led: Mapping[str, int],
    led_bytes: Mapping[str, int],
) -> None:
    """Bring another replica of `homes` to the front where that makes nodes more alike.

    `sizes`: bytes of each of them; all 0 where they are not known. `led`, `led_bytes`: what nodes
    lead beside them, which stays.
    """
    _Leaders(homes, sizes, led, led_bytes).spread()


class _Leaders:
    """Terminates: no step makes counts less even, and those that leave them alone make bytes more
    even."""

    def __init__(
        self,
        homes: Sequence[list[str]],
        sizes: Sequence[int],
        led: Mapping[str, int],
        led_bytes: Mapping[str, int],
    ) -> None:
        self._homes = homes
        self._sizes = sizes
        nodes = {*led, *(node for home in homes for node in home)}
        self._count = Counter({node: led.get(node, 0) for node in nodes})
        self._bytes = Counter({node: led_bytes.get(node, 0) for node in nodes})
        for home, size in zip(homes, sizes, strict=True):
            self._count[home[0]] += 1
            self._bytes[home[0]] += size

    def spread(self) -> None:
        self._even_counts()
        for _ in range(EXCHANGES_MAX):
            if not self._exchange():
                break
            self._even_counts()

    def _even_counts(self) -> None:
        while any([self._lead_elsewhere(number) for number in range(len(self._homes))]):
            pass  # one change may allow another

    def _lead_elsewhere(self, number: int) -> bool:
        """Whether that brought two nodes nearer to each other."""
        home = self._homes[number]
        best = min(home, key=lambda node: (self._count[node], node))
        if self._count[home[0]] - self._count[best] < 2:
            return False
        self._move(number, best)
        return True

    def _move(self, number: int, new: str) -> None:
        home, size = self._homes[number], self._sizes[number]
        for node, sign in ((home[0], -1), (new, 1)):
            self._count[node] += sign
            self._bytes[node] += sign * size
        home.remove(new)
        home.insert(0, new)

    def _exchange(self) -> bool:
        """Whether a node that leads too many bytes gave some of them to another one."""
        mean = sum(self._bytes.values()) / max(1, len(self._bytes))
        order = sorted(self._bytes, key=lambda node: (self._bytes[node], node))
        for old in reversed(order):
            if self._bytes[old] <= (1 + ABOVE_MEAN) * mean:
                return False
            for new in order:
                if self._give(old, new, max(1, int(WORTH * mean))):
                    return True
        return False

    def _give(self, old: str, new: str, least: int) -> bool:
        """One leadership for a smaller one; for none where `old` leads one more."""
        gap = self._bytes[old] - self._bytes[new]
        if gap < 2 * least:
            return False
        back = self._between(new, old)
        smaller = [size for size, _ in back]
        found: list[tuple[float, int, int | None]] = []
        for size, number in self._between(old, new):
            offers: list[tuple[int, int | None]] = []
            # The two that are nearest to what would level both nodes.
            at = bisect_left(smaller, size - gap / 2)
            offers += back[max(0, at - 1) : at + 1]
            if self._count[old] - self._count[new] == 1:
                offers.append((0, None))
            for returned, other in offers:
                brought = size - returned
                if least <= brought <= gap - least:
                    found.append((abs(gap / 2 - brought), number, other))
        if not found:
            return False
        _, number, returned_for = min(found, key=_order)
        self._move(number, new)
        if returned_for is not None:
            self._move(returned_for, old)
        return True

    def _between(self, leader: str, other: str) -> list[tuple[int, int]]:
        """(size, number) of what the one leads and the other could, the smallest first."""
        return sorted(
            (self._sizes[number], number)
            for number, home in enumerate(self._homes)
            if home[0] == leader and other in home
        )


def _order(offer: tuple[float, int, int | None]) -> tuple[float, int, int]:
    miss, number, other = offer
    return miss, number, -1 if other is None else other
