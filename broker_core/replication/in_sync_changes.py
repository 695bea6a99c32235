"""Wishes of leaders to change in-sync sets: those of one turn of the event loop, of all partitions,
are asked of the catalog in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lakemq.broker_core.replication.types import InSyncWish, Place, WishAnswer, WishCode
from lakemq.meta_service.api.errors import MetaError

CHANGES_MAX: Final = 1000
"""Partitions in one call, as the catalog takes them."""
CALLS_MAX: Final = 4
"""Calls under way; each keeps its order, as one partition has one wish at a time."""
_log: Final = logging.getLogger(__name__)

Asked = tuple[Place, InSyncWish]
Change = Callable[[Sequence[Asked]], Awaitable[Sequence[WishAnswer]]]
"""Answers one for each, in order. Raises MetaError."""
Answered = Callable[[InSyncWish, WishAnswer], None]


class InSyncChanges:
    """Lives on the event loop."""

    def __init__(self, change: Change) -> None:
        self.changes = 0
        """Wishes that the catalog has done."""
        self._change = change
        self._waiting: list[tuple[Place, InSyncWish, Answered]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._due = False

    def ask(self, place: Place, wish: InSyncWish, answered: Answered) -> None:
        """Ask for it at the end of this turn; `answered(wish, answer)` is called in a later one,
        in any case."""
        self._waiting.append((place, wish, answered))
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._due and self._waiting and len(self._calls) < CALLS_MAX:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        asked, self._waiting = self._waiting[:CHANGES_MAX], self._waiting[CHANGES_MAX:]
        task = asyncio.get_running_loop().create_task(self._call(asked))
        self._calls.add(task)
        task.add_done_callback(self._done)
        self._begin_soon()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._begin_soon()

    async def _call(self, asked: Sequence[tuple[Place, InSyncWish, Answered]]) -> None:
        # Whatever ends the call leaves open what the catalog does with it: the leader counts
        # additions until it knows.
        answers: Sequence[WishAnswer] = [WishAnswer(WishCode.UNANSWERED)] * len(asked)
        try:
            found = await self._change([(place, wish) for place, wish, _ in asked])
            if len(found) == len(asked):
                answers = found
        except MetaError as error:
            _log.info("%d changes of in-sync sets are not answered: %s", len(asked), error)
        finally:
            for (_, wish, answered), answer in zip(asked, answers, strict=True):
                self.changes += answer.code is WishCode.DONE
                answered(wish, answer)

    async def stop(self) -> None:
        """Cancel the calls under way."""
        self._waiting.clear()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
