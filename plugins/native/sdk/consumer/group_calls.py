"""Calls about one consumer group, which go to its coordinator and follow it, for asyncio."""

from __future__ import annotations

import time
from asyncio import sleep
from typing import TYPE_CHECKING, Any

from lakemq.broker_core.api.errors import NotLeader, Unavailable
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.coordinator_calls import CoordinatorCalls
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s

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

    async def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """The coordinator's answer. What the guide is unavailable for is raised at once."""
        deadline_s = time.monotonic() + timeout_s
        for pause_s in backoff_s():
            asked = self.address
            try:
                return await self.attempt(method, request, timeout_s)
            except (NotLeader, Unavailable) as error:
                elsewhere = isinstance(error, NotLeader) or asked
                if not elsewhere or time.monotonic() + pause_s > deadline_s:
                    raise
            if self.address in ("", asked):  # nothing new was learned
                await sleep(pause_s)
        raise AssertionError("backoff never ends")
