"""How long to wait before the next attempt to connect. Pure: the caller gives the chance.

Source: "full jitter" in M. Brooker, "Exponential Backoff And Jitter" (AWS, 2015).
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Waits that double up to a bound, each drawn between half of it and the whole."""

    def __init__(self, first_ms: int, most_ms: int, chance: Callable[[], float]) -> None:
        """`chance` gives numbers from 0 up to 1."""
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._chance = chance
        self._attempts = 0

    def next_ms(self) -> float:
        """Wait before the next attempt (ms)."""
        whole = min(self._most_ms, self._first_ms << min(self._attempts, 30))
        self._attempts += 1
        return whole * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """A link stood: begin anew."""
        self._attempts = 0
