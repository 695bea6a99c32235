"""Allocates producer ids from blocks of the catalog, and checks whose they are."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.types import Principal
from lakemq.broker_core.publishing.producer_owners import SECRET_BYTES, ProducerOwners
from lakemq.meta_service.api.types import Compare, MetaClient, Put

IDS_PER_BLOCK: Final = 1000
UNOWNED_MS: Final = 30 * 24 * 3_600_000
"""How long after the upgrade producers may go on that got their ids before it."""
_KEY: Final = b"lakemq/producer-owners"
_KIND: Final = "producer"


class ProducerIds:
    """Every node of the cluster knows the same secret, kept by the MetaService."""

    def __init__(self, meta: MetaClient, now_ms: Callable[[], int]) -> None:
        self._meta = meta
        self._now_ms = now_ms
        self._block = iter(range(0))
        self._lock = asyncio.Lock()
        self._owners: ProducerOwners

    async def start(self, *, fresh: bool) -> None:
        """Learn the secret; the first node makes it. `fresh`: the cluster has no topics yet, so
        no id was given out before ids had owners. Raises MetaError."""
        kept = await self._meta.get(_KEY)
        if kept is None:
            until_ms = 0 if fresh else self._now_ms() + UNOWNED_MS
            made = {"secret": secrets.token_hex(SECRET_BYTES), "unowned_until_ms": until_ms}
            # Compare-and-set: of several nodes that start at once, one makes the secret, and all
            # read that one.
            await self._meta.txn([Compare(_KEY, 0)], [Put(_KEY, json.dumps(made).encode())])
            kept = await self._meta.get(_KEY)  # of this node, or of one that was quicker
            assert kept is not None
        found = json.loads(kept.value)
        self._owners = ProducerOwners(bytes.fromhex(found["secret"]), found["unowned_until_ms"])

    async def allocate(self, principal: Principal | None) -> int:
        """A new id; None: for the broker's own use. Raises MetaError."""
        number = await self._next()
        return number if principal is None else self._owners.id_for(number, principal)

    async def _next(self) -> int:
        # One caller fetches a block while the others wait: each fetching its own would waste ids.
        async with self._lock:
            for number in self._block:
                return number
            self._block = iter(await self._meta.allocate_ids(_KIND, IDS_PER_BLOCK))
            return next(self._block)

    def check(self, producer_id: int, principal: Principal) -> None:
        """NotAuthorized: the id is another's."""
        self._owners.check(producer_id, principal, self._now_ms())
