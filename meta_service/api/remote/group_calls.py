"""Calls about the Raft group itself: who leads, who is in it, a copy of the catalog."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import grpc

from lakemq.meta_service.api.backup_head import BackupNote, encode_head
from lakemq.meta_service.api.errors import NoLeader
from lakemq.meta_service.api.remote.calls import Calls, Stub, each_within
from lakemq.meta_service.api.remote.failures import Refused, error_of_failure
from lakemq.meta_service.proto import meta_pb2 as pb

_CHUNK_S: Final = 60.0
"""How long the next chunk of a backup may take: the first is behind a snapshot."""


class GroupCalls(Calls):
    """Part of `RemoteClient`. No change is repeated that may have been made: OutcomeUnknown."""

    async def _once(self, stub: Stub, request: Any) -> Any:
        """A call that must not be made twice."""
        raise NotImplementedError

    async def transfer_leadership(self, member_id: str = "") -> None:
        """Ask a member to lead; empty: one that has the whole log. It may still fail to be
        elected. Raises Overloaded: none has the whole log."""
        request = pb.TransferRequest(member_id=member_id)
        await self._once(lambda t: t.maintenance.TransferLeadership, request)

    async def promote_member(self, member_id: str) -> Sequence[str]:
        """The voters, of whom the learner is one now. Raises InvalidArgument."""
        request = pb.ChangeGroupRequest(change=pb.ChangeGroupRequest.PROMOTE, member_id=member_id)
        return list((await self._once(lambda t: t.maintenance.ChangeGroup, request)).voters)

    async def remove_member(self, member_id: str) -> Sequence[str]:
        """The voters that are left. A leader hands over first. Raises InvalidArgument."""
        request = pb.ChangeGroupRequest(change=pb.ChangeGroupRequest.REMOVE, member_id=member_id)
        return list((await self._once(lambda t: t.maintenance.ChangeGroup, request)).voters)

    async def backup(self) -> tuple[BackupNote, AsyncGenerator[bytes]]:
        """A backup of the leader's state as of now: its note, and the bytes of the file, which may
        raise MetaError. To be closed."""

        async def begun(open_stream: Any, request: Any) -> tuple[Any, AsyncGenerator[Any]]:
            chunks = each_within(open_stream(request), _CHUNK_S)
            try:
                return await anext(chunks), chunks
            except (TimeoutError, StopAsyncIteration):
                raise Refused(NoLeader("the member sent nothing"), "") from None

        def stub(target: Any) -> Any:
            return lambda request, timeout: begun(target.maintenance.Backup, request)

        first, chunks = await self._call(stub, pb.BackupRequest())
        note = BackupNote(first.log_index, first.term, first.size, first.cluster_id)
        return note, _file(note, first, chunks)


async def _file(note: BackupNote, first: Any, chunks: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(chunks):
        yield encode_head(note) + first.data
        try:
            async for chunk in chunks:
                yield chunk.data
        except grpc.aio.AioRpcError as failure:
            raise error_of_failure(failure)[0] from failure
        except TimeoutError:
            raise NoLeader(f"nothing came for {_CHUNK_S:.0f} s") from None
