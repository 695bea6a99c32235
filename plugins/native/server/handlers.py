"""What stands between gRPC and the services: who calls is known before a message is read, and
requests that are no protobuf are refused in words.

Every method is registered as one that takes a stream. On the wire, one message is a stream of one;
but of a stream gRPC takes no more than its flow-control window (64 KiB) until it is asked for a
message, and of a single request all of it before any of our code runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.native.server.audit import CHANGES, ChangeOf, audited
from lakemq.plugins.native.server.authentication import Context, Entrance
from lakemq.plugins.native.server.convert import status_of, trailers_of

_Handlers = Mapping[str, Any]  # gRPC's RpcMethodHandlers, which have no type
REQUEST_MAX_S: Final = 30.0
"""A single request is to arrive within this time after its headers."""
REQUEST_MAX_BYTES: Final = 4 * 1024 * 1024
"""Largest single request, but for those in `_WITH_BATCH`, which need the room of a batch."""
REPEATED_MAX: Final = 20_000
"""Names, offsets or the like in a single request: what is done at one turn of the event loop."""
_WITH_BATCH: Final = frozenset({"Schedule"})
_UNKNOWN_CALLERS: Final = frozenset({"Authenticate"})
"""Methods that find out themselves who calls, and bound what they read meanwhile."""


class _Malformed:
    """Stands for a request that could not be read."""

    def __init__(self, reason: object) -> None:
        self.error = InvalidRequest(f"the request can't be read: {reason}")


class _Collector:
    """Takes the place of a server where generated code registers its handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, _Handlers] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same handlers once more, for older servers."""

    def add_registered_method_handlers(self, service: str, handlers: _Handlers) -> None:
        self.handlers[service] = handlers


class Services:
    """Registers services with a server. Their methods are called only for clients that the broker
    has authenticated, get well-formed messages, and raise `LakeMQError`s: every error ends its call
    here with its status, code and message."""

    def __init__(self, server: grpc.aio.Server, entrance: Entrance, broker: Broker) -> None:
        """`broker`: whose audit log notes what operators change."""
        self._server = server
        self._entrance = entrance
        self._broker = broker

    def add(self, servicer: Any, register: Callable[[Any, Any], None]) -> None:
        """`register`: the generated function `add_...Servicer_to_server`."""
        collector = _Collector()
        register(servicer, collector)
        for service, handlers in collector.handlers.items():
            checked = {name: self._checked(name, each) for name, each in handlers.items()}
            # Both, as generated code does: grpcio before 1.84 knows only generic ones, later it
            # prefers the others.
            generic = grpc.method_handlers_generic_handler(service, checked)
            self._server.add_generic_rpc_handlers((generic,))
            self._server.add_registered_method_handlers(service, checked)

    def _checked(self, name: str, handler: Any) -> Any:
        bytes_max = None if handler.request_streaming or name in _WITH_BATCH else REQUEST_MAX_BYTES
        reads = _reader(handler.request_deserializer, bytes_max)
        writes = handler.response_serializer
        if handler.request_streaming:
            behavior = _messages_of(handler.stream_stream)
            if name not in _UNKNOWN_CALLERS:
                behavior = _admitted_stream(self._entrance, behavior)
            return grpc.stream_stream_rpc_method_handler(self._stream(behavior), reads, writes)
        if handler.response_streaming:
            behavior = _admitted_stream(self._entrance, _answers(handler.unary_stream))
            return grpc.stream_stream_rpc_method_handler(
                self._stream(behavior), reads, _writer(writes)
            )
        return grpc.stream_unary_rpc_method_handler(
            self._answer(handler.unary_unary, CHANGES.get(name)), reads, writes
        )

    def _answer(self, behavior: Any, change: ChangeOf | None) -> Any:
        entrance = self._entrance
        if change is not None:
            behavior = audited(self._broker, change, behavior)

        async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
            try:
                # Before the request is read: see the module's docstring for what that saves.
                async with entrance.admitted(context):
                    return await behavior(await _only(aiter(requests)), context)
            except LakeMQError as error:
                await self._abort(context, error)

        return answer

    def _stream(self, behavior: Any) -> Any:
        async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            try:
                async for each in behavior(requests, context):
                    yield each
            except LakeMQError as error:
                await self._abort(context, error)

        return stream

    async def _abort(self, context: Context, error: LakeMQError) -> NoReturn:
        """End the call with the error's status, code and message."""
        await context.abort(status_of(error), str(error), trailers_of(error))
        raise AssertionError("abort always raises")


def _reader(deserialize: Callable[[bytes], Any], bytes_max: int | None) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        if bytes_max is not None and len(data) > bytes_max:
            return _Malformed(f"it has {len(data)} bytes; this call takes {bytes_max}")
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(error)

    return read


def _writer(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def write(answer: Any) -> bytes:
        return answer if isinstance(answer, bytes) else serialize(answer)

    return write


async def _only(requests: AsyncIterator[Any]) -> Any:
    """The one message of a call that takes one. Raises InvalidRequest."""
    try:
        async with asyncio.timeout(REQUEST_MAX_S):
            request = await anext(requests, None)
    except TimeoutError:
        raise InvalidRequest(f"the request did not come within {REQUEST_MAX_S:.0f} s") from None
    if request is None:
        raise InvalidRequest("the call ended without a request")
    if isinstance(request, _Malformed):
        raise request.error
    for field, value in request.ListFields():
        if field.is_repeated and len(value) > REPEATED_MAX:
            raise InvalidRequest(
                f"{field.name}: {len(value)} of them; one request takes {REPEATED_MAX}"
            )
    return request


def _answers(behavior: Any) -> Any:
    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for each in behavior(await _only(aiter(requests)), context):
            yield each

    return answers


def _admitted_stream(entrance: Entrance, behavior: Any) -> Any:
    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async with entrance.admitted(context):
            async for each in behavior(requests, context):
                yield each

    return stream


def _messages_of(behavior: Any) -> Any:
    async def messages(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, _Malformed):
                raise request.error
            yield request

    def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        found: AsyncIterator[Any] = behavior(messages(requests), context)
        return found

    return stream
