"""What leaders ask of the catalog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from lakemq.broker_core.cluster.identity import PeerIdentity
from lakemq.broker_core.replication.in_sync_changes import Asked
from lakemq.broker_core.replication.types import Place, WishAnswer, WishCode
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.remote.control_calls import ControlCalls
from lakemq.meta_service.api.types import InSyncChange

RESIGN_RETRY_S: Final = 0.5
RESIGN_MAX: Final = 1000
"""Partitions in one call, as the catalog takes them."""
_log: Final = logging.getLogger(__name__)
_GivenUp = tuple[int, tuple[str, int, int]]
"""(broker epoch, (topic id, partition, leader epoch))."""


class CatalogCalls:
    """Lives on the event loop."""

    def __init__(self, identity: PeerIdentity, client: ControlCalls) -> None:
        self._identity = identity
        self._client = client
        self._given_up: list[_GivenUp] = []
        """Leaderships that the catalog has not heard of."""
        self._resigning: asyncio.Task[None] | None = None

    async def change_in_sync(self, asked: Sequence[Asked]) -> Sequence[WishAnswer]:
        """As `in_sync_changes.Change`."""
        changes = [
            InSyncChange(
                place.topic_id, place.partition, wish.epoch, wish.partition_epoch, wish.members
            )
            for place, wish in asked
        ]
        identity = self._identity
        answers = await self._client.change_in_sync(
            identity.node_id, identity.broker_epoch(), changes
        )
        return [
            WishAnswer(
                WishCode(each.code), each.leader_epoch, each.partition_epoch,
                frozenset(each.in_sync),
            )
            for each in answers
        ]  # fmt: skip

    def resign(self, place: Place, leader_epoch: int) -> None:
        """Ask for another leader, in the background, until the catalog has heard it: this node
        does not lead in that epoch any more, nor does another. Those of one turn of the event loop
        are one call."""
        led = (place.topic_id, place.partition, leader_epoch)
        self._given_up.append((self._identity.broker_epoch(), led))
        if self._resigning is None:
            self._resigning = asyncio.get_running_loop().create_task(self._resign())

    async def _resign(self) -> None:
        try:
            while self._given_up:
                await self._resign_some()
        finally:
            self._resigning = None

    async def _resign_some(self) -> None:
        identity = self._identity
        broker_epoch = identity.broker_epoch()
        # A registration ends all leaderships of the one before.
        self._given_up = [each for each in self._given_up if each[0] == broker_epoch]
        led = [each for _, each in self._given_up[:RESIGN_MAX]]
        if not led:
            return
        try:
            await self._client.resign(identity.node_id, broker_epoch, led)
        except MetaError as error:
            _log.warning("%d partitions, %s first: not resigned: %s", len(led), led[0], error)
            if error.retriable:
                await asyncio.sleep(RESIGN_RETRY_S)
                return
        del self._given_up[: len(led)]

    async def stop(self) -> None:
        """Cancel what is under way."""
        if self._resigning is not None:
            self._resigning.cancel()
            await asyncio.gather(self._resigning, return_exceptions=True)
