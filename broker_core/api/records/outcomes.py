"""What became of an append, in the two ways in which it is told: by a future, and as a value that
a callback gets."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from lakemq.broker_core.api.errors import LakeMQError, Unavailable

T = TypeVar("T")


def settle(future: asyncio.Future[T], outcome: T | LakeMQError) -> None:
    """Settle a future that its caller may have cancelled."""
    if future.done():
        return
    if isinstance(outcome, LakeMQError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def outcome_of(future: asyncio.Future[T]) -> T | LakeMQError:
    """What a future that is done tells; Unavailable for one that was cancelled."""
    if future.cancelled():
        return Unavailable("the append was given up")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, LakeMQError) else LakeMQError(repr(error))
