"""An event loop in a thread, on which the blocking faces let asyncio work be done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_DRAIN_S: Final = 1.0


class LoopRunner:
    """Safe to share between threads. `close` ends the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for it, here."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop, once gRPC has told of every call: what it tells of a loop that is closed is an
        exception in somebody else's, and Python complains of tasks that were left."""
        try:
            self.run(_drained())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _drained() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=_DRAIN_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
