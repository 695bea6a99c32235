"""The replicas of this node: which partitions it leads, which it follows, and the streams between.

It carries out; who leads what is the catalog's word (`roles`), and what replicas tell each other is
decided by `leader` and `follower`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.types import Acks
from lakemq.broker_core.cluster.streams import FollowerStream
from lakemq.broker_core.replication.fetcher import Fetcher, Follow
from lakemq.broker_core.replication.following import FollowingPartition
from lakemq.broker_core.replication.in_sync_changes import Change, InSyncChanges
from lakemq.broker_core.replication.leader import LAG_MAX_S, PartitionLeader
from lakemq.broker_core.replication.leading import LeaderContext, LeadingPartition
from lakemq.broker_core.replication.sender import Leaders, Sender
from lakemq.broker_core.replication.throttle import TokenBucket
from lakemq.broker_core.replication.types import Place, View

TICK_S: Final = 0.5
"""Leaders look so often who lags."""
_log: Final = logging.getLogger(__name__)


class Replication:
    """Lives on the event loop."""

    def __init__(
        self,
        node_id: str,
        *,
        broker_epoch: Callable[[], int],
        follow: Follow,
        change_in_sync: Change,
        registered: Callable[[], Mapping[str, int]],
        stale: Callable[[], None],
        resign: Callable[[Place, int], None],
        now_s: Callable[[], float],
        lag_max_s: float = LAG_MAX_S,
        bytes_per_s: float = 0,
    ) -> None:
        """`broker_epoch()`: of this node's registration. `follow`: `Peers.follow`. `registered()`:
        nodes that may join in-sync sets -> their broker epochs. `stale()`: the catalog says
        something that has not come here yet. `resign(partition, leader epoch)`: ask for another
        leader. `bytes_per_s`: for replicas that are far behind, each way; 0: unlimited."""
        self.changes = InSyncChanges(change_in_sync)
        self.bytes_in = 0
        self.bytes_out = 0
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._follow = follow
        self._stale = stale
        self._now_s = now_s
        self._lag_max_s = lag_max_s
        self._context = LeaderContext(self.changes, registered, now_s, resign)
        throttle = TokenBucket(bytes_per_s, now_s())
        self._leaders = Leaders(self.leading, self._deposed, throttle, now_s)
        self._leading: dict[Place, LeadingPartition] = {}
        self._following: dict[Place, FollowingPartition] = {}
        self._fetchers: dict[str, Fetcher] = {}
        self._senders: set[Sender] = set()
        self._ticking: asyncio.Task[None] | None = None

    # -- life

    def start(self) -> None:
        """Look after the partitions that are led."""
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Let go of every log, end every stream."""
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        for place in [*self._leading, *self._following]:
            await self.drop(place)
        await self.changes.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for leading in tuple(self._leading.values()):
                leading.tick()

    # -- roles

    async def lead(
        self, place: Place, name: str, log: ReplicaLog, view: View, acks_min: Acks
    ) -> None:
        """Lead in `view.epoch`, or know what has changed in it. Raises ValueError when the log has
        a later epoch."""
        leading = self._leading.get(place)
        if leading is not None and leading.core.view.epoch == view.epoch:
            log.lead(view.epoch, alone=False, acks_min=acks_min)
            leading.view_changed(view)
            return
        await self.drop(place)
        log.lead(view.epoch, alone=False, acks_min=acks_min)
        core = PartitionLeader(
            self._node_id, self._broker_epoch(), view, log, self._now_s(),
            lag_max_s=self._lag_max_s,
        )  # fmt: skip
        leading = self._leading[place] = LeadingPartition(place, name, log, core, self._context)
        leading.start()
        _log.info("%s: this node leads in epoch %d", name, view.epoch)

    async def follow(
        self, place: Place, name: str, log: ReplicaLog, leader: str, epoch: int
    ) -> None:
        """Follow that leader in that epoch; no leader: take nothing until there is one. Raises
        ValueError when the log has a later epoch."""
        following = self._following.get(place)
        if following is not None and (following.leader, following.epoch) == (leader, epoch):
            return
        await self.drop(place)
        log.follow(epoch)
        if not leader:
            return
        following = FollowingPartition(place, name, log, leader, epoch, self._stale)
        self._following[place] = following
        if leader not in self._fetchers:
            self._fetchers[leader] = Fetcher(leader, self._follow)
        self._fetchers[leader].add(following)

    async def drop(self, place: Place) -> None:
        """Neither lead nor follow; the log is left as it is."""
        leading = self._leading.pop(place, None)
        if leading is not None:
            leading.stop()
        following = self._following.pop(place, None)
        if following is None:
            return
        fetcher = self._fetchers[following.leader]
        fetcher.remove(following)
        if fetcher.idle:
            del self._fetchers[following.leader]
            self.bytes_in += fetcher.bytes_in
            fetcher.close()
        await following.stop()

    def _deposed(self, place: Place, epoch: int) -> None:
        """A follower knows of a later epoch: no replica would count what this node appends from now
        on, so it takes nothing until the catalog says who leads."""
        leading = self._leading.pop(place, None)
        if leading is None:
            return
        leading.stop()
        leading.log.follow(epoch)
        _log.info("%s: this node leads no more: there is a leader epoch %d", leading.name, epoch)
        self._stale()

    # -- followers of this node

    async def serve(self, stream: FollowerStream) -> None:
        """Serve a follower's stream until it ends. Raises BadFrame."""
        sender = Sender(stream, self._leaders)
        self._senders.add(sender)
        try:
            await sender.run()
        finally:
            self._senders.discard(sender)
            self.bytes_out += sender.bytes_out

    # -- what there is

    def leading(self, place: Place) -> LeadingPartition | None:
        """The leadership of this node; None: it does not lead the partition."""
        return self._leading.get(place)

    def following(self, place: Place) -> FollowingPartition | None:
        """How this node follows; None: it does not."""
        return self._following.get(place)
