"""What one client, or all of a listener, may send a second: reading waits, nothing is dropped."""

from __future__ import annotations

from lakemq.broker_core.api.limits.rates import Bucket


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
        owed_ms = max(self._publishes.pay(publishes, now_ms), self._bytes.pay(size_bytes, now_ms))
        # Rounded up, so that the reader does not come back a fraction of a millisecond too early.
        self.wait_ms = int(owed_ms) + 1 if owed_ms else 0


def throttle_of(publishes_per_s: int, bytes_per_s: int, now_ms: int) -> Throttle | None:
    """A throttle for these rates; None: neither is limited."""
    if not publishes_per_s and not bytes_per_s:
        return None
    return Throttle(publishes_per_s, bytes_per_s, now_ms)
