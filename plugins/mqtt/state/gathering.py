"""When an append to a topic may begin: group commit for topics of one partition.

The log of one partition flushes one append after the other, so what comes during a flush gathers
for the next one. Where several clients publish, the next append is moreover held for a moment after
the last one has ended, so that one turn of the loop and one fsync serve more of them:
`commit_delay` and `commit_siblings` of PostgreSQL. A lone publisher is never held: it may be
waiting for its own PUBACK.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lakemq.plugins.mqtt.state.appends import FULL_COUNT, Row

COMMIT_DELAY_S: Final = 0.001
"""Longest time that an append is held beyond the end of the one before. Event loops count
milliseconds, so this is the shortest that there is."""
_SIBLINGS_MIN: Final = 2
_WINDOW_MS: Final = 100
"""How long a client counts as publishing after a publish, at least."""


class _Publishers:
    """How many clients publish to a topic, estimated in windows."""

    __slots__ = ("_before", "_clients", "_since_ms")

    def __init__(self) -> None:
        self._clients: set[int] = set()
        self._before = 0
        """How many it were in the window before."""
        self._since_ms = 0

    def note(self, rows: Sequence[Row], now_ms: int) -> None:
        age_ms = now_ms - self._since_ms
        if age_ms >= _WINDOW_MS:
            self._before = len(self._clients) if age_ms < 2 * _WINDOW_MS else 0
            self._clients = set()
            self._since_ms = now_ms
        # Identities, not references: no client is kept in memory for having published.
        self._clients.update([id(row[0]) for row in rows])

    @property
    def count(self) -> int:
        return max(self._before, len(self._clients))


class Gathering:
    """What the next appends wait for."""

    def __init__(
        self, later: Callable[[float, Callable[[], None]], None], released: Callable[[], None]
    ) -> None:
        """`later` calls back after so many seconds; `released` is called when an append need not
        wait any more."""
        self.enough: dict[str, int] = {}
        """Topic -> how many records its next append waits for; none, where it is missing."""
        self._later = later
        self._released = released
        self._holds_any = True
        self._held: dict[str, int] = {}
        """Topics whose next append is held, and the number of that hold."""
        self._number = 0
        self._under_way: dict[str, int] = {}
        self._publishers: dict[str, _Publishers] = {}

    def begin(self, topic: str, rows: Sequence[Row], now_ms: int) -> None:
        """An append begins; `rows`: of its records."""
        self._held.pop(topic, None)
        self._under_way[topic] = self._under_way.get(topic, 0) + 1
        self.enough[topic] = FULL_COUNT
        if len(rows) < FULL_COUNT:  # of a full one nothing is asked (`end`)
            publishers = self._publishers.get(topic)
            if publishers is None:
                publishers = self._publishers[topic] = _Publishers()
            publishers.note(rows, now_ms)

    def end(self, topic: str, count: int) -> None:
        """An append of `count` records has ended."""
        others = self._under_way.pop(topic) - 1
        if others:
            self._under_way[topic] = others
            return
        # Full appends gather enough while they are flushed.
        clients = self._publishers[topic].count if self._holds_any and count < FULL_COUNT else 0
        if clients < _SIBLINGS_MIN:
            del self.enough[topic]
            return
        # Once as many records wait as clients publish, there is none to wait for.
        self.enough[topic] = min(clients, FULL_COUNT)
        self._number += 1
        self._held[topic] = self._number
        self._later(COMMIT_DELAY_S, partial(self._release, topic, self._number))

    def _release(self, topic: str, number: int) -> None:
        if self._held.get(topic) == number:  # else it had enough before
            del self._held[topic], self.enough[topic]
            self._released()

    def hold(self, allowed: bool) -> None:
        """Whether appends may be held from now on. If not, none is held any more."""
        self._holds_any = allowed
        if not allowed:
            for topic in list(self._held):
                del self._held[topic], self.enough[topic]
