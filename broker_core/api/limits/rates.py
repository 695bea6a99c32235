"""Rates that are kept by letting clients wait, not by dropping: a token bucket that counts in time.

What was used is paid for afterwards, so a bucket can be in debt. An amount costs the time in which
so much may be used, amount / rate (GCRA, the leaky bucket of ATM Forum's traffic management as a
scheduler): so a rate may change without a word about what was used before.
"""

from __future__ import annotations

from typing import Final

BURST_MS: Final = 1000.0
"""What a bucket holds: so much may be used at once by who was quiet, however long."""
_ROUNDING_MS: Final = 1e-6
"""The last of one second's worth, used one by one, must be there in spite of rounding errors."""


class Bucket:
    """So much a second; `per_second` 0: without limit. It may be set at any time."""

    __slots__ = ("_at_ms", "_held_ms", "per_second")

    def __init__(self, per_second: int, now_ms: int) -> None:
        self.per_second = per_second
        self._held_ms = BURST_MS
        """Time that is paid for; below 0: owed."""
        self._at_ms = now_ms

    def pay(self, amount: int, now_ms: int) -> float:
        """Take `amount` out; how long until the bucket is out of debt (ms)."""
        if not self.per_second:
            return 0.0
        held_ms = self._fill(now_ms) - amount * 1000 / self.per_second
        self._held_ms = held_ms
        return -held_ms if held_ms < -_ROUNDING_MS else 0.0

    def take(self, now_ms: int) -> bool:
        """Take one if there is one."""
        if not self.per_second:
            return True
        left_ms = self._fill(now_ms) - 1000 / self.per_second
        if left_ms < -_ROUNDING_MS:
            return False
        self._held_ms = left_ms
        return True

    def _fill(self, now_ms: int) -> float:
        # The difference of times first: a sum with the time of day would lose its fractions.
        held_ms = self._held_ms + (now_ms - self._at_ms)
        self._held_ms = held_ms if held_ms < BURST_MS else BURST_MS
        self._at_ms = now_ms
        return self._held_ms
