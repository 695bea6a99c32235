"""Limits failed logins: who fails too often has to wait, longer each time.

Counted for each pair of address and user name, and for each address whatever the name, so that
neither one password nor many names can be tried quickly. A user can't be locked out from
another address. IPv6 addresses of one /64 count as one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.errors import NotAuthenticated
from lakemq.broker_core.api.limits.connection_limits import peer_of

ENTRIES_MAX: Final = 20_000
"""Entries kept at most; the least recently used are dropped first."""


class ExpiredToken(NotAuthenticated):
    """The issuer signed it, so presenting it is not guessing: it is not a failed attempt."""


@dataclass(frozen=True, slots=True)
class AttemptRules:
    """From when on, and for how long, to refuse logins."""

    failures_max: int = 5
    """Failures with one user name before a lockout; 0: no lockouts."""
    failures_per_host_max: int = 50
    """The same for all names of one address."""
    lockout_ms: int = 1_000
    """First lockout (ms); each further failure doubles it."""
    lockout_max_ms: int = 60_000
    forget_ms: int = 900_000
    """The count is reset after this time without a failure (ms)."""


@dataclass(slots=True)
class _Count:
    failures: int = 0
    last_ms: int = 0
    locked_until_ms: int = 0


class Attempts:
    """Counts failed logins by address and user name. Times are of any clock (ms)."""

    def __init__(self, rules: AttemptRules) -> None:
        self.rules = rules
        self._counts: OrderedDict[tuple[str, str | None], _Count] = OrderedDict()
        self.refused = 0
        """Logins refused without checking the password."""

    def wait_ms(self, host: str, name: str, now_ms: int) -> int:
        """How long this address may not try this name (ms); 0: it may."""
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
        """Count a failed login."""
        rules, peer = self.rules, peer_of(host)
        self._add((peer, name), rules.failures_max, now_ms)
        self._add((peer, None), rules.failures_per_host_max, now_ms)

    def succeeded(self, host: str, name: str) -> None:
        """Reset the failures of this name at this address; those of the address remain."""
        # Those of the address stay: one right password must not pay for many guesses of others.
        self._counts.pop((peer_of(host), name), None)

    def _add(self, key: tuple[str, str | None], failures_max: int, now_ms: int) -> None:
        if not failures_max:
            return
        count = self._counts.setdefault(key, _Count())
        self._counts.move_to_end(key)
        if now_ms - count.last_ms > self.rules.forget_ms:
            count.failures = 0
        count.failures += 1
        count.last_ms = now_ms
        over = count.failures - failures_max
        if over >= 0:
            # The shift is bounded, or the number would grow with every failure.
            wait_ms = min(self.rules.lockout_max_ms, self.rules.lockout_ms << min(over, 20))
            count.locked_until_ms = now_ms + wait_ms
        while len(self._counts) > ENTRIES_MAX:
            self._counts.popitem(last=False)
