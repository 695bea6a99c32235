"""Failed attempts to authenticate: who fails too often waits, longer each time. Pure.

Counted for each pair of address and user name, and for each address whatever the name, so that
neither one password nor many names can be tried quickly. A user can't be locked out by somebody at
another address. IPv6 addresses of one /64 are one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.limits.connection_limits import peer_of

ENTRIES_MAX: Final = 20_000
"""Remembered at most; the longest quiet are forgotten first."""


@dataclass(frozen=True, slots=True)
class AttemptRules:
    """When to make somebody wait."""

    failures_max: int = 5
    """Failures with one user name that cost nothing; 0: they never do."""
    failures_per_host_max: int = 50
    """The same for all names of one address."""
    lockout_ms: int = 1_000
    """First wait; doubled by each further failure."""
    lockout_max_ms: int = 60_000
    forget_ms: int = 900_000
    """Failures are forgotten after so long without another."""


@dataclass(slots=True)
class _Count:
    failures: int = 0
    last_ms: int = 0
    locked_until_ms: int = 0


class Attempts:
    """Failures by address and name."""

    def __init__(self, rules: AttemptRules) -> None:
        self._rules = rules
        self._counts: OrderedDict[tuple[str, str | None], _Count] = OrderedDict()
        self.refused = 0
        """Attempts that were not even looked at."""

    def wait_ms(self, host: str, name: str, now_ms: int) -> int:
        """How long this address must not try this name; 0: it may."""
        peer = peer_of(host)
        waits = [
            count.locked_until_ms - now_ms
            for key in ((peer, name), (peer, None))
            if (count := self._counts.get(key)) is not None
        ]
        longest = max([0, *waits])
        self.refused += longest > 0
        return longest

    def failed(self, host: str, name: str, now_ms: int) -> None:
        rules, peer = self._rules, peer_of(host)
        self._add((peer, name), rules.failures_max, now_ms)
        self._add((peer, None), rules.failures_per_host_max, now_ms)

    def succeeded(self, host: str, name: str) -> None:
        """The right password: this name's failures are forgotten, the address' are not."""
        self._counts.pop((peer_of(host), name), None)

    def _add(self, key: tuple[str, str | None], failures_max: int, now_ms: int) -> None:
        if not failures_max:
            return
        count = self._counts.setdefault(key, _Count())
        self._counts.move_to_end(key)
        if now_ms - count.last_ms > self._rules.forget_ms:
            count.failures = 0
        count.failures += 1
        count.last_ms = now_ms
        over = count.failures - failures_max
        if over >= 0:
            wait_ms = min(self._rules.lockout_max_ms, self._rules.lockout_ms << min(over, 20))
            count.locked_until_ms = now_ms + wait_ms
        while len(self._counts) > ENTRIES_MAX:
            self._counts.popitem(last=False)
