"""How fast replicas that are far behind may copy: a token bucket of bytes."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.25
"""The bucket holds what comes in this time, so that a pause is not made up for in one gulp."""


class TokenBucket:
    """Bytes per second. `bytes_per_s` 0: unlimited.

    A transfer is begun while tokens are left and spends what it took, so the bucket may go below
    zero by one transfer: its size is not known before the read.
    """

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        """Raises ValueError for a negative rate."""
        self._tokens = 0.0
        self._at_s = now_s
        self._bytes_per_s = 0.0
        self.set_rate(bytes_per_s, now_s)
        self._tokens = self._bytes_per_s * BURST_S

    def set_rate(self, bytes_per_s: float, now_s: float) -> None:
        """The rate from now on. Raises ValueError for a negative rate."""
        if bytes_per_s < 0:
            raise ValueError(f"bytes_per_s: {bytes_per_s}; must not be negative")
        self._fill(now_s)
        self._bytes_per_s = bytes_per_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next transfer may begin; 0: now."""
        self._fill(now_s)
        if not self._bytes_per_s or self._tokens > 0:
            return 0.0
        # One byte more than the debt, as nothing may begin at zero tokens.
        return (1.0 - self._tokens) / self._bytes_per_s

    def spend(self, size: int, now_s: float) -> None:
        """A transfer of `size` bytes was begun."""
        self._fill(now_s)
        if self._bytes_per_s:
            self._tokens -= size

    def _fill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        limit = self._bytes_per_s * BURST_S
        self._tokens = min(limit, self._tokens + passed_s * self._bytes_per_s)
