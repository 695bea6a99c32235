"""Which numbers of one device came, from the order in which they came. Pure.

A window of bits over the newest numbers tells late records from repeated ones, as the anti-replay
window of IPsec does (RFC 4303, 3.4.3). A number that is far from the others is believed only when
its successor follows, as RTP receivers do (RFC 3550, A.1): a single corrupt number moves nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 1024
"""How far behind the highest number records are told to be late or repeated."""
JUMP_MAX: Final = 1_000_000
"""Numbers that may be missing in one gap; what jumps farther is no gap."""
_MASK: Final = (1 << WINDOW) - 1
_ALL_UNSEEN: Final = _MASK ^ 1
_PAIR_MAX: Final = 2
"""How much higher than a stray the next number may be to confirm it."""


class Outcome(enum.Enum):
    """What a number turned out to be."""

    NEXT = "next"
    """The highest so far; also behind a gap, and the first of a device."""
    LATE = "late"
    DUPLICATE = "duplicate"
    STRAY = "stray"
    RESTART = "restart"
    """The number before it was no stray: the device began again there."""


@dataclass(slots=True)
class NumberWindow:
    """The numbers of one device. With `wrap`, `highest` goes on growing."""

    highest: int | None = None
    """None: there was none yet."""
    lowest: int = 0
    """Where it began, or began again: what lies below was never missing."""
    unseen: int = _ALL_UNSEEN
    """Bit i: `highest - i` did not come."""
    stray: int | None = None
    """A number that was too far away, or the first one again; None: the last one was neither."""
    missing: int = 0
    gaps: int = 0
    late: int = 0
    duplicates: int = 0
    strays: int = 0
    restarts: int = 0

    def place(self, number: int, *, first: int | None = None, wrap: int = 0) -> Outcome:
        """Count a number. `first` and `wrap`: as in `LedgerRule`."""
        highest = self.highest
        if highest is None:
            self._begin(number)
            return Outcome.NEXT
        distance = number - highest
        if wrap:
            distance %= wrap
            distance -= wrap if distance > wrap // 2 else 0
            number = highest + distance
        stray, self.stray = self.stray, None
        if stray is not None and 0 < number - stray <= _PAIR_MAX:
            self.strays -= 1
            self.restarts += 1
            self._begin(stray)
            self._advance(stray, number - stray)
            return Outcome.RESTART
        begins = number == first and distance < 0
        if begins or not -WINDOW < distance <= JUMP_MAX:
            self.stray = number
            self.strays += 1
            return Outcome.STRAY
        if distance > 0:
            self._advance(highest, distance)
            return Outcome.NEXT
        return self._behind(number, 1 << -distance)

    def _begin(self, number: int) -> None:
        self.highest = self.lowest = number
        self.unseen = _ALL_UNSEEN

    def _advance(self, highest: int, distance: int) -> None:
        self.highest = highest + distance
        if distance < WINDOW:
            self.unseen = (self.unseen << distance | (1 << distance) - 2) & _MASK
        else:
            self.unseen = _ALL_UNSEEN
        if distance > 1:
            self.gaps += 1
            self.missing += distance - 1

    def _behind(self, number: int, bit: int) -> Outcome:
        if not self.unseen & bit:
            self.duplicates += 1
            return Outcome.DUPLICATE
        self.unseen ^= bit
        self.late += 1
        if number > self.lowest:
            self.missing -= 1
        return Outcome.LATE


def nearest(elapsed_ms: int, interval_ms: int) -> int:
    """How many intervals a time is, to the nearest whole one; half an interval counts as one."""
    return (2 * elapsed_ms + interval_ms) // (2 * interval_ms)
