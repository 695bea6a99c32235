"""Settings that the MetaService keeps for all nodes or for one: read, followed, and changed.

Each is a key of the KV space, `broker/settings/<scope>/<setting>` with the scope `cluster` or
`node=<id>`, whose value is JSON. What it means is for `Reloads` to say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import InvalidRequest, UnknownEntry
from lakemq.broker_core.configuration.config import CLUSTER, Kept
from lakemq.broker_core.meta_failures import broker_error
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import KeyValue, MetaClient

_log: Final = logging.getLogger(__name__)
PREFIX: Final = b"broker/settings/"
KEPT_MAX: Final = 1_000
"""Settings of all scopes together; more are refused, and not read."""
VALUE_MAX_BYTES: Final = 1024
_LOAD_MAX_S: Final = 5.0
_RETRY_FIRST_MS: Final = 1_000
_RETRY_MAX_MS: Final = 10_000
_rng: Final = random.Random()


class DynamicSettings:
    """A copy of them that follows the MetaService. Lives on the event loop."""

    def __init__(self, meta: MetaClient, use: Callable[[Sequence[Kept]], Awaitable[None]]) -> None:
        """`use`: called with all of them whenever they may have changed; it raises nothing."""
        self._meta = meta
        self._use = use
        self._loaded = asyncio.Event()
        self._taking = asyncio.Lock()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when they are in use, or cannot be read for now: that ends no start."""
        self._follower = asyncio.create_task(self._follow())
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOAD_MAX_S):
                await self._loaded.wait()

    async def stop(self) -> None:
        """Follow them no more."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower

    async def _follow(self) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                revision = await self._take()
                backoff.reset()
                async for _ in self._meta.watch(PREFIX, revision + 1):
                    await self._take()
            except (MetaError, OSError) as error:
                _log.warning("cannot follow the dynamic settings, trying again: %s", error)
            await asyncio.sleep(backoff.next_s())

    async def _take(self) -> int:
        """Read and use them; the revision that they are of."""
        # One after the other: what was read first must not be used last.
        async with self._taking:
            revision, rows = await self._meta.scan(PREFIX, limit=KEPT_MAX)
            await self._use(_decoded(rows))
            self._loaded.set()
            return revision

    async def all(self) -> Sequence[Kept]:
        """As the MetaService has them now. Raises Unavailable."""
        try:
            return _decoded((await self._meta.scan(PREFIX, limit=KEPT_MAX))[1])
        except MetaError as error:
            raise broker_error(error, "dynamic settings") from error

    async def put(self, kept: Kept) -> None:
        """Keep a setting, and use it here. Raises InvalidRequest, OutcomeUnknown, Unavailable."""
        value = json.dumps(kept.value).encode()
        if len(value) > VALUE_MAX_BYTES:
            raise InvalidRequest(
                f"{kept.setting}: its value has {len(value)} bytes; {VALUE_MAX_BYTES} are the most"
            )
        key = _key(kept.scope, kept.setting)
        try:
            _, rows = await self._meta.scan(PREFIX, limit=KEPT_MAX)
            if len(rows) >= KEPT_MAX and all(row.key != key for row in rows):
                raise InvalidRequest(f"{KEPT_MAX} dynamic settings are the most: unset some")
            await self._meta.put(key, value)
            await self._take()
        except MetaError as error:
            raise broker_error(error, kept.setting) from error

    async def delete(self, scope: str, setting: str) -> None:
        """Keep it no more. Raises UnknownEntry, OutcomeUnknown, Unavailable."""
        key = _key(scope, setting)
        try:
            if await self._meta.get(key) is None:
                raise UnknownEntry(f"{setting} is not set for scope {scope}")
            await self._meta.delete(key)
            await self._take()
        except MetaError as error:
            raise broker_error(error, setting) from error


def _key(scope: str, setting: str) -> bytes:
    return PREFIX + f"{scope}/{setting}".encode()


def _decoded(rows: Sequence[KeyValue]) -> list[Kept]:
    """Those that can be read; others, which another version may have written, are left out."""
    found = []
    for row in rows[:KEPT_MAX]:
        try:
            scope, _, setting = row.key[len(PREFIX) :].decode().partition("/")
            if scope == CLUSTER or scope.startswith("node="):
                found.append(Kept(scope, setting, json.loads(row.value)))
        except (ValueError, RecursionError) as error:
            _log.warning("ignoring the dynamic setting %r: %s", row.key, error)
    return found
