"""The gRPC service of nodes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

from lakemq.meta_service.api.convert import node_message, status_message
from lakemq.meta_service.api.errors import (
    CompareFailed,
    InvalidArgument,
    NoLeader,
    NotFound,
    NotLeader,
)
from lakemq.meta_service.api.messages import message_of, value_of
from lakemq.meta_service.api.types import LEADERLESS_MAX, NodeRegistration, ReplicaEnd
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    OpenSession,
    RegisterNode,
    RegisterStorage,
)
from lakemq.meta_service.catalog.control_commands import (
    ACTIVE,
    DRAINING,
    FENCED,
    RemoveNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.moves import SetRebalance
from lakemq.meta_service.catalog.nodes import decode_node, node_key
from lakemq.meta_service.catalog.pages.commands import RegisterBroker
from lakemq.meta_service.catalog.tables import NODE_PREFIX
from lakemq.meta_service.control.controller import Controller
from lakemq.meta_service.control.failure_detector import NodeReport
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.server.service import Service, Shared, writes

SIZES_MAX: Final = 1000
"""Partitions of one heartbeat whose sizes are looked at."""
ADMISSION_S: Final = 0.4
"""Longest time that an answer to a heartbeat waits for the node to be let in."""
_TOPIC_ID_DIGITS: Final = 32
MOVES_AT_ONCE: Final = 20
MOVES_SHOWN: Final = 10_000
"""Moves in one answer, so that it stays small."""


class ClusterService(Service, rpc.ClusterServicer):
    """Implements `Cluster` of meta.proto."""

    OpenSession = writes(lambda _, request: OpenSession(request.client_id))
    AllocateIds = writes(
        lambda _, request: AllocateIds(request.kind, request.count),
        lambda _, result: pb.AllocateIdsResponse(first=result.payload),
    )

    def __init__(self, shared: Shared, controller: Controller, now_s: Callable[[], float]) -> None:
        super().__init__(*shared)
        self._controller = controller
        self._now_s = now_s
        self._processes = controller.failure_detector.processes

    def _node(self, node_id: str) -> NodeRegistration:
        row = self._gateway.cache.get(node_key(node_id))
        if row is None:
            raise NotFound(f"node {node_id!r} is not registered")
        return decode_node(node_key(node_id), row.value)

    def _registration(self, request: pb.RegisterNodeRequest) -> Command:
        """Below level 3 a fenced node's partitions would lose their leader, and rows can't hold a
        storage id: a node that names its storage is then registered without both."""
        node = request.node
        fields = (dict(node.addresses), node.rack, node.version, node.feature_level)
        if self._controller.feature_level >= RegisterBroker.level:
            disowned = tuple((each.topic_id, each.partition) for each in request.disowned)
            return RegisterBroker(
                node.node_id,
                *fields,
                node.heartbeats,
                node.storage_id,
                tuple(node.roles),
                node.clean,
                disowned,
            )
        if not node.storage_id:
            return RegisterNode(node.node_id, *fields, node.heartbeats)
        if self._controller.feature_level < RegisterStorage.level:
            return RegisterNode(node.node_id, *fields, False)
        return RegisterStorage(node.node_id, *fields, node.heartbeats, node.storage_id)

    @unary
    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        """This member's own view of the group."""
        return status_message(self._status())

    @unary
    async def ListNodes(
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        """All registered nodes; linearizable."""
        await self._fresh()
        rows = self._gateway.cache.scan(NODE_PREFIX)
        nodes = [node_message(decode_node(key, row.value)) for key, row in rows]
        return pb.ListNodesResponse(nodes=nodes)

    @unary
    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Context) -> pb.Node:
        """Register a node, which gets a new broker epoch (KIP-500)."""
        await self._propose(self._registration(request), request.once)
        # What it led ends before its first heartbeat comes; one that sends none comes in now.
        if request.node.heartbeats:
            self._controller.wake()
        else:
            await self._controller.stepped(ADMISSION_S)
        return node_message(self._node(request.node.node_id))

    def _check_leads(self) -> None:
        """Heartbeats are heard by the leader alone. Raises NotLeader, NoLeader."""
        if self._gateway.leading_term() is None:
            raise NotLeader("this member is not the leader")
        if not self._controller.is_active:
            raise NoLeader("the leader is not ready yet")

    def heartbeat(self, node_id: str, broker_epoch: int, report: NodeReport) -> NodeRegistration:
        """Take a heartbeat; the node as it is. Raises NotLeader, NoLeader, NotFound,
        CompareFailed."""
        self._check_leads()
        # The answer prolongs a lease by which the node leads: another leader, which a majority may
        # have elected meanwhile, would not count it.
        if not self._gateway.hears_majority():
            raise NoLeader("the leader does not hear from a majority of the members")
        node = self._node(node_id)
        # KIP-500: the older incarnation must stop, as another process has its name now.
        if node.broker_epoch > broker_epoch:
            raise CompareFailed(
                f"node {node_id!r} has registered again, in broker epoch {node.broker_epoch}: "
                f"broker epoch {broker_epoch} is over"
            )
        if node.broker_epoch < broker_epoch:
            raise NotFound(f"node {node_id!r} has no registration of broker epoch {broker_epoch}")
        self._controller.failure_detector.record_heartbeat(
            node_id, broker_epoch, self._now_s(), report
        )
        return node

    @streaming
    async def Heartbeat(
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Context
    ) -> AsyncGenerator[pb.HeartbeatResponse]:
        """The node's state for each heartbeat, as in KIP-631; `leaving` fences it at once."""
        stream, said_by = object(), ("", 0)
        try:
            async for request in requests:
                state = await self._answer(request)
                said_by = request.node_id, request.broker_epoch
                self._processes.stream_used(*said_by, stream)
                yield pb.HeartbeatResponse(state=state, sent=request.number)
        finally:
            self._processes.stream_ended(*said_by, stream, self._now_s())

    async def _answer(self, request: pb.HeartbeatRequest) -> str:
        ready = request.ready if request.HasField("ready") else True
        ends = tuple(
            value_of(ReplicaEnd, each)
            for each in request.leaderless[:LEADERLESS_MAX]
            if len(each.topic_id) == _TOPIC_ID_DIGITS
        )
        report = NodeReport(dict(request.load), ready and not request.leaving, request.full, ends)
        node = self.heartbeat(request.node_id, request.broker_epoch, report)
        for refusal in request.refusing:
            self._processes.refused(
                request.node_id, refusal.node_id, refusal.broker_epoch, self._now_s()
            )
        self._controller.sizes.note(
            (each.topic_id.hex(), each.partition, each.size_bytes)
            for each in request.sizes[:SIZES_MAX]
        )
        if request.leaving:
            if not node.leaving:
                await self._controller.fence(node)
            return FENCED
        if node.state == FENCED and not node.admitted and ready:
            # Let in now, so that its start need not wait for another heartbeat.
            await self._controller.stepped(ADMISSION_S)
            node = self._node(request.node_id)
        return self._controller.shown_state(node)

    @unary
    async def DrainNode(self, request: pb.NodeRequest, context: Context) -> pb.WriteResponse:
        """Let a node give up its leaderships and replicas."""
        await self._fresh()
        node = self._node(request.node_id)
        command = SetNodeState(node.node_id, node.broker_epoch, DRAINING)
        return pb.WriteResponse(revision=(await self._propose(command, request.once)).revision)

    @unary
    async def UndrainNode(self, request: pb.NodeRequest, context: Context) -> pb.WriteResponse:
        """Let a node take leaderships and replicas again."""
        await self._fresh()
        node = self._node(request.node_id)
        if node.state == FENCED:
            raise InvalidArgument(
                f"node {node.node_id!r} is fenced: its heartbeats make it active, once they come"
            )
        running = self._controller.mover.wanted()
        # Before it is active: else the rebalance would go on to empty a node that takes replicas.
        if running is not None and node.node_id in running[0]:
            left = tuple(name for name in running[0] if name != node.node_id)
            await self._propose(SetRebalance(True, left, running[1]), None)
        command = SetNodeState(node.node_id, node.broker_epoch, ACTIVE)
        return pb.WriteResponse(revision=(await self._propose(command, request.once)).revision)

    @unary
    async def Loads(self, request: pb.LoadsRequest, context: Context) -> pb.LoadsResponse:
        """What this member has heard from nodes since it began to lead, and what follows."""
        self._check_leads()
        advice = self._controller.advice()
        detector, now_s = self._controller.failure_detector, self._now_s()
        return pb.LoadsResponse(
            nodes=[
                pb.NodeLoad(
                    node_id=name,
                    figures=load,
                    silent_s=detector.silent_s(name, now_s),
                    leaderless=[
                        message_of(pb.ReplicaEnd, each) for each in detector.leaderless(name)
                    ],
                )
                for name, load in sorted(detector.loads().items())
            ],
            nodes_wanted=advice.nodes_wanted,
            advice=advice.lines,
        )

    @unary
    async def RemoveNode(self, request: pb.NodeRequest, context: Context) -> pb.WriteResponse:
        """Forget a node that is not alive and holds no replicas."""
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
        """Plan, start or stop moving replicas; answers with what is left to move."""
        await self._fresh()
        if request.action != pb.RebalanceRequest.PLAN:
            wanted = request.action == pb.RebalanceRequest.START
            at_once = request.at_once or MOVES_AT_ONCE
            for node_id in request.leaving:
                self._node(node_id)
            before = self._controller.mover.wanted()
            # Two nodes may be decommissioned at a time: the second must not end the first.
            names = {*request.leaving, *(before[0] if before else ())} if wanted else set()
            command = SetRebalance(wanted, tuple(sorted(names)), at_once)
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
