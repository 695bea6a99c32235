"""gRPC channels as the SDK uses them: every failed call raises a `LakeMQError`, a closed channel
says so, and a call that ended leaves no task behind.

gRPC's own interceptors could translate errors too, but in `grpc.aio` they put a queue and a task
between the caller and each stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Self, cast

import grpc

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.plugins.native.sdk.net.errors import CLOSED, error_from

_STATUS: Final = "_handle_status_once_received"
"""The task of gRPC in which a call gets its status."""
_SETTLE_S: Final = 0.05


class _Channel:
    """Common to blocking and asyncio channels."""

    def __init__(self, channel: Any, address: str) -> None:
        self._channel = channel
        self._address = address
        """Named in errors."""
        self._closed = False

    def close(self, *arguments: Any) -> Any:
        """Awaitable if the channel is asyncio's. Calls raise InvalidRequest from now on."""
        # Before the channel is closed: a call that begins now gets InvalidRequest, not an error of
        # gRPC's.
        self._closed = True
        return self._channel.close(*arguments)

    def _begin(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._closed:
            raise InvalidRequest(CLOSED)
        try:
            return call(*arguments, **options)
        except ValueError:
            # gRPC raises it when a call begins on a channel that is closed.
            if self._closed:  # by another thread, just now
                raise InvalidRequest(CLOSED) from None
            raise

    def _streaming(self, call: Callable[..., Any], wrapper: Callable[[Any, str], Any]) -> Any:
        def begin(*arguments: Any, **options: Any) -> Any:
            return wrapper(self._begin(call, *arguments, **options), self._address)

        return begin


class AsyncChannel(_Channel):
    """Wraps a channel of `grpc.aio`; generated stubs take it in its place."""

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.aio.Channel.unary_unary`; awaiting the call raises `LakeMQError`s."""
        call = self._channel.unary_unary(*arguments, **options)

        async def checked(*arguments: Any, **options: Any) -> Any:
            try:
                return await self._begin(call, *arguments, **options)
            except grpc.RpcError as error:
                raise error_from(error, self._address) from None

        return checked

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.aio.Channel.unary_stream`; its calls are `AsyncStream`s."""
        return self._streaming(self._channel.unary_stream(*arguments, **options), AsyncStream)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.aio.Channel.stream_unary`; no service has such a method."""
        return self._channel.stream_unary(*arguments, **options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.aio.Channel.stream_stream`; its calls are `AsyncStream`s."""
        return self._streaming(self._channel.stream_stream(*arguments, **options), AsyncStream)


class AsyncStream:
    """A call whose responses are iterated; that raises `LakeMQError`s."""

    __slots__ = ("__weakref__", "_address", "_answers", "_call", "_ended")

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._answers: AsyncIterator[Any] = call.__aiter__()
        self._ended: LakeMQError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._answers.__anext__()
        except grpc.RpcError as error:
            raise self._ended or error_from(error, self._address) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Of a call that was cancelled gRPC says the same as of a reader that was.
            if self._ended is None or task is None or task.cancelling():
                raise
            raise self._ended from None

    def end(self, error: LakeMQError) -> None:
        """Cancel the call: its reader gets `error`. What it has done is not known."""
        self._ended = self._ended or error
        self.cancel()

    def cancel(self) -> None:
        """End the call, and the task in which gRPC reads the caller's requests: gRPC keeps that one
        when the call has ended already, as after a broken connection, and Python logs a pending
        task when it is collected."""
        self._call.cancel()
        # A private name of grpc.aio; a version without it only logs the warning.
        poller = getattr(self._call, "_async_request_poller", None)
        if poller is not None:
            poller.cancel()


class BlockingChannel(_Channel):
    """Wraps a blocking channel, of which only calls with streamed responses are made."""

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.Channel.unary_stream`; its calls are `BlockingStream`s."""
        return self._streaming(self._channel.unary_stream(*arguments, **options), BlockingStream)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.Channel.stream_stream`; its calls are `BlockingStream`s."""
        return self._streaming(self._channel.stream_stream(*arguments, **options), BlockingStream)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.Channel.unary_unary`; the call raises `LakeMQError`s."""
        call = self._channel.unary_unary(*arguments, **options)

        def checked(*arguments: Any, **options: Any) -> Any:
            try:
                return self._begin(call, *arguments, **options)
            except grpc.RpcError as error:
                raise error_from(error, self._address) from None

        return checked

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """As `grpc.Channel.stream_unary`; no service has such a method."""
        return self._channel.stream_unary(*arguments, **options)


class BlockingStream:
    """A call whose responses are iterated; that raises `LakeMQError`s."""

    __slots__ = ("_address", "_answers", "_call")

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._answers: Iterator[Any] = iter(call)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._answers)
        except grpc.RpcError as error:
            raise error_from(error, self._address) from None

    def cancel(self) -> None:
        """End the call, from any thread."""
        self._call.cancel()


def async_channel(channel: grpc.aio.Channel, address: str) -> grpc.aio.Channel:
    """`address` is named in errors."""
    return cast(grpc.aio.Channel, AsyncChannel(channel, address))


def blocking_channel(channel: grpc.Channel, address: str) -> grpc.Channel:
    """`address` is named in errors."""
    return cast(grpc.Channel, BlockingChannel(channel, address))


async def settle() -> None:
    """Wait a moment until gRPC has reported the status of the calls of a channel that was closed:
    if the event loop is closed before, gRPC raises in a thread of its own."""
    tasks = [
        each
        for each in asyncio.all_tasks()
        if _STATUS in getattr(each.get_coro(), "__qualname__", "")
    ]
    if tasks:
        await asyncio.wait(tasks, timeout=_SETTLE_S)
