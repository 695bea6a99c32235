"""What the calls of every domain stand on: repeatable calls, commands, streams that go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Protocol


class Target(Protocol):
    """One member: what is called there."""

    address: str
    kv: Any
    cluster: Any
    topics: Any
    auth: Any
    schemas: Any
    maintenance: Any
    writes: Any
    """Puts, deletes and transactions; see `api.writes`."""

    async def close(self) -> None:
        """End the channel and every call on it."""


Stub = Callable[[Target], Any]


class Calls:
    """Base of the mixins that hold the calls of one domain."""

    async def _call(self, stub: Stub, request: Any) -> Any:
        """A call that may be repeated freely."""
        raise NotImplementedError

    async def _write(self, stub: Stub, request: Any) -> Any:
        """A command: applied once, whatever is lost on the way."""
        raise NotImplementedError

    def _stream(
        self, stub: Stub, request_from: Callable[[int], Any], start_revision: int
    ) -> AsyncIterator[Any]:
        """A stream of revisions, without gap or repeat. A revision may take several responses, of
        which the last one says `last`."""
        raise NotImplementedError


async def each_within(responses: Any, answer_s: float) -> AsyncGenerator[Any]:
    """Each response of a stream, gRPC's or of this process. Raises TimeoutError."""
    answers = aiter(responses)
    try:
        while True:
            try:
                async with asyncio.timeout(answer_s):
                    response = await anext(answers)
            except StopAsyncIteration:
                return
            yield response
    finally:
        # A call of gRPC is cancelled; the generator of this process is closed.
        if hasattr(responses, "cancel"):
            responses.cancel()
        else:
            await responses.aclose()
