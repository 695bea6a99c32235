"""Bounds attempts to log in: of an address whatever the user, and of a user from anywhere. Pure.

Who has logged in as a user from an address may try there whatever others do: a user can't be locked
out by those who guess its password.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lakemq.broker_core.api.limits.connection_limits import peer_of

HOST_MAX: Final = 10
"""Of one address (IPv6: one /64) in a window."""
USER_MAX: Final = 30
"""Of one user, from addresses where it has not logged in."""
WINDOW_MS: Final = 60_000
_KEPT_MAX: Final = 10_000
"""Addresses, users, and pairs of them: the least recent are forgotten."""


class LoginAttempts:
    """Counts attempts; those that succeed do not count. Times are of any clock (ms)."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, host: str, user: str, now_ms: int) -> bool:
        """Whether a password may be tried now. It counts as wrong until `succeeded`."""
        keys = self._keys(host, user)
        # Not counted where it is refused: else they would never be let in again.
        if any(self._count(key, now_ms)[1] >= most for key, most in keys):
            return False
        for key, _ in keys:
            began_ms, count = self._count(key, now_ms)
            self._counts[key] = began_ms, count + 1
            self._counts.move_to_end(key)
            while len(self._counts) > _KEPT_MAX:
                self._counts.popitem(last=False)
        return True

    def succeeded(self, host: str, user: str) -> None:
        """The password was right."""
        for key, _ in self._keys(host, user):
            if key in self._counts:
                began_ms, count = self._counts[key]
                self._counts[key] = began_ms, max(0, count - 1)
        pair = peer_of(host), user
        self._known[pair] = None
        self._known.move_to_end(pair)
        while len(self._known) > _KEPT_MAX:
            self._known.popitem(last=False)

    def _keys(self, host: str, user: str) -> list[tuple[tuple[str, str], int]]:
        peer = peer_of(host)
        keys = [(("host", peer), HOST_MAX)]
        if (peer, user) not in self._known:
            keys.append((("user", user), USER_MAX))
        return keys

    def _count(self, key: tuple[str, str], now_ms: int) -> tuple[int, int]:
        """(when the window began, attempts in it)."""
        began_ms, count = self._counts.get(key, (now_ms, 0))
        return (now_ms, 0) if now_ms - began_ms >= WINDOW_MS else (began_ms, count)
