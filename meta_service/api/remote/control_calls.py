"""What brokers of a cluster call beyond `MetaClient`: heartbeats, drains, in-sync sets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import grpc

from lakemq.meta_service.api.messages import value_of
from lakemq.meta_service.api.remote.calls import Calls
from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.api.types import ClusterLoad, Rebalance, ReplicaMove
from lakemq.meta_service.proto import meta_pb2 as pb

Load = Mapping[str, float]
RebalanceAction = Literal["plan", "start", "stop"]
_ACTIONS: Final = {
    "plan": pb.RebalanceRequest.PLAN,
    "start": pb.RebalanceRequest.START,
    "stop": pb.RebalanceRequest.STOP,
}
_PAUSE_S: Final = 0.05
_ANSWER_S: Final = 1.0
"""Time without an answer after which a member is given up: another may lead by now."""


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
        load: Callable[[], Load] = dict,
        *,
        period_s: float = 0.5,
    ) -> AsyncGenerator[str]:
        """Say that the node lives until the iterator is closed; gives the node's state each time.

        Goes on at the next leader. Raises CompareFailed when a later registration has taken this
        one's place, NotFound when the node is not registered.
        """

        async def requests() -> AsyncIterator[pb.HeartbeatRequest]:
            while True:
                yield pb.HeartbeatRequest(
                    node_id=node_id, broker_epoch=broker_epoch, load=dict(load())
                )
                await asyncio.sleep(period_s)

        responses = self._resumed(lambda t: t.cluster.Heartbeat, requests, period_s + _ANSWER_S)
        async for response in responses:
            yield response.state

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
    ) -> AsyncGenerator[Any]:
        """Answers to a stream of requests, begun again at another member when it breaks off or an
        answer takes longer than `answer_s`: a member that was stopped closes no connection."""
        while True:
            responses = _each_within(stub(self._target())(requests()), answer_s)
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
        self,
        topic: str,
        topic_id: str,
        partition: int,
        *,
        leader: str,
        leader_epoch: int,
        partition_epoch: int,
        in_sync: Sequence[str],
    ) -> int:
        """The new partition epoch. Raises CompareFailed when an epoch is not the current one."""
        request = pb.ChangeInSyncRequest(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            in_sync=in_sync,
        )
        return int((await self._write(lambda t: t.topics.ChangeInSync, request)).partition_epoch)


async def _each_within(responses: Any, answer_s: float) -> AsyncGenerator[Any]:
    """Each response of a stream, gRPC's or of this process. Raises TimeoutError."""
    answers = aiter(responses)
    try:
        while True:
            try:
                async with asyncio.timeout(answer_s):
                    response = await anext(answers)
            except StopAsyncIteration:
                return
            yield response
    finally:
        # A call of gRPC is cancelled; the generator of this process is closed.
        if hasattr(responses, "cancel"):
            responses.cancel()
        else:
            await responses.aclose()
