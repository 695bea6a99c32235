"""gRPC methods for nodes that live and die: heartbeats, draining, in-sync sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from lakemq.meta_service.api.convert import node_message
from lakemq.meta_service.api.errors import (
    CompareFailed,
    InvalidArgument,
    NoLeader,
    NotFound,
    NotLeader,
)
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import RegisterNode, RegisterStorage
from lakemq.meta_service.catalog.control_commands import (
    ACTIVE,
    DRAINING,
    FENCED,
    ChangeInSync,
    RemoveNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.nodes import decode_node, node_key
from lakemq.meta_service.control.moves import SetRebalance
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.server.services import ClusterService, Shared, TopicsService

if TYPE_CHECKING:
    from lakemq.meta_service.api.types import NodeRegistration
    from lakemq.meta_service.control.controller import Controller


MOVES_AT_ONCE: Final = 20
MOVES_SHOWN: Final = 10_000
"""Moves in one answer, so that it stays small."""


class ControlledClusterService(ClusterService):
    """`Cluster` with the methods that the controller stands behind."""

    def __init__(self, shared: Shared, controller: Controller, now_s: Callable[[], float]) -> None:
        super().__init__(*shared)
        self._controller = controller
        self._now_s = now_s

    def _node(self, node_id: str) -> NodeRegistration:
        row = self._gateway.cache.get(node_key(node_id))
        if row is None:
            raise NotFound(f"node {node_id!r} is not registered")
        return decode_node(node_key(node_id), row.value)

    def _registration(self, node: pb.Node) -> Command:
        """Below level 3 a fenced node's partitions would lose their leader, and rows can't hold a
        storage id: a node that names its storage is then registered without both."""
        told = (dict(node.addresses), node.rack, node.version, node.feature_level)
        if not node.storage_id:
            return RegisterNode(node.node_id, *told, node.heartbeats)
        if self._controller.feature_level < RegisterStorage.level:
            return RegisterNode(node.node_id, *told, False)
        return RegisterStorage(node.node_id, *told, node.heartbeats, node.storage_id)

    @unary
    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Context) -> pb.Node:
        await self._propose(self._registration(request.node), request.once)
        return node_message(self._node(request.node.node_id))

    def beat(self, node_id: str, broker_epoch: int, load: dict[str, float]) -> str:
        """Take a heartbeat; the node's state. Raises NotLeader, NoLeader, NotFound,
        CompareFailed."""
        if self._gateway.leading_term() is None:
            raise NotLeader("this member is not the leader")
        if not self._controller.is_active:
            raise NoLeader("the leader is not ready yet")
        node = self._node(node_id)
        if node.broker_epoch > broker_epoch:
            raise CompareFailed(
                f"node {node_id!r} has registered again, in broker epoch {node.broker_epoch}: "
                f"broker epoch {broker_epoch} is over"
            )
        if node.broker_epoch < broker_epoch:
            raise NotFound(f"node {node_id!r} has no registration of broker epoch {broker_epoch}")
        self._controller.monitor.beat(node_id, broker_epoch, self._now_s(), load)
        return node.state

    @streaming
    async def Heartbeat(
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Context
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        async for request in requests:
            state = self.beat(request.node_id, request.broker_epoch, dict(request.load))
            if request.leaving:
                await self._controller.fence(self._node(request.node_id))
                state = FENCED
            yield pb.HeartbeatResponse(state=state)

    @unary
    async def DrainNode(self, request: pb.NodeRequest, context: Context) -> pb.WriteResponse:
        await self._fresh()
        node = self._node(request.node_id)
        command = SetNodeState(node.node_id, node.broker_epoch, DRAINING)
        return pb.WriteResponse(revision=(await self._propose(command, request.once)).revision)

    @unary
    async def RemoveNode(self, request: pb.NodeRequest, context: Context) -> pb.WriteResponse:
        await self._fresh()
        row = self._gateway.cache.get(node_key(request.node_id))
        if row is not None:  # else it may be a retry, whose answer is known
            node = decode_node(node_key(request.node_id), row.value)
            if node.heartbeats and node.state == ACTIVE:
                raise InvalidArgument(f"node {node.node_id!r} is alive: stop it first")
        result = await self._propose(RemoveNode(request.node_id), request.once)
        return pb.WriteResponse(revision=result.revision)

    @unary
    async def Rebalance(
        self, request: pb.RebalanceRequest, context: Context
    ) -> pb.RebalanceResponse:
        await self._fresh()
        if request.action != pb.RebalanceRequest.PLAN:
            wanted = request.action == pb.RebalanceRequest.START
            at_once = request.at_once or MOVES_AT_ONCE
            for node_id in request.leaving:
                self._node(node_id)
            command = SetRebalance(wanted, tuple(request.leaving), at_once)
            await self._propose(command, request.once)
        mover = self._controller.mover
        running = mover.wanted()
        leaving = {*request.leaving, *(running[0] if running else ())}
        moves = [
            pb.Move(
                topic=move.topic,
                partition=move.partition,
                replicas=move.replicas,
                target=move.target,
            )
            for move in (await mover.plan(sorted(leaving)))[:MOVES_SHOWN]
        ]
        return pb.RebalanceResponse(moves=moves, moving=mover.moving(), running=running is not None)


class ControlledTopicsService(TopicsService):
    """`Topics` with the changes that partition leaders ask for."""

    def __init__(self, shared: Shared, controller: Controller) -> None:
        super().__init__(*shared)
        self._controller = controller

    def full_nodes(self) -> tuple[str, ...]:
        return self._controller.full_nodes()

    @unary
    async def ChangeInSync(
        self, request: pb.ChangeInSyncRequest, context: Context
    ) -> pb.ChangeInSyncResponse:
        command = ChangeInSync(
            request.topic,
            request.topic_id,
            request.partition,
            request.leader,
            request.leader_epoch,
            request.partition_epoch,
            tuple(request.in_sync),
        )
        result = await self._propose(command, request.once)
        return pb.ChangeInSyncResponse(partition_epoch=result.payload)
