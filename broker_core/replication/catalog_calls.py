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
_log: Final = logging.getLogger(__name__)


class CatalogCalls:
    """Lives on the event loop."""

    def __init__(self, identity: PeerIdentity, client: ControlCalls) -> None:
        self._identity = identity
        self._client = client
        self._resigning: set[asyncio.Task[None]] = set()

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
        does not lead in that epoch any more, nor does another."""
        task = asyncio.get_running_loop().create_task(self._resign(place, leader_epoch))
        self._resigning.add(task)
        task.add_done_callback(self._resigning.discard)

    async def _resign(self, place: Place, leader_epoch: int) -> None:
        identity, left = self._identity, [(place.topic_id, place.partition, leader_epoch)]
        broker_epoch = identity.broker_epoch()
        # A registration ends all leaderships of the one before.
        while identity.broker_epoch() == broker_epoch:
            try:
                await self._client.resign(identity.node_id, broker_epoch, left)
                return
            except MetaError as error:
                _log.warning("partition %s: not resigned: %s", place, error)
                if not error.retriable:
                    return
                await asyncio.sleep(RESIGN_RETRY_S)

    async def stop(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._resigning)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
