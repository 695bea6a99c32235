"""Errors of the MetaService as gRPC statuses. The only place that translates them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

import grpc

from lakemq.meta_service.api.errors import Compacted, MetaError

LOG: Final = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Response = TypeVar("Response")

_STATUS: Final = {
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ALREADY_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "INVALID_ARGUMENT": grpc.StatusCode.INVALID_ARGUMENT,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "COMPARE_FAILED": grpc.StatusCode.ABORTED,
    "COMPACTED": grpc.StatusCode.OUT_OF_RANGE,
    "NOT_LEADER": grpc.StatusCode.FAILED_PRECONDITION,
    "NO_LEADER": grpc.StatusCode.UNAVAILABLE,
    "OVERLOADED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "OUTCOME_UNKNOWN": grpc.StatusCode.UNKNOWN,
    "SESSION_EXPIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "UNSUPPORTED_COMMAND": grpc.StatusCode.UNIMPLEMENTED,
    "STORAGE_FAILED": grpc.StatusCode.UNAVAILABLE,
}


async def abort(context: Context, error: MetaError, leader: str = "") -> NoReturn:
    """End a call with an error, its code and details in trailers."""
    trailers = [("lakemq-error", error.code)]
    if isinstance(error, Compacted):
        trailers.append(("lakemq-revision", str(error.compact_revision)))
    if leader:
        trailers.append(("lakemq-leader", leader))
    status = _STATUS.get(error.code, grpc.StatusCode.INTERNAL)
    await context.abort(status, str(error), tuple(trailers))
    raise AssertionError("abort always raises")


def unary(
    method: Callable[[Any, Request, Context], Awaitable[Response]],
) -> Callable[[Any, Request, Context], Awaitable[Response]]:
    """A unary method that may raise MetaError."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> Response:
        try:
            return await method(self, request, context)
        except MetaError as error:
            return await abort(context, error, self.leader_address())
        except (ValueError, TypeError) as error:
            # A bug that one request met: it is answered, and the member goes on.
            LOG.exception("a request failed")
            return await abort(context, MetaError(f"{type(error).__name__}: {error}"))

    return guarded


def streaming(
    method: Callable[[Any, Request, Context], AsyncGenerator[Response]],
) -> Callable[[Any, Request, Context], AsyncIterator[Response]]:
    """A method that streams its answer and may raise MetaError."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> AsyncIterator[Response]:
        try:
            # Closed in the turn in which the call ends, not when it is collected.
            async with contextlib.aclosing(method(self, request, context)) as responses:
                async for response in responses:
                    yield response
        except MetaError as error:
            await abort(context, error, self.leader_address())

    return guarded
