"""Which consumer groups are unused, so that their offsets expire.

A group is forgotten when it has had no member and no commit for the retention time. Members are
soft state, so after a start everybody gets a session's time to come back before anything goes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from lakemq.broker_core.groups.offset_table import OffsetTable

_INTERVAL_MAX_MS: Final = 60_000


class OffsetExpiry:
    """Remembers when groups last had members."""

    def __init__(self, *, retention_ms: int, session_timeout_max_ms: int, started_ms: int) -> None:
        self.interval_ms = max(100, min(_INTERVAL_MAX_MS, retention_ms // 4))
        """How often to ask."""
        self._retention_ms = retention_ms
        self._grace_ms = min(retention_ms, session_timeout_max_ms)
        self._first_ms = started_ms + self._grace_ms
        self._seen_ms: dict[str, int] = {}

    def begin(self, now_ms: int) -> None:
        """Groups have come whose members are not known: they too get a session's time."""
        self._first_ms = max(self._first_ms, now_ms + self._grace_ms)

    def expired(
        self, table: OffsetTable, members: Collection[str], now_ms: int, wall_ms: int
    ) -> list[str]:
        """Groups to forget. `members`: groups that have some now; `now_ms` never goes back,
        `wall_ms` is the clock of commits."""
        known = set(table.groups())
        self._seen_ms = {name: at for name, at in self._seen_ms.items() if name in known}
        self._seen_ms.update(dict.fromkeys(known.intersection(members), now_ms))
        if now_ms < self._first_ms:
            # Too early after a start to know which groups still have members.
            return []
        return [
            name
            for name in sorted(known.difference(members))
            if now_ms - self._seen_ms.get(name, now_ms - self._retention_ms) >= self._retention_ms
            and wall_ms - max(each.committed_ms for each in table.of(name).values())
            >= self._retention_ms
        ]
