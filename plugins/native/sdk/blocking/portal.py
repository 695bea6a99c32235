"""Blocking calls on asyncio objects: an event loop in a thread of its own, and facades over it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.plugins.native.sdk.net.errors import CLOSED

_A = TypeVar("_A")
_Inner = TypeVar("_Inner", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_DRAIN_S: Final = 1.0


class Portal:
    """An event loop in a daemon thread. Safe to share between threads of one process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        # A fork copies the loop but not its thread: calls in the child would wait for ever.
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=_serve, args=(self._loop,), name="lakemq-sdk", daemon=True
        )
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        """Run `work()` on the loop and wait for it here; an exception here, such as
        KeyboardInterrupt, cancels it. Raises InvalidRequest if the portal is closed, belongs to
        another process, or would wait for itself."""
        self.check()
        future = asyncio.run_coroutine_threadsafe(_begin(work), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise InvalidRequest(CLOSED) from None
        except BaseException:
            # KeyboardInterrupt, for instance: the coroutine must not go on behind a caller who
            # thinks that it ended.
            future.cancel()
            raise

    def soon(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the loop. Raises as `run`, but on the loop's own thread too."""
        self.check(waits=False)
        self._loop.call_soon_threadsafe(callback)

    @property
    def closed(self) -> bool:
        """Whether nothing can be run any more."""
        return self._closing or self._process != os.getpid()

    def check(self, *, waits: bool = True) -> None:
        """Raises InvalidRequest unless something can be run, and waited for, from this thread."""
        if self._process != os.getpid():
            raise InvalidRequest("this client was made before a fork; make one in every process")
        if self._closing or self._loop.is_closed():
            raise InvalidRequest(CLOSED)
        if waits and threading.current_thread() is self._thread:
            raise InvalidRequest(
                "a blocking call on the event loop of its own client would wait for ever; "
                "make it in another thread, or use lakemq.Client"
            )

    def close(
        self, last: Callable[[], Coroutine[Any, Any, None]], wait_s: float | None = None
    ) -> None:
        """Run `last()`, end what is still running, and end the thread; waits for that, at most
        `wait_s`. On the portal's own thread it does not wait."""
        if self._closing or self._process != os.getpid():
            return
        # Set before the last coroutine is scheduled, so that no call gets in behind it.
        self._closing = True
        asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        # A finalizer may run on any thread, this one too; a thread can't join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            with suppress(Exception):  # no caller is left; its tasks are cancelled below
                await last()
            await _drained()
        finally:
            self._loop.stop()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _begin(work: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
    return await work()


async def _drained() -> None:
    """Wait until gRPC has reported the status of every call: reported to a loop that is closed, it
    raises in another thread. Tasks that take too long are cancelled."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=_DRAIN_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Runner(Protocol):
    """Runs asyncio code for blocking callers: a `SyncClient`."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be run any more."""

    def run(self, work: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        """Run `work()` on the event loop of the client, and wait for it."""


class Facade(Generic[_A]):
    """The blocking face of an asyncio object; `blocking` makes its methods."""

    __slots__ = ("_inner", "_runner")

    def __init__(self, runner: Runner, inner: _A) -> None:
        self._runner = runner
        self._inner = inner

    def _call(self, work: Callable[[_A], Coroutine[Any, Any, _R]]) -> _R:
        inner = self._inner
        return self._runner.run(lambda: work(inner))

    def _end(self, work: Callable[[_A], Coroutine[Any, Any, None]]) -> None:
        """The last call; the client may have been closed before, and this with it."""
        if not self._runner.closed:
            self._call(work)


class _Caller(Protocol[_Inner]):
    def _call(self, work: Callable[[_Inner], Coroutine[Any, Any, _R]]) -> _R: ...


def blocking(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[_Caller[_A], _P], _R]:
    """A method that calls `method` of the asyncio object, and waits; documented as that is."""

    def call(self: _Caller[_A], /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        return self._call(lambda inner: method(inner, *arguments, **options))

    call.__name__ = method.__name__
    call.__qualname__ = method.__qualname__
    call.__doc__ = method.__doc__
    # Signature and docstring of a blocking method are those of its asyncio twin; the reference is
    # generated from them.
    call.__wrapped__ = method  # type: ignore[attr-defined]  # for inspect.signature
    return call
