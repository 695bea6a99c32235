"""Exponential backoff with jitter: how long to wait before the next attempt.

Source: "equal jitter" in M. Brooker, "Exponential Backoff And Jitter" (AWS, 2015): half of the wait
is kept, so that attempts do not come at once, and half is random, so that many clients that failed
together do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Waits that double up to a bound, each drawn between half of it and the whole.

    `rng` gives numbers from 0 up to 1, like `random.Random(seed).random`.
    """

    def __init__(self, first_ms: int, max_ms: int, rng: Callable[[], float]) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._rng = rng
        self._attempts = 0

    def next_ms(self) -> float:
        """Wait before the next attempt (ms)."""
        whole_ms = min(self._max_ms, self._first_ms << min(self._attempts, 30))
        self._attempts += 1
        return whole_ms * (0.5 + 0.5 * self._rng())

    def next_s(self) -> float:
        """`next_ms` in seconds."""
        return self.next_ms() / 1000

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the first one again."""
        self._attempts = 0
