"""Who may send a message before it is known who it is: few at a time, each address in turn.

gRPC takes a message of its limit's size from every stream that is read from, so the number of
streams that are read from before authentication bounds the memory that costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from lakemq.meta_service.api.fair_line import FairLine


class ReadingTurns:
    """`turns` at a time. Who waits is served by address, one after the other, so that one address
    with many streams delays the others by one turn only."""

    def __init__(
        self,
        turns: int,
        *,
        waiting_max: int,
        waiting_per_peer_max: int,
        refusal: Callable[[], Exception],
    ) -> None:
        """`refusal`: what to raise when too many wait."""
        self._free = turns
        self._refusal = refusal
        self._waiting_max = waiting_max
        self._waiting_per_peer_max = waiting_per_peer_max
        self._waiting = FairLine[asyncio.Future[None]]()

    @asynccontextmanager
    async def turn(self, peer: str) -> AsyncIterator[None]:
        """Raises the refusal at once when too many wait, of this peer or of all."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(peer)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, peer: str) -> None:
        waiting = self._waiting
        if waiting.count(peer) >= self._waiting_per_peer_max or len(waiting) >= self._waiting_max:
            raise self._refusal()
        future = asyncio.get_running_loop().create_future()
        waiting.add(peer, future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it had just got its turn
                self._pass_on()
            raise
        finally:
            waiting.remove(peer, future)

    def _pass_on(self) -> None:
        """The turn goes to the next address."""
        while self._waiting:
            future = self._waiting.take()
            if not future.done():
                future.set_result(None)
                return
        # Only when none waits: a turn that is passed on is never free in between, so no newcomer
        # takes it.
        self._free += 1
