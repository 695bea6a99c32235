"""What operators ask of a member: snapshot, backup, transfer of leadership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from lakemq.meta_service.api.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
)
from lakemq.meta_service.core.gateway import Gateway
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.raft.membership import Group, Refused
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.storage.snapshot_stream import FolderSource
from lakemq.meta_service.storage.snapshots import SnapshotMaker

CHUNK_BYTES: Final = 512 * 1024
_POLL_S: Final = 0.01
_SNAPSHOT_MAX_S: Final = 60.0
_TRANSFER_S: Final = 0.3
_TRANSFERS_MAX: Final = 10


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
        """Make a snapshot of what is applied now; answers when it is durable."""
        return pb.SnapshotResponse(log_index=await self._fresh_snapshot())

    async def _fresh_snapshot(self) -> int:
        """Log index of a durable snapshot that holds everything applied by now."""
        wanted: int = await self._gateway.run(lambda node: node.machine.applied_index)
        async with asyncio.timeout(_SNAPSHOT_MAX_S):
            while True:
                newest = self._snapshots.newest()
                if newest is not None and newest.log_index >= wanted:
                    return newest.log_index
                # Again in each turn: one that was under way may have begun before `wanted` was
                # applied.
                await self._gateway.run(lambda node: node.snapshots.begin())
                await asyncio.sleep(_POLL_S)

    @streaming
    async def Backup(
        self, request: pb.BackupRequest, context: Context
    ) -> AsyncGenerator[pb.BackupChunk]:
        """A snapshot that holds all that was acknowledged before the call, in chunks."""
        await self._gateway.barrier()
        await self._fresh_snapshot()
        # Its files stay readable while they are open, even if a newer snapshot replaces this one.
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
        """Ask a member to take over the leadership; it may still fail to be elected."""

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
        """Promote or remove a member; answers when the change is committed."""
        if self._gateway.leading_term() is None:
            raise NotLeader("this member is not the leader")
        if request.change == pb.ChangeGroupRequest.REMOVE:
            await self._give_way(request.member_id)
        try:
            index, term = await self._gateway.run(lambda node: _change_group(node, request))
        except ValueError as error:  # `Refused`
            raise InvalidArgument(f"group: {error}") from error
        group = await settle_change(self._gateway, index, term)
        return pb.ChangeGroupResponse(voters=group.voters, learners=group.learners)

    async def _give_way(self, member_id: str) -> None:
        """The leader itself is to be removed: let another lead. Raises NotLeader when one does."""

        def transfer(node: RaftNode) -> bool:
            others = [name for name in node.group.voters if name != member_id]
            if node.member_id != member_id or not others:
                return False
            node.transfer_leadership(None)
            return True

        for _ in range(_TRANSFERS_MAX):
            if not await self._gateway.run(transfer):
                return
            await asyncio.sleep(_TRANSFER_S)
            if self._gateway.leading_term() is None:
                raise NotLeader("this member has handed its leadership over")


async def settle_change(gateway: Gateway, index: int, term: int) -> Group:
    """The group, once the change at a log index of that term is committed."""
    while True:
        leads, committed, group = await gateway.run(
            lambda node: (node.is_leader and node.term == term, node.commit_index, node.group)
        )
        if not leads:
            raise OutcomeUnknown("the leadership was lost before the change was committed")
        if committed >= index:
            settled: Group = group
            return settled
        await asyncio.sleep(_POLL_S)


def _change_group(node: RaftNode, request: pb.ChangeGroupRequest) -> tuple[int, int]:
    """Raft thread: log index and term of the change. Raises Refused."""
    kinds = pb.ChangeGroupRequest
    if request.change == kinds.PROMOTE:
        node.promote(request.member_id)
    elif request.change == kinds.REMOVE:
        node.remove_member(request.member_id)
    else:
        raise Refused("the change is not known")
    return node.group_index, node.term
