"""The channel to the node that tells a client its way, which may become another node's."""

from __future__ import annotations

import weakref
from typing import Any, Final

from lakemq.broker_core.api.errors import NotLeader
from lakemq.plugins.native.sdk.net.channels import AsyncStream

_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class GuideChannel:
    """Generated stubs take it in place of a channel of asyncio: their calls go where it leads at
    the time of the call. For the rest, it is the channel that it leads to. It closes none."""

    def __init__(self, channel: Any) -> None:
        self.current = channel
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()

    def switch(self, channel: Any) -> None:
        """Calls go to `channel` from now on. Streams to the former node end with NotLeader, so that
        their readers begin again; other calls get their answer or their time-out."""
        if channel is self.current:
            return
        self.current = channel
        for stream in list(self._streams):
            stream.end(NotLeader("the node that was asked has gone quiet"))
        self._streams.clear()

    def __getattr__(self, name: str) -> Any:
        if name not in _KINDS:
            return getattr(self.current, name)
        return lambda *arguments, **options: _Calls(self, name, arguments, options)

    def note(self, call: Any) -> Any:
        """Remember a stream until it is collected; returns the call."""
        if isinstance(call, AsyncStream):
            self._streams.add(call)
        return call


class _Calls:
    """A multi-callable of gRPC, made again when the channel is another one."""

    def __init__(
        self, guide: GuideChannel, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._guide = guide
        self._kind, self._arguments, self._options = kind, arguments, options
        self._channel: Any = None
        self._begin: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        channel = self._guide.current
        if channel is not self._channel:
            self._begin = getattr(channel, self._kind)(*self._arguments, **self._options)
            self._channel = channel
        return self._guide.note(self._begin(*arguments, **options))
