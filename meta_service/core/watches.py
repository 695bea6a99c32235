"""Watches: every mutation from a revision on, without gap or repeat.

The newest revisions are kept in memory; older ones are read from the store, down to the compacted
revision.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from meta_service.api.errors import Compacted, MetaError
from meta_service.api.types import WatchEvent
from meta_service.catalog.tables import RESERVED

RECENT_REVISIONS_MAX: Final = 8192
RECENT_BYTES_MAX: Final = 16 * 1024 * 1024
_BATCH: Final = 256
"""Revisions read from the store at once."""
_GROUP: Final = 50
"""Watchers woken in one turn of the event loop."""

Events = Sequence[tuple[bytes, bytes | None]]


class WatchHub:
    """Recent events and everybody who waits for the next ones. Lives in the event loop."""

    def __init__(self, read_history: Callable[[int, int], list[tuple[int, Events]]]) -> None:
        """`read_history(first, count)`: stored (revision, events), oldest first."""
        self._read_history = read_history
        self._recent: collections.deque[tuple[int, Events, int]] = collections.deque()
        self._recent_bytes = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._woken: collections.deque[asyncio.Future[None]] = collections.deque()
        self._waking = False
        self._failure: MetaError | None = None
        self.revision = 0
        self.compact_revision = 0
        self.watchers = 0

    def start(self, revision: int, compact_revision: int) -> None:
        """Begin behind a revision: what is older is read from the store."""
        self._recent.clear()
        self._recent_bytes = 0
        self.revision, self.compact_revision = revision, compact_revision
        self._wake()

    def publish(self, revision: int, compact_revision: int, events: Events) -> None:
        """One revision more."""
        size = sum(len(key) + len(value or b"") for key, value in events)
        self._recent.append((revision, events, size))
        self._recent_bytes += size
        while len(self._recent) > 1 and (
            len(self._recent) > RECENT_REVISIONS_MAX or self._recent_bytes > RECENT_BYTES_MAX
        ):
            self._recent_bytes -= self._recent.popleft()[2]
        self.revision, self.compact_revision = revision, compact_revision
        self._wake()

    def fail(self, error: MetaError) -> None:
        """Nothing more will come."""
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        """Wake who waits, in small groups: thousands of watchers must not hold up the writes."""
        self._woken.extend(self._waiting)
        self._waiting.clear()
        if self._woken and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(len(self._woken), _GROUP)):
            waiter = self._woken.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self._waking = bool(self._woken)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    async def watch(
        self, prefix: bytes, start_revision: int, *, with_reserved: bool = False
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events of keys with that prefix, one by one. Raises Compacted."""
        batches = self.watch_revisions(prefix, start_revision, with_reserved=with_reserved)
        async with contextlib.aclosing(batches):
            async for revision, events in batches:
                for key, value in events:
                    yield WatchEvent(revision, key, value)

    async def watch_revisions(
        self,
        prefix: bytes,
        start_revision: int,
        *,
        with_reserved: bool = False,
        progress_s: float | None = None,
    ) -> AsyncGenerator[tuple[int, Events], None]:
        """(revision, all its events of keys with that prefix). Raises Compacted.

        With `progress_s` a quiet watch gives (revision, no events) that often: everything up to
        that revision was given.
        """
        next_revision = max(1, start_revision)
        self.watchers += 1
        try:
            while True:
                while next_revision > self.revision:
                    if await self._is_quiet(progress_s):
                        yield next_revision - 1, ()
                for revision, events in self._read(next_revision):
                    next_revision = revision + 1
                    wanted = [
                        event
                        for event in events
                        if event[0].startswith(prefix)
                        and (with_reserved or event[0][:1] != RESERVED)
                    ]
                    if wanted:
                        yield revision, wanted
        finally:
            self.watchers -= 1

    async def _is_quiet(self, progress_s: float | None) -> bool:
        """Wait for news; True when there was none for so long. Raises when none can come."""
        if self._failure is not None:
            raise self._failure
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            async with asyncio.timeout(progress_s):
                await waiter
        except TimeoutError:
            return True
        finally:
            self._waiting.pop(waiter, None)
        return False

    def _read(self, first: int) -> list[tuple[int, Events]]:
        """Some (revision, events) from a revision on, at least one."""
        if first > self.compact_revision:
            if self._recent and first >= self._recent[0][0]:
                start = first - self._recent[0][0]
                recent = itertools.islice(self._recent, start, start + _BATCH)
                return [(revision, events) for revision, events, _ in recent]
            history = self._read_history(first, _BATCH)
            if history and history[0][0] == first:
                return history
        raise Compacted(
            f"revision {first} is gone; the oldest is {self.compact_revision + 1}",
            self.compact_revision,
        )
