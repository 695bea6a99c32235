"""A clock that moves when a test says so."""

from __future__ import annotations


class FakeClock:
    """Milliseconds since the epoch: call it in place of the wall clock.

    `running_broker(now_ms=clock)` gives it to the whole broker: timestamps of records, expiry of
    credentials, quotas, schedules.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Move forward by `ms`, 0 or more; what the clock shows now."""
        if ms < 0:
            raise ValueError(f"advance({ms}): a clock does not go back; give 0 or more")
        self.now_ms += ms
        return self.now_ms
