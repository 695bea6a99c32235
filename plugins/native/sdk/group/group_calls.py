"""Calls about one consumer group, which go to its coordinator and follow it, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.coordinator_calls import CoordinatorCalls
from lakemq.plugins.native.sdk.net.routes import Routes

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.native_pb2_grpc import NativeAsyncStub  # noqa: F401


class GroupCalls(CoordinatorCalls["NativeAsyncStub"]):
    """Of one group."""

    def __init__(self, routes: Routes) -> None:
        super().__init__(routes, routes.stub)

    async def commit(self, request: pb.CommitOffsetsRequest, timeout_s: float) -> None:
        """Commit offsets in one attempt. Raises what the coordinator does; a retriable error may be
        of another node, which the next attempt leaves."""
        await self.attempt("CommitOffsets", request, timeout_s)
