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

from lakemq.broker_core.api.limits.rates import Bucket
from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.api.types import Acks
from lakemq.broker_core.cluster.streams import FollowerStream
from lakemq.broker_core.replication.fetcher import Fetcher, Follow
from lakemq.broker_core.replication.following import FollowingPartition
from lakemq.broker_core.replication.in_sync_changes import Change, InSyncChanges
from lakemq.broker_core.replication.leader import LAG_MAX_S, PartitionLeader
from lakemq.broker_core.replication.leading import LeaderContext, LeadingPartition
from lakemq.broker_core.replication.sender import Leaders, Sender
from lakemq.broker_core.replication.types import KnownRow, Place, View

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
        holds_lease: Callable[[], bool] = lambda: True,
        is_full: Callable[[], bool] = lambda: False,
        lag_max_s: float = LAG_MAX_S,
        bytes_per_s: int = 0,
    ) -> None:
        """`broker_epoch()`: of this node's registration. `follow`: `Peers.follow`. `registered()`:
        nodes that may join in-sync sets -> their broker epochs. `stale()`: the catalog says
        something that has not come here yet. `resign(partition, leader epoch)`: ask for another
        leader. `holds_lease()`: whether this node may answer as a leader. `is_full()`: whether its
        disk takes no more records. `bytes_per_s`: for replicas that are far behind, each way; 0:
        unlimited."""
        self.changes = InSyncChanges(change_in_sync)
        self.elections = 0
        """Times that this node began to lead."""
        self.on_given_up: Callable[[Place, int], None] = lambda place, epoch: None
        """Called when this node has ended to lead a partition in an epoch on its own."""
        self.on_tick: Callable[[], None] = lambda: None
        """Called twice a second."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._follow = follow
        self._stale = stale
        self._resign = resign
        self._now_s = now_s
        self._lag_max_s = lag_max_s
        self._context = LeaderContext(
            self.changes, registered, now_s, self._cannot_write, self._deposed, holds_lease, is_full
        )
        self._throttle = Bucket(bytes_per_s, int(now_s() * 1000))
        self._leaders = Leaders(self.leading, self._deposed, self._throttle, now_s)
        self._leading: dict[Place, LeadingPartition] = {}
        self._following: dict[Place, FollowingPartition] = {}
        self._fetchers: dict[str, Fetcher] = {}
        self._senders: set[Sender] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._bytes_in = self._bytes_out = 0
        """Of streams that have ended."""

    def limit(self, lag_max_s: float, bytes_per_s: int) -> None:
        """Other bounds from now on, also for what is led already."""
        self._lag_max_s = lag_max_s
        for leading in self._leading.values():
            leading.core.lag_max_s = lag_max_s
        self._throttle.per_second = bytes_per_s

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
            self.on_tick()
            for leading in tuple(self._leading.values()):
                leading.tick()

    # -- roles

    def lead(
        self,
        place: Place,
        name: str,
        log: ReplicaLog,
        view: View,
        acks_min: Acks = Acks.REPLICATED,
    ) -> None:
        """Lead in `view.epoch`, from a partition that is neither led nor followed (`drop`). Raises
        ValueError when the log has a later epoch."""
        log.lead(view.epoch, alone=False, acks_min=acks_min)
        core = PartitionLeader(
            self._node_id, self._broker_epoch(), view, log, self._now_s(),
            lag_max_s=self._lag_max_s,
        )  # fmt: skip
        leading = self._leading[place] = LeadingPartition(place, name, log, core, self._context)
        leading.start()
        self.elections += 1
        _log.info("%s: this node leads in epoch %d", name, view.epoch)

    def view_changed(self, place: Place, view: View) -> None:
        """The catalog says this of the epoch that this node leads in."""
        leading = self._leading.get(place)
        if leading is not None and leading.core.view.epoch == view.epoch:
            leading.view_changed(view)

    def keep_acks(self, place: Place, acks_min: Acks) -> None:
        """Raise acks to `acks_min` from now on, where this node leads."""
        leading = self._leading.get(place)
        if leading is not None:
            leading.lead(acks_min)

    def follow(
        self,
        place: Place,
        name: str,
        log: ReplicaLog,
        leader: str,
        epoch: int,
        row: KnownRow,
    ) -> None:
        """Follow that leader in that epoch, from a partition that is neither led nor followed.
        Raises ValueError when the log has a later epoch."""
        log.follow(epoch)
        following = FollowingPartition(place, name, log, leader, epoch, self._stale, row)
        self._following[place] = following
        if leader not in self._fetchers:
            self._fetchers[leader] = Fetcher(leader, self._follow)
        self._fetchers[leader].add(following)

    def row_changed(self, place: Place) -> None:
        """A newer row of the catalog has the follower go on as it does, where there is one."""
        following = self._following.get(place)
        if following is not None:
            following.row_changed()

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
            self._bytes_in += fetcher.bytes_in
            fetcher.close()
        await following.stop()

    def end_waiting(self) -> None:
        """Appends that wait for followers fail with NotLeader, their outcome open."""
        for leading in tuple(self._leading.values()):
            leading.end_waiting()

    def give_up_all(self) -> None:
        """Lead nothing any more, in the same turn: appends that wait fail, their outcome open."""
        for place in tuple(self._leading):
            self._end_leading(place)

    def _deposed(self, place: Place, epoch: int) -> None:
        """A follower, or the catalog, knows of a later epoch: no replica would count what this node
        appends from now on, so it takes nothing until the catalog's view says who leads. Where the
        catalog knows of no later one, which a follower's word alone can't tell, it elects one
        again."""
        self._end_leading(place)
        self._resign(place, epoch)
        self._stale()

    def _cannot_write(self, place: Place, epoch: int) -> None:
        """The log takes no appends: another node shall lead, as soon as the catalog has one."""
        self._end_leading(place)
        self._resign(place, epoch)

    def _end_leading(self, place: Place) -> None:
        leading = self._leading.pop(place, None)
        if leading is None:
            return
        leading.stop()
        ended = leading.core.view.epoch
        leading.log.follow(ended)
        _log.info("%s: this node leads no more in epoch %d", leading.name, ended)
        self.on_given_up(place, ended)

    # -- followers of this node

    async def serve(self, stream: FollowerStream) -> None:
        """Serve a follower's stream until it ends. Raises BadFrame."""
        sender = Sender(stream, self._leaders)
        self._senders.add(sender)
        try:
            await sender.run()
        finally:
            self._senders.discard(sender)
            self._bytes_out += sender.bytes_out

    # -- what there is

    def leading(self, place: Place) -> LeadingPartition | None:
        """The leadership of this node; None: it does not lead the partition."""
        return self._leading.get(place)

    def following(self, place: Place) -> FollowingPartition | None:
        """How this node follows; None: it does not."""
        return self._following.get(place)

    def led(self) -> list[LeadingPartition]:
        """All that this node leads with other replicas."""
        return list(self._leading.values())

    def followed(self) -> list[FollowingPartition]:
        """All that this node follows."""
        return list(self._following.values())

    def lag_ms(self) -> float:
        """How long the slowest follower of what this node leads has been behind."""
        now_s = self._now_s()
        behind = (
            each.core.behind_s(node, now_s)
            for each in self.led()
            for node in each.core.view.replicas
        )
        return 1000 * max(behind, default=0.0)

    @property
    def bytes_in(self) -> int:
        """Batches that came from leaders, since the start."""
        return self._bytes_in + sum(each.bytes_in for each in tuple(self._fetchers.values()))

    @property
    def bytes_out(self) -> int:
        """Batches that went to followers, since the start."""
        return self._bytes_out + sum(each.bytes_out for each in tuple(self._senders))
