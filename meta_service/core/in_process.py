"""A member's own services in the shape of gRPC stubs: no socket, no copy."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final, NoReturn

import grpc

from lakemq.meta_service.api.remote.writes import Writes

HERE: Final = "here"


class _LocalContext:
    """What a service method needs of a gRPC context."""

    def auth_context(self) -> dict[str, list[bytes]]:
        """Of no connection, so of no certificate."""
        return {}

    async def abort(
        self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        metadata = grpc.aio.Metadata(*trailers)
        # As gRPC would: callers translate failures in one way, local or remote.
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


class LocalTarget:
    """Implements `Target`."""

    def __init__(self, services: Any) -> None:
        self.address = HERE
        self.kv: Any = _LocalStub(services.kv)
        self.cluster: Any = _LocalStub(services.cluster)
        self.topics: Any = _LocalStub(services.topics)
        self.schemas: Any = _LocalStub(services.schemas)
        self.auth: Any = _LocalStub(services.auth)
        self.maintenance: Any = _LocalStub(services.maintenance)
        self.writes = Writes(self.kv)

    async def close(self) -> None:
        """End the batches of writes; the services belong to the member."""
        await self.writes.close()
