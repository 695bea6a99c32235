"""Requests that carry an `Idempotency-Key`: a repeat gets the first one's answer.

This node alone remembers them, for ten minutes; `draft-ietf-httpapi-idempotency-key-header`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from lakemq.plugins.admin.api.problems import OUTCOME_UNKNOWN, Problem

REMEMBERED_MS: Final = 10 * 60 * 1000
REMEMBERED_MAX: Final = 1_000
"""Answers; the oldest go first."""
KEY_MAX: Final = 255

Key = tuple[str, ...]
T = TypeVar("T")


class _Answered(NamedTuple):
    digest: bytes
    """Of the request: the same key with another one is a mistake."""
    at_ms: int
    reply: asyncio.Future[object]


class Repeats:
    """The requests that are remembered."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._known: dict[Key, _Answered] = {}

    async def once(self, key: Key, request: object, carry_out: Callable[[], Awaitable[T]]) -> T:
        """What `carry_out` gives, or gave for an equal request with this key. One that failed is
        carried out again, but not one that may have been done. Raises Problem."""
        if len(key[-1]) > KEY_MAX:
            raise Problem(400, "INVALID_REQUEST", f"Idempotency-Key has over {KEY_MAX} characters")
        digest, now_ms = hashlib.sha256(repr(request).encode()).digest(), self._now_ms()
        self._forget(now_ms)
        known = self._known.get(key)
        if known is not None:
            if known.digest != digest:
                raise Problem(
                    422, "IDEMPOTENCY_KEY_REUSED",
                    "this Idempotency-Key came with another request before: take a new one",
                )  # fmt: skip
            if not known.reply.done():
                raise Problem(409, "CONFLICT", "the same request is under way", retriable=True)
            found = known.reply.result()
            if isinstance(found, Problem):
                raise found
            return found  # type: ignore[return-value]  # of the same route
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._known[key] = _Answered(digest, now_ms, reply)
        try:
            answer = await carry_out()
        except Problem as problem:
            if problem.answer.type == OUTCOME_UNKNOWN:
                reply.set_result(problem)
            else:
                del self._known[key]
            raise
        except BaseException:
            del self._known[key]
            raise
        reply.set_result(answer)
        return answer

    def _forget(self, now_ms: int) -> None:
        """Those that are too old, and the oldest where there are too many: a dict keeps the
        order."""
        for key, answered in list(self._known.items()):
            fresh = now_ms - answered.at_ms < REMEMBERED_MS
            if fresh and len(self._known) < REMEMBERED_MAX:
                break
            if answered.reply.done():
                del self._known[key]
