"""Calls that may be made twice, until they succeed or time is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.plugins.native.sdk.net.sequencing import backoff_s

T = TypeVar("T")


async def retrying(call: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """`await call()`, again after a pause while its error says that it may pass here: NotLeader
    is for the caller, who may ask the leader."""
    deadline = time.monotonic() + timeout_s
    for pause_s in backoff_s():
        try:
            return await call()
        except LakeMQError as error:
            elsewhere = isinstance(error, NotLeader)
            # A pause that would end behind the deadline is not begun: the error is known now.
            if elsewhere or not error.retriable or time.monotonic() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s)
    raise AssertionError("backoff never ends")


def now_ms() -> int:
    """Wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
