"""The client of a member in a group: the own member where it can answer, the leader where it must.

It is the remote client with one more target, this process, which takes no socket. Watches and stale
reads are answered here; writes and linearizable reads go to the leader, wherever it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc

from meta_service.api.client import RemoteClient, Target
from meta_service.api.types import KeyValue, MetaStatus, TopicChange, WatchEvent
from meta_service.core.local_client import LocalClient
from meta_service.server.grpc_server import Services

HERE = "here"


class _LocalContext:
    """What a service method needs of a gRPC context."""

    async def abort(
        self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        metadata = grpc.aio.Metadata(*trailers)
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details)


class _LocalStub:
    """A service of this process in the shape of a gRPC stub."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._service, name)

        async def call(request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's name
            try:
                async with asyncio.timeout(timeout):
                    return await method(request, _LocalContext())
            except TimeoutError:
                await _LocalContext().abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")

        def stream(requests: Any) -> Any:
            return method(requests, _LocalContext())

        return stream if inspect.isasyncgenfunction(method) else call


class _LocalTarget:
    """Implements `Target`."""

    def __init__(self, services: Services) -> None:
        self.address = HERE
        self.kv: Any = _LocalStub(services.kv)
        self.cluster: Any = _LocalStub(services.cluster)
        self.topics: Any = _LocalStub(services.topics)
        self.leases: Any = _LocalStub(services.leases)

    async def close(self) -> None:
        pass


class RoutedClient(RemoteClient):
    """Implements `MetaClient`."""

    def __init__(
        self,
        local: LocalClient,
        services: Services,
        leader_name: Callable[[], tuple[str, str]],
        credentials: grpc.ChannelCredentials | None,
        timeout_s: float = 10.0,
    ) -> None:
        """`leader_name()`: (id, address) of the leader as far as this member knows."""
        super().__init__([HERE], credentials=credentials, timeout_s=timeout_s)
        self.local = local
        self._leader_name = leader_name
        self._targets[HERE] = _LocalTarget(services)

    def _target(self) -> Target:
        """The leader if it is known, else this member, which says that there is none."""
        name, address = self._leader_name()
        self._current = address or HERE
        return self._target_at(self._current, name)

    def _turn(self, leader: str) -> None:
        """Where to go is asked anew for each attempt."""

    async def status(self) -> MetaStatus:
        return await self.local.status()

    async def get(self, key: bytes, *, stale: bool = False) -> KeyValue | None:
        if stale:
            return await self.local.get(key, stale=True)
        return await super().get(key)

    def watch(self, prefix: bytes, start_revision: int) -> AsyncIterator[WatchEvent]:
        return self.local.watch(prefix, start_revision)

    def watch_topics(self, start_revision: int) -> AsyncIterator[TopicChange]:
        return self.local.watch_topics(start_revision)
