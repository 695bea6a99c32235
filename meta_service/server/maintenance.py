"""What operators ask of a member: snapshot, backup, transfer of leadership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from meta_service.api import meta_pb2 as pb
from meta_service.api import meta_pb2_grpc as rpc
from meta_service.api.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
)
from meta_service.core.gateway import Gateway
from meta_service.raft.membership import Refused
from meta_service.raft.node import RaftNode
from meta_service.server.failures import Context, streaming, unary
from meta_service.storage.snapshot_stream import FolderSource
from meta_service.storage.snapshots import SnapshotMaker

CHUNK_BYTES: Final = 512 * 1024
_POLL_S: Final = 0.01
_SNAPSHOT_S_MAX: Final = 60.0


class MaintenanceService(rpc.MaintenanceServicer):
    """Implements `Maintenance` of meta.proto."""

    def __init__(
        self,
        gateway: Gateway,
        snapshots: SnapshotMaker,
        cluster_id: Callable[[], str],
        leader_address: Callable[[], str],
    ) -> None:
        self._gateway = gateway
        self._snapshots = snapshots
        self._cluster_id = cluster_id
        self.leader_address = leader_address

    @unary
    async def Snapshot(self, request: pb.SnapshotRequest, context: Context) -> pb.SnapshotResponse:
        return pb.SnapshotResponse(log_index=await self._fresh_snapshot())

    async def _fresh_snapshot(self) -> int:
        """Log index of a durable snapshot that holds everything applied by now."""
        wanted: int = await self._gateway.run(lambda node: node.machine.applied_index)
        async with asyncio.timeout(_SNAPSHOT_S_MAX):
            while True:
                newest = self._snapshots.newest()
                if newest is not None and newest.log_index >= wanted:
                    return newest.log_index
                await self._gateway.run(lambda node: node.snapshots.begin())
                await asyncio.sleep(_POLL_S)

    @streaming
    async def Backup(
        self, request: pb.BackupRequest, context: Context
    ) -> AsyncIterator[pb.BackupChunk]:
        await self._gateway.barrier()
        await self._fresh_snapshot()
        source = await self._gateway.run(lambda node: node.snapshots.open_newest())
        if not isinstance(source, FolderSource):
            raise StorageFailed("the snapshot is gone again")
        try:
            chunk = pb.BackupChunk(
                cluster_id=self._cluster_id(),
                log_index=source.log_index,
                term=source.term,
                size=source.size,
            )
            for position in range(0, source.size, CHUNK_BYTES):
                chunk.data = await asyncio.to_thread(source.read, position, CHUNK_BYTES)
                yield chunk
                chunk = pb.BackupChunk()
        finally:
            source.close()

    @unary
    async def TransferLeadership(
        self, request: pb.TransferRequest, context: Context
    ) -> pb.TransferResponse:
        def transfer(node: Any) -> tuple[bool, bool]:
            return node.is_leader, node.transfer_leadership(request.member_id or None)

        was_leader, asked = await self._gateway.run(transfer)
        if not was_leader:
            raise NotLeader("this member is not the leader")
        if not asked:
            raise Overloaded("no such member has the whole log at the moment")
        return pb.TransferResponse()

    @unary
    async def ChangeGroup(
        self, request: pb.ChangeGroupRequest, context: Context
    ) -> pb.ChangeGroupResponse:
        if self._gateway.leading_term() is None:
            raise NotLeader("this member is not the leader")
        try:
            index, term = await self._gateway.run(lambda node: _change_group(node, request))
        except ValueError as error:  # `Refused`
            raise InvalidArgument(f"group: {error}") from error
        while True:
            leads, committed, group = await self._gateway.run(
                lambda node: (node.is_leader and node.term == term, node.commit_index, node.group)
            )
            if not leads:
                raise OutcomeUnknown("the leadership was lost before the change was committed")
            if committed >= index:
                return pb.ChangeGroupResponse(voters=group.voters, learners=group.learners)
            await asyncio.sleep(_POLL_S)


def _change_group(node: RaftNode, request: pb.ChangeGroupRequest) -> tuple[int, int]:
    """Raft thread: log index and term of the change. Raises Refused."""
    kinds = pb.ChangeGroupRequest
    if request.change == kinds.ADD_LEARNER:
        if not request.member_id or ":" not in request.address:
            raise Refused("a member needs an id and an address `host:raft_port`")
        node.add_learner(request.member_id, request.address)
    elif request.change == kinds.PROMOTE:
        node.promote(request.member_id)
    elif request.change == kinds.REMOVE:
        node.remove_member(request.member_id)
    else:
        raise Refused("the change is not known")
    return node.group_index, node.term
