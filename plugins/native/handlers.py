"""What stands between gRPC and the service: requests that are no protobuf are refused in words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from broker_core.api.errors import InvalidRequest, LakeMQError
from plugins.native.convert import status_of, trailers_of

_Handlers = Mapping[str, Any]  # gRPC's RpcMethodHandlers, which have no type


class _Malformed:
    """Stands for a request that could not be read."""

    def __init__(self, error: DecodeError) -> None:
        self.error = InvalidRequest(f"the request can't be read: {error}")


class _Collector:
    """Takes the place of a server where generated code registers its handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, _Handlers] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same handlers once more, for older servers."""

    def add_registered_method_handlers(self, service: str, handlers: _Handlers) -> None:
        self.handlers[service] = handlers


def add_service(server: grpc.aio.Server, servicer: Any, add: Callable[[Any, Any], None]) -> None:
    """Register a service with the generated function `add`; what it gets are messages, always."""
    collector = _Collector()
    add(servicer, collector)
    for service, handlers in collector.handlers.items():
        checked = {name: _checked(handler) for name, handler in handlers.items()}
        server.add_registered_method_handlers(service, checked)


def _checked(handler: Any) -> Any:
    reads = _reader(handler.request_deserializer)
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _stream(handler.stream_stream), reads, handler.response_serializer
        )
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _answers(handler.unary_stream), reads, _writer(handler.response_serializer)
        )
    return grpc.unary_unary_rpc_method_handler(
        _answer(handler.unary_unary), reads, handler.response_serializer
    )


def _reader(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(error)

    return read


def _writer(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def write(answer: Any) -> bytes:
        return answer if isinstance(answer, bytes) else serialize(answer)

    return write


def _answer(behavior: Any) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            await abort(context, request.error)
        return await behavior(request, context)

    return answer


def _answers(behavior: Any) -> Any:
    async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
        if isinstance(request, _Malformed):
            await abort(context, request.error)
        async for each in behavior(request, context):
            yield each

    return answers


def _stream(behavior: Any) -> Any:
    async def messages(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, _Malformed):
                raise request.error
            yield request

    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            async for each in behavior(messages(requests), context):
                yield each
        except LakeMQError as error:
            await abort(context, error)

    return stream


async def abort(context: Any, error: LakeMQError) -> NoReturn:
    """End the call with the error's status, code and words."""
    await context.abort(status_of(error), str(error), trailers_of(error))
    raise AssertionError("abort always raises")
