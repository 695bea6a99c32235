"""Nodes in one process whose replication is real, joined by streams in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.streams import FollowerStream, LeaderStream
from lakemq.broker_core.replication.assignments import Assignments
from lakemq.broker_core.replication.lease import Lease
from lakemq.broker_core.replication.manager import Replication
from lakemq.broker_core.replication.types import InSyncWish, Place, View, WishAnswer, WishCode
from tests.support.replication.memory_log import MemoryReplicaLog

PLACE = Place("0" * 32, 0)
NAMES = ("a", "b", "c")


class Pipe:
    """One end of a stream in memory. Implements `ByteStream`."""

    def __init__(self, cable: Cable) -> None:
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other: Pipe
        self._cable = cable

    async def read(self) -> bytes | None:
        return await self.inbox.get()

    async def write(self, data: bytes) -> None:
        await self._cable.whole.wait()
        self.other.inbox.put_nowait(data)


class Cable:
    """What joins all nodes; `whole` is cleared to cut it."""

    def __init__(self) -> None:
        self.whole = asyncio.Event()
        self.whole.set()


class TestNode:
    """One node. What the catalog says comes from the test."""

    __test__ = False

    def __init__(self, name: str, cluster: TestCluster) -> None:
        self.name = name
        self.logs: dict[Place, MemoryReplicaLog] = {}
        self.broker_epoch = cluster.names.index(name) + 1
        self.cluster = cluster
        self.stale = 0
        self.full = False
        self.resigned: list[tuple[Place, int]] = []
        self.replication = Replication(
            name,
            broker_epoch=lambda: self.broker_epoch,
            follow=self._follow,
            change_in_sync=cluster.change,
            registered=lambda: {node.name: node.broker_epoch for node in cluster.nodes.values()},
            stale=self._heard_stale,
            resign=lambda place, epoch: self.resigned.append((place, epoch)),
            now_s=asyncio.get_running_loop().time,
            is_full=lambda: self.full,
            bytes_per_s=cluster.bytes_per_s,
        )

    def log(self, place: Place = PLACE) -> MemoryReplicaLog:
        return self.logs.setdefault(place, MemoryReplicaLog())

    def _heard_stale(self) -> None:
        self.stale += 1

    def _follow(
        self, node: str, serve: Callable[[LeaderStream], Awaitable[None]]
    ) -> Callable[[], None]:
        task = asyncio.get_running_loop().create_task(self._keep(node, serve))
        self.cluster.tasks.add(task)

        def end() -> None:
            task.cancel()

        return end

    async def _keep(self, node: str, serve: Callable[[LeaderStream], Awaitable[None]]) -> None:
        while True:
            mine, theirs = Pipe(self.cluster.cable), Pipe(self.cluster.cable)
            mine.other, theirs.other = theirs, mine
            leader = self.cluster.nodes[node]
            follower = FollowerStream(Peer(self.name, self.broker_epoch), theirs)
            serving = asyncio.ensure_future(follower.run(leader.replication.serve))
            self.cluster.streams.append(serving)
            serving.add_done_callback(lambda _, pipe=mine: pipe.inbox.put_nowait(None))
            try:
                with suppress(LakeMQError):
                    await LeaderStream(node, mine).run(serve)
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError, Unavailable):
                    await serving
            await asyncio.sleep(0.01)


class TestCluster:
    """Some nodes and a catalog of one partition after another."""

    __test__ = False

    def __init__(self, names: Sequence[str] = NAMES, bytes_per_s: float = 0) -> None:
        self.names = tuple(names)
        self.bytes_per_s = bytes_per_s
        self.cable = Cable()
        self.tasks: set[asyncio.Task[None]] = set()
        self.streams: list[asyncio.Future[None]] = []
        self.calls: list[list[tuple[Place, InSyncWish]]] = []
        self.views: dict[Place, View] = {}
        self.answer: Callable[[Place, InSyncWish], WishAnswer] = self.done
        self.nodes: dict[str, TestNode] = {}
        for name in names:
            self.nodes[name] = TestNode(name, self)
            self.nodes[name].replication.start()

    async def change(self, asked: Sequence[tuple[Place, InSyncWish]]) -> list[WishAnswer]:
        await asyncio.sleep(0)
        self.calls.append(list(asked))
        return [self.answer(place, wish) for place, wish in asked]

    def done(self, place: Place, wish: InSyncWish) -> WishAnswer:
        view = self.views[place]
        if (wish.epoch, wish.partition_epoch) != (view.epoch, view.partition_epoch):
            return WishAnswer(WishCode.STALE, view.epoch, view.partition_epoch, view.in_sync)
        in_sync = frozenset(wish.members)
        self.views[place] = view._replace(partition_epoch=view.partition_epoch + 1, in_sync=in_sync)
        for node in self.nodes.values():
            node.replication.row_changed(place)
        return WishAnswer(WishCode.DONE, view.epoch, view.partition_epoch + 1, in_sync)

    async def elect(
        self,
        leader: str,
        epoch: int,
        *,
        in_sync: Sequence[str] | None = None,
        place: Place = PLACE,
        among: Sequence[str] | None = None,
    ) -> MemoryReplicaLog:
        """`among`: nodes that hear of it."""
        replicas = frozenset(self.names)
        members = frozenset(in_sync if in_sync is not None else self.names)
        view = self.views[place] = View(epoch, 10 * epoch, members, replicas, 2)
        for name in among or self.names:
            node = self.nodes[name]
            leading, followed = node.replication.leading(place), node.replication.following(place)
            if leading is not None and leading.core.view.epoch == epoch:
                node.replication.view_changed(place, view)
            elif followed is None or (followed.leader, followed.epoch) != (leader, epoch):
                await node.replication.drop(place)
                if name == leader:
                    node.replication.lead(place, "t/0", node.log(place), view)
                else:
                    node.replication.follow(
                        place, "t/0", node.log(place), leader, epoch, Counted(self, name, place)
                    )
            else:
                node.replication.row_changed(place)
        return self.nodes[leader].log(place)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  of many objects, none of which tells it
                await asyncio.sleep(0.002)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.replication.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Counted(NamedTuple):
    """A row that each node knows at once."""

    cluster: TestCluster
    name: str
    place: Place

    @property
    def counts(self) -> bool:
        """As the catalog says."""
        return self.name in self.cluster.views[self.place].in_sync

    @property
    def partition_epoch(self) -> int:
        """Of the newest row."""
        return self.cluster.views[self.place].partition_epoch


def assignments_of(node: TestNode, lease: Lease | None = None) -> Assignments:
    """Of a node, by the clock of the event loop. Without a lease it has one for an hour."""
    now_s = asyncio.get_running_loop().time
    if lease is None:
        lease = Lease(3600)
        lease.sent(1, now_s())
        lease.answered(1)
    return Assignments(node.name, node.replication, lease, now_s)
