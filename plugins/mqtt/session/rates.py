"""Rates that are kept by letting clients wait, not by dropping.

A bucket holds up to one second's worth. What was read is paid for afterwards, so a bucket can be in
debt; nothing more is read until the debt is paid.
"""

from __future__ import annotations


class Bucket:
    """A token bucket that refills continuously; `per_second` 0: without limit."""

    __slots__ = ("_filled_ms", "_level", "per_second")

    def __init__(self, per_second: int, now_ms: int) -> None:
        self.per_second = per_second
        self._level = float(per_second)
        self._filled_ms = now_ms

    def _fill(self, now_ms: int) -> None:
        gained = (now_ms - self._filled_ms) * self.per_second / 1000
        self._level = min(float(self.per_second), self._level + gained)
        self._filled_ms = now_ms

    def pay(self, amount: int, now_ms: int) -> None:
        """Take `amount` out, into debt if need be."""
        if self.per_second:
            self._fill(now_ms)
            self._level -= amount

    def wait_ms(self, now_ms: int) -> int:
        """How long until the bucket is out of debt."""
        if not self.per_second:
            return 0
        self._fill(now_ms)
        # Rounded up, so that the caller does not come back a fraction of a millisecond too early.
        return 0 if self._level >= 0 else int(-self._level * 1000 / self.per_second) + 1

    def take(self, now_ms: int) -> bool:
        """Take one if there is one."""
        if not self.per_second:
            return True
        self._fill(now_ms)
        if self._level < 1:
            return False
        self._level -= 1
        return True


class Throttle:
    """What one client may send a second."""

    __slots__ = ("_bytes", "_publishes", "wait_ms")

    def __init__(self, publishes_per_s: int, bytes_per_s: int, now_ms: int) -> None:
        self._publishes = Bucket(publishes_per_s, now_ms)
        self._bytes = Bucket(bytes_per_s, now_ms)
        self.wait_ms = 0
        """How long to pause reading from the client; the reader sets it to 0 after the pause."""

    def pay(self, publishes: int, size_bytes: int, now_ms: int) -> None:
        """The client sent this."""
        self._publishes.pay(publishes, now_ms)
        self._bytes.pay(size_bytes, now_ms)
        self.wait_ms = max(self._publishes.wait_ms(now_ms), self._bytes.wait_ms(now_ms))


def throttle_of(publishes_per_s: int, bytes_per_s: int, now_ms: int) -> Throttle | None:
    """A throttle for these rates; None: neither is limited."""
    if not publishes_per_s and not bytes_per_s:
        return None
    return Throttle(publishes_per_s, bytes_per_s, now_ms)
