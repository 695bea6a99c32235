"""What brokers of a cluster call beyond `MetaClient`: heartbeats, drains, in-sync sets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import grpc

from lakemq.meta_service.api.convert import in_sync_message
from lakemq.meta_service.api.messages import message_of, value_of
from lakemq.meta_service.api.remote.calls import Calls, each_within
from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.api.types import (
    ClusterLoad,
    InSyncAnswer,
    InSyncChange,
    Rebalance,
    ReplicaEnd,
    ReplicaMove,
)
from lakemq.meta_service.proto import meta_pb2 as pb

Load = Mapping[str, float]
RebalanceAction = Literal["plan", "start", "stop"]
_ACTIONS: Final = {
    "plan": pb.RebalanceRequest.PLAN,
    "start": pb.RebalanceRequest.START,
    "stop": pb.RebalanceRequest.STOP,
}
SIZES_MAX: Final = 128
"""Partitions whose sizes go with one heartbeat: 4 KB."""
_PAUSE_S: Final = 0.05
_ANSWER_S: Final = 1.0
"""Time without an answer after which a member is given up: another may lead by now."""


class HeartbeatReport(NamedTuple):
    """What a node says of itself with a heartbeat."""

    load: Load = MappingProxyType({})
    """Figures of the node's choice."""
    ready: bool = True
    """It may become active, or stay so. Heartbeats that are not ready are no sign of life: for a
    node that gets no answers, or whose logs are not recovered."""
    leaving: bool = False
    """It is about to stop: its leaderships go elsewhere, and it never becomes active again."""
    full: bool = False
    """It can take no new replicas, nor leaderships that others can have."""
    refusing: Sequence[tuple[str, int]] = ()
    """(node id, broker epoch) of nodes at whose address no process listens, as it has found."""
    leaderless: Sequence[ReplicaEnd] = ()
    """Its replicas of partitions without a leader."""
    sizes: Sequence[tuple[str, int, int]] = ()
    """(topic id, partition, bytes) of partitions that it leads, at most `SIZES_MAX`: another part
    of them with each heartbeat."""


class HeartbeatAnswer(NamedTuple):
    """What the controller answers."""

    state: str
    """`fenced`, `active` or `draining`."""
    number: int
    """Of the heartbeat that is answered: a lease counts from its sending. 0: by an old leader."""


class ControlCalls(Calls):
    """Part of `RemoteClient`, which finds the leader and repeats what failed."""

    _rng: random.Random

    def _target(self) -> Any:
        raise NotImplementedError

    def _turn(self, leader: str) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ nodes

    async def heartbeats(
        self,
        node_id: str,
        broker_epoch: int,
        report: Callable[[int], HeartbeatReport] = lambda _: HeartbeatReport(),
        *,
        period_s: float = 0.5,
        soon: asyncio.Event | None = None,
        on_broken: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[HeartbeatAnswer]:
        """Say that the node lives until the iterator is closed; gives the node's state each time.

        `report(number)`: what to say with that heartbeat, which is sent at once; numbers ascend.
        `soon`: set it to have a heartbeat sent now. `on_broken()`: the stream has ended, so that
        the controller may soon count this process as dead; another is opened. Goes on at the next
        leader. Raises CompareFailed when a later registration has taken this
        one's place, NotFound when the node is not registered.
        """
        numbers = itertools.count(1)

        async def requests() -> AsyncIterator[pb.HeartbeatRequest]:
            while True:
                number = next(numbers)
                said = report(number)
                yield pb.HeartbeatRequest(
                    node_id=node_id,
                    broker_epoch=broker_epoch,
                    load=dict(said.load),
                    leaving=said.leaving,
                    number=number,
                    ready=said.ready,
                    full=said.full,
                    refusing=[
                        pb.Refusal(node_id=each, broker_epoch=epoch)
                        for each, epoch in said.refusing
                    ],
                    leaderless=[message_of(pb.ReplicaEnd, each) for each in said.leaderless],
                    sizes=map(_size_message, said.sizes[:SIZES_MAX]),
                )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(period_s):
                        await wanted.wait()
                wanted.clear()

        wanted = soon or asyncio.Event()
        responses = self._resumed(
            lambda t: t.cluster.Heartbeat, requests, period_s + _ANSWER_S, on_broken
        )
        async for response in responses:
            yield HeartbeatAnswer(response.state, response.sent)

    async def leave(self, node_id: str, broker_epoch: int) -> None:
        """The node stops in good order: it is fenced now, not when it was silent for long.

        Raises as `heartbeats` does.
        """

        async def requests() -> AsyncIterator[pb.HeartbeatRequest]:
            yield pb.HeartbeatRequest(node_id=node_id, broker_epoch=broker_epoch, leaving=True)

        responses = self._resumed(lambda t: t.cluster.Heartbeat, requests, _ANSWER_S)
        async with contextlib.aclosing(responses):
            await anext(responses)

    async def _resumed(
        self,
        stub: Callable[[Any], Any],
        requests: Callable[[], AsyncIterator[Any]],
        answer_s: float,
        on_broken: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Any]:
        """Answers to a stream of requests, begun again at another member, after `on_broken()`, when
        it breaks off or an answer takes longer than `answer_s`: a member that was stopped closes no
        connection."""
        while True:
            responses = each_within(stub(self._target())(requests()), answer_s)
            try:
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        yield response
            except TimeoutError:
                self._turn("")
            except grpc.aio.AioRpcError as failure:
                error, leader = error_of_failure(failure)
                if not error.retriable:
                    raise error from failure
                self._turn(leader)
            on_broken()
            # With jitter: all nodes lose the leader at the same moment.
            await asyncio.sleep(_PAUSE_S * (1 + self._rng.random()))

    async def drain_node(self, node_id: str) -> None:
        """Move leadership away from a node before it stops."""
        await self._write(lambda t: t.cluster.DrainNode, pb.NodeRequest(node_id=node_id))

    async def undrain_node(self, node_id: str) -> None:
        """Let a node that drains, or that a rebalance empties, take leaderships and replicas again.

        Raises InvalidArgument when it is fenced, NotFound.
        """
        await self._write(lambda t: t.cluster.UndrainNode, pb.NodeRequest(node_id=node_id))

    async def loads(self) -> ClusterLoad:
        """What the leader has heard from nodes, and whether there are enough of them."""
        return value_of(ClusterLoad, await self._call(lambda t: t.cluster.Loads, pb.LoadsRequest()))

    async def remove_node(self, node_id: str) -> None:
        """Forget a node that holds no replicas. Raises InvalidArgument, NotFound."""
        await self._write(lambda t: t.cluster.RemoveNode, pb.NodeRequest(node_id=node_id))

    async def rebalance(
        self, action: RebalanceAction = "plan", *, leaving: Sequence[str] = (), at_once: int = 0
    ) -> Rebalance:
        """Show what would be moved (`plan`), move until nothing is left (`start`), or `stop`.

        `leaving`: nodes that shall hold no replicas, beside those that drain and those that a
        running rebalance empties. `at_once`: partitions that move at a time; 0: 20.
        """
        request = pb.RebalanceRequest(action=_ACTIONS[action], leaving=leaving, at_once=at_once)
        response = await self._write(lambda t: t.cluster.Rebalance, request)
        moves = tuple(
            ReplicaMove(move.topic, move.partition, tuple(move.replicas), tuple(move.target))
            for move in response.moves
        )
        return Rebalance(moves, response.moving, response.running)

    async def change_in_sync(
        self, node_id: str, broker_epoch: int, changes: Sequence[InSyncChange]
    ) -> list[InSyncAnswer]:
        """What came of each change, in their order; at most 1,000 at once. The node, in that
        registration, leads the partitions."""
        request = pb.ChangeInSyncManyRequest(
            node_id=node_id, broker_epoch=broker_epoch, changes=map(in_sync_message, changes)
        )
        response = await self._write(lambda t: t.topics.ChangeInSyncMany, request)
        return [value_of(InSyncAnswer, answer) for answer in response.answers]

    async def resign(
        self, node_id: str, broker_epoch: int, partitions: Sequence[tuple[str, int, int]]
    ) -> None:
        """Give up (topic id, partition, leader epoch) that the node can't write any more, at most
        1,000 at once; what it does not lead any more is left alone. Raises CompareFailed when it
        has registered again."""
        led = [
            pb.Led(topic_id=bytes.fromhex(topic_id), partition=number, leader_epoch=epoch)
            for topic_id, number, epoch in partitions
        ]
        request = pb.ResignRequest(node_id=node_id, broker_epoch=broker_epoch, partitions=led)
        await self._write(lambda t: t.topics.Resign, request)

    async def move(
        self, moves: Sequence[tuple[str, int, int, Sequence[str]]]
    ) -> list[tuple[str, int]]:
        """Begin moves of (topic, partition, partition epoch, target), the preferred leader first;
        (topic, partition) of those that began. Others have changed since. Raises NotFound,
        InvalidArgument."""
        wanted = [
            pb.WantedMove(topic=topic, partition=number, partition_epoch=epoch, target=target)
            for topic, number, epoch, target in moves
        ]
        response = await self._write(lambda t: t.topics.Move, pb.MoveRequest(moves=wanted))
        return [(each.topic, each.partition) for each in response.begun]

    async def elect_preferred(self, topic: str, partition: int) -> None:
        """Give leadership back to the preferred replica if that is in sync and active, now and not
        after some time of calm. Raises NotFound."""
        request = pb.ElectPreferredRequest(topic=topic, partition=partition)
        await self._write(lambda t: t.topics.ElectPreferred, request)

    async def elect_unclean(
        self, topic: str, partition: int, *, partition_epoch: int, node_id: str
    ) -> int:
        """Let a replica lead that may lack acknowledged records; the new leader epoch.

        `node_id`: an active replica, of which the caller has found out that it has the most. Raises
        NotFound, CompareFailed when the partition has a leader or has changed, InvalidArgument.
        """
        request = pb.ElectUncleanRequest(
            topic=topic, partition=partition, partition_epoch=partition_epoch, node_id=node_id
        )
        return int((await self._write(lambda t: t.topics.ElectUnclean, request)).leader_epoch)


def _size_message(size: tuple[str, int, int]) -> pb.PartitionSize:
    topic_id, partition, size_bytes = size
    return pb.PartitionSize(
        topic_id=bytes.fromhex(topic_id), partition=partition, size_bytes=size_bytes
    )
