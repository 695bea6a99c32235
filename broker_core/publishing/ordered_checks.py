"""Runs slow checks on a few threads and keeps the order of what waits for them.

A batch that is decompressed, or whose values are compared with a schema, may take longer than a
turn of the event loop should. At most `_THREADS` are looked at at a time, which also bounds the
memory that decompression takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
_THREADS: Final = 2


class OrderedChecks:
    """Lives on the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "batch-check")
        self._last: dict[Hashable, asyncio.Future[None]] = {}
        """Key -> done when whatever was begun last for it has had its turn."""
        self._tasks: set[asyncio.Task[None]] = set()

    def run(
        self,
        key: Hashable,
        check: Callable[[], object] | None,
        then: Callable[[], asyncio.Future[T]],
    ) -> asyncio.Future[T]:
        """What `then` gives, called after `check` has passed and after all calls for `key` made
        before. `check` runs in a thread; None: there is nothing to check, and without others in
        front `then` is called at once. What `check` or `then` raises is raised by the future, or
        by this call where `then` was called at once.
        """
        before = self._last.get(key)
        if before is None and check is None:
            return then()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        turn = self._last[key] = loop.create_future()
        task = loop.create_task(self._run(key, before, check, then, turn, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        answer.add_done_callback(_looked_at)
        return answer

    async def _run(
        self,
        key: Hashable,
        before: asyncio.Future[None] | None,
        check: Callable[[], object] | None,
        then: Callable[[], asyncio.Future[T]],
        turn: asyncio.Future[None],
        answer: asyncio.Future[T],
    ) -> None:
        # Who asked may be gone meanwhile and `answer` cancelled: the order is kept even so.
        try:
            try:
                if check is not None:
                    await asyncio.get_running_loop().run_in_executor(self._pool, check)
            finally:
                if before is not None:
                    # Also when the check failed: the next one's turn comes only when all before it
                    # have had theirs.
                    await before
            outcome = then()
        except Exception as error:  # the caller gets it, whatever it is
            if not answer.done():
                answer.set_exception(error)
            return
        finally:
            turn.set_result(None)
            # Another call may wait behind this one; only the last one removes the key.
            if self._last.get(key) is turn:
                del self._last[key]
        outcome.add_done_callback(lambda done: _copy(done, answer))

    async def stop(self) -> None:
        """Ends when what was begun has been handed on."""
        while self._tasks:  # what is handed on may begin another check
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False)


def _copy(done: asyncio.Future[T], answer: asyncio.Future[T]) -> None:
    if answer.done():
        _looked_at(done)
    elif done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def _looked_at(done: asyncio.Future[T]) -> None:
    """The caller may be gone: asyncio must not warn that the error was never retrieved."""
    if not done.cancelled():
        done.exception()
