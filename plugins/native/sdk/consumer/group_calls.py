"""Calls about one consumer group, which go to its coordinator and follow it, for asyncio."""

from __future__ import annotations

import time
from asyncio import sleep
from typing import TYPE_CHECKING, Any, Final

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.native_pb2_grpc import NativeAsyncStub

ATTEMPT_S: Final = 3.0
"""Of a call in a cluster: the node may stand still, and another one coordinate."""


class GroupCalls:
    """Where the coordinator of a group is, as far as errors have told. The guide is asked first,
    and again after a failure: it names the coordinator if that is another node."""

    def __init__(self, routes: Routes, group: str) -> None:
        self.address = ""
        """`host:port`; empty: the guide."""
        self._routes = routes
        self._group = group
        self._epoch = 0

    @property
    def stub(self) -> NativeAsyncStub:
        """Calls on the coordinator, as far as known."""
        return self._routes.stub(self.address)

    async def log_in(self) -> None:
        """Get a token of the node that `stub` leads to, where one is needed: streams can't."""
        routes = self._routes
        channel = routes.channel(self.address) if self.address else routes.guide.current
        login = getattr(channel, "login", None)
        if login is not None:
            await login.ensure()

    def failed(self, error: LakeMQError) -> bool:
        """A call or stream on `stub` has failed; whether another node is to be asked at once."""
        former, self.address = self.address, ""
        # Of several nodes that were asked one may be behind: leader epochs only grow.
        if isinstance(error, NotLeader) and error.address and error.epoch >= self._epoch:
            self.address, self._epoch = error.address, error.epoch
        return self.address not in ("", former)

    async def commit(self, request: pb.CommitOffsetsRequest, timeout_s: float) -> None:
        """Commit offsets in one attempt. Raises what the coordinator does; a retriable error may be
        of another node, which the next attempt leaves."""
        await self._attempt("CommitOffsets", request, timeout_s)

    async def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """The coordinator's answer. What the guide is unavailable for is raised at once."""
        deadline_s = time.monotonic() + timeout_s
        for pause_s in backoff_s():
            asked = self.address
            try:
                return await self._attempt(method, request, timeout_s)
            except (NotLeader, Unavailable) as error:
                elsewhere = isinstance(error, NotLeader) or asked
                if not elsewhere or time.monotonic() + pause_s > deadline_s:
                    raise
            if self.address in ("", asked):  # nothing new was learned
                await sleep(pause_s)
        raise AssertionError("backoff never ends")

    async def _attempt(self, method: str, request: Any, timeout_s: float) -> Any:
        # Where there is no other node, none can have taken over.
        alone = not self.address and len(self._routes.view.addresses()) < 2
        limit_s = timeout_s if alone else min(ATTEMPT_S, timeout_s)
        try:
            return await getattr(self.stub, method)(request, timeout=limit_s)
        except LakeMQError as error:
            if error.retriable:
                self.failed(error)
            raise
