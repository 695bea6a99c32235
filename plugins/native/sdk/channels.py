"""gRPC channels and calls as the SDK needs them: a closed client says so, a call that ended leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from broker_core.api.errors import InvalidRequest

_CALLS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_STATUS: Final = "_handle_status_once_received"
"""The task of gRPC in which a call gets its status."""
_SETTLE_S: Final = 0.05
CLOSED: Final = "this client is closed"


class ClosableChannel:
    """A channel, blocking or of asyncio, whose calls raise InvalidRequest once it is closed."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._closed = False

    def close(self, *arguments: Any) -> Any:
        """Awaitable where the channel is asyncio's."""
        self._closed = True
        return self._channel.close(*arguments)

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._channel, name)
        if name not in _CALLS:
            return made
        return lambda *arguments, **options: self._guarded(made(*arguments, **options))

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **options: Any) -> Any:
            if self._closed:
                raise InvalidRequest(CLOSED)
            try:
                return call(*arguments, **options)
            except ValueError:
                if self._closed:  # by another thread, just now
                    raise InvalidRequest(CLOSED) from None
                raise

        return checked


async def settle() -> None:
    """Wait a moment until gRPC has told of the calls of a channel that was closed. What it tells
    of an event loop that is closed meanwhile is an exception in another thread's."""
    tasks = [
        each
        for each in asyncio.all_tasks()
        if _STATUS in getattr(each.get_coro(), "__qualname__", "")
    ]
    if tasks:
        await asyncio.wait(tasks, timeout=_SETTLE_S)


def end(call: Any) -> None:
    """Cancel an asyncio call, and the task in which gRPC reads the caller's requests: it lets that
    one live when the call is over already, as after a broken connection, and Python complains of
    a pending task when it is collected."""
    call.cancel()
    poller = getattr(call, "_async_request_poller", None)
    if poller is not None:
        poller.cancel()
