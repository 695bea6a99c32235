"""Processes inside one event loop: what one of them has begun ends when it is killed, and waits
while it stands still.

A `Life` is one process. Whatever runs in its context belongs to it: callbacks, timers and tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from tests.support.virtual_time import VirtualLoop

STEPS_MAX = 20_000
"""Turns of the loop in one moment."""
_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class _Entry:
    __slots__ = ("args", "call", "context", "handle", "life")

    def __init__(
        self, life: Life, call: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> None:
        self.life, self.call, self.args, self.context = life, call, args, context
        self.handle: asyncio.Handle

    def run(self) -> None:
        life = self.life
        if life.paused:
            life.backlog.append(self)
        elif life.alive or not isinstance(self.handle, asyncio.TimerHandle):
            self.call(*self.args)


class LivesLoop(VirtualLoop):
    """Runs what belongs to a process while that runs."""

    def __init__(self) -> None:
        super().__init__()
        self._steps, self._at_s = 0, 0.0

    def _run_once(self) -> None:
        self._steps = self._steps + 1 if self.time() == self._at_s else 0
        self._at_s = self.time()
        assert self._steps < STEPS_MAX, "something goes on for ever, and no time passes"
        super()._run_once()  # type: ignore[misc]

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context or copy_context()
        life = context.get(_LIFE)
        if life is None:
            return super().call_soon(callback, *args, context=context)
        entry = _Entry(life, callback, args, context)
        entry.handle = super().call_soon(entry.run, context=context)
        return entry.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or copy_context()
        life = context.get(_LIFE)
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        entry = _Entry(life, callback, args, context)
        entry.handle = handle = super().call_at(when, entry.run, context=context)
        return handle


class Life:
    """One process. Made inside the loop."""

    def __init__(self) -> None:
        self.alive = True
        self.paused = False
        self.backlog: list[_Entry] = []
        self.failures: list[BaseException] = []
        """Of its tasks: there should be none."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.context = Context()
        self.context.run(_LIFE.set, self)

    def call(self, call: Callable[..., Any], *args: Any) -> None:
        """As its own, soon."""
        if self.alive:
            self._loop.call_soon(call, *args, context=self.context)

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of its own."""
        return self._loop.create_task(work, context=self.context)

    def note(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False
        backlog, self.backlog = self.backlog, []
        for entry in backlog:
            if not entry.handle.cancelled():
                self._loop.call_soon(_again, entry, context=entry.context)

    def kill(self) -> None:
        """SIGKILL: nothing of it reaches anything any more."""
        self.resume()
        self.alive = False
        for task in list(self._tasks):
            task.cancel()


def _again(entry: _Entry) -> None:
    # What came before it may have cancelled it.
    if not entry.handle.cancelled() and entry.life.alive:
        entry.call(*entry.args)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    life = (options.get("context") or copy_context()).get(_LIFE)
    if life is not None:
        life.note(task)
    return task


def run_lives(work: Coroutine[Any, Any, None]) -> None:
    """As `run_virtually`, with processes. Raises what a callback raised."""
    loop = LivesLoop()
    loop.set_task_factory(_task)
    errors: list[BaseException] = []
    main = loop.create_task(work)

    def fail(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        life, error = copy_context().get(_LIFE), context.get("exception")
        if error is not None and (life is None or life.alive):
            errors.append(error)
            main.cancel()

    loop.set_exception_handler(fail)
    try:
        loop.run_until_complete(main)
    except asyncio.CancelledError:
        raise errors[0] from None
    finally:
        for task in asyncio.all_tasks(loop):
            # One of a process that was killed may wait for a timer of it.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
    if errors:
        raise errors[0]
