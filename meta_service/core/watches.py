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

from lakemq.meta_service.api.errors import Compacted, MetaError
from lakemq.meta_service.api.types import WatchEvent
from lakemq.meta_service.catalog.tables import RESERVED

RECENT_REVISIONS_MAX: Final = 8192
RECENT_MAX_BYTES: Final = 16 * 1024 * 1024
_BATCH: Final = 256
"""Revisions read from the store at once."""
_GROUP: Final = 50
"""Watchers woken in one turn of the event loop."""
_PAUSE_S: Final = 0.001
"""At least, between two groups: Python's lock is free meanwhile, and the loop turns for others.
What is published while thousands are woken reaches those whose turn comes later in one go."""
_SHARED_MAX: Final = 64
"""Reads kept for the next watcher at the same place."""

Prefix = bytes | tuple[bytes, ...]
"""Of keys; several: any of them."""
Events = Sequence[tuple[bytes, bytes | None]]
Revisions = Sequence[tuple[int, Events]]


class WatchHub:
    """Recent events and the watches that wait for the next ones. Lives in the event loop."""

    def __init__(self, read_history: Callable[[int, int], list[tuple[int, Events]]]) -> None:
        """`read_history(first, count)`: stored (revision, events), oldest first."""
        self._read_history = read_history
        self._recent: collections.deque[tuple[int, Events, int]] = collections.deque()
        self._recent_bytes = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._woken: collections.deque[asyncio.Future[None]] = collections.deque()
        self._waking = False
        self._shared: dict[tuple[int, Prefix, bool], tuple[int, Revisions]] = {}
        """What was read since the last revision came: by start, prefix, with reserved keys."""
        self._failure: MetaError | None = None
        self.revision = 0
        self.compact_revision = 0
        self.watchers = 0

    def start(self, revision: int, compact_revision: int) -> None:
        """Begin behind a revision: what is older is read from the store."""
        self._shared.clear()
        self._recent.clear()
        self._recent_bytes = 0
        self.revision, self.compact_revision = revision, compact_revision
        self._wake()

    def publish(self, revision: int, compact_revision: int, events: Events) -> None:
        """One revision more."""
        self._shared.clear()
        size = sum(len(key) + len(value or b"") for key, value in events)
        self._recent.append((revision, events, size))
        self._recent_bytes += size
        while len(self._recent) > 1 and (
            len(self._recent) > RECENT_REVISIONS_MAX or self._recent_bytes > RECENT_MAX_BYTES
        ):
            self._recent_bytes -= self._recent.popleft()[2]
        self.revision, self.compact_revision = revision, compact_revision
        self._wake()

    def fail(self, error: MetaError) -> None:
        """Nothing more will come."""
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        """Wake who waits, in small groups with pauses: thousands of watchers must not hold up the
        writes. A group that is small enough is woken at once."""
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
            loop = asyncio.get_running_loop()
            loop.call_soon(self._rest, loop.time())  # behind the group, which runs before it

    def _rest(self, begun_s: float) -> None:
        """Half of the time at least is for others, however long a group took."""
        loop = asyncio.get_running_loop()
        loop.call_later(max(_PAUSE_S, loop.time() - begun_s), self._wake_some)

    async def watch(
        self, prefix: Prefix, start_revision: int, *, with_reserved: bool = False
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events of keys with that prefix, one by one. Raises Compacted."""
        batches = self.watch_revisions(prefix, start_revision, with_reserved=with_reserved)
        async with contextlib.aclosing(batches):
            async for revision, events in batches:
                for key, value in events:
                    yield WatchEvent(revision, key, value)

    async def watch_revisions(
        self,
        prefix: Prefix,
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
                next_revision, found = self._wanted(next_revision, prefix, with_reserved)
                for revision, wanted in found:
                    yield revision, wanted
        finally:
            self.watchers -= 1

    async def _is_quiet(self, progress_s: float | None) -> bool:
        """Wait for news; True if none came within `progress_s`. Raises when none can come."""
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

    def _wanted(self, first: int, prefix: Prefix, with_reserved: bool) -> tuple[int, Revisions]:
        """(revision to go on from, what is wanted of those before it). Watchers of one stream are
        mostly at the same place: they share it."""
        place = (first, prefix, with_reserved)
        found = self._shared.get(place)
        if found is None:
            batch = self._read(first)
            wanted = [
                (revision, _select(events, prefix, with_reserved)) for revision, events in batch
            ]
            found = batch[-1][0] + 1, [each for each in wanted if each[1]]
            # Simply emptied: the next watchers fill it again with what is wanted now.
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            self._shared[place] = found
        return found

    def _read(self, first: int) -> list[tuple[int, Events]]:
        """Some (revision, events) from a revision on, at least one."""
        # What is still in the store but below this may be deleted at any time.
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


def _select(events: Events, prefix: Prefix, with_reserved: bool) -> Events:
    return [
        event
        for event in events
        if event[0].startswith(prefix) and (with_reserved or event[0][:1] != RESERVED)
    ]
