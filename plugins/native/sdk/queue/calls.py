"""Calls about one queue, which go to its coordinator and follow it, for asyncio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lakemq.plugins.native.proto.queues_pb2_grpc import QueuesStub
from lakemq.plugins.native.sdk.coordinator_calls import CoordinatorCalls
from lakemq.plugins.native.sdk.net.routes import Routes

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.queues_pb2_grpc import QueuesAsyncStub


class QueueCalls(CoordinatorCalls["QueuesAsyncStub"]):
    """Of one queue."""

    def __init__(self, routes: Routes) -> None:
        super().__init__(routes, partial(queues_stub, routes))


def queues_stub(routes: Routes, address: str) -> QueuesAsyncStub:
    """Calls on the node there; empty: on the guide."""
    channel: Any = routes.channel(address) if address else routes.guide
    stub: QueuesAsyncStub = QueuesStub(channel)
    return stub
