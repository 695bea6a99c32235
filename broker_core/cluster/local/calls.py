"""Streams between the processes of one node: what gRPC does between nodes, over a Unix socket in
the data folder of each, with a fraction of the CPU of a message (docs/formats/peer.md)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Never

import grpc

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.cluster.local.messages import Messages
from lakemq.broker_core.cluster.replica_frames import SEND_MAX_BYTES

_HELLO_MAX_BYTES: Final = 4 * 1024
_HELLO_S: Final = 3.0
"""How long a caller may take to say who it is."""
_CALLS_MAX: Final = 256
"""Of all processes of a node at a time; each makes a few."""
_METHOD: Final = "method"
_ADDRESS_MAX_BYTES: Final = 100
"""Addresses of Unix sockets hold about 107."""
_log: Final = logging.getLogger(__name__)

SocketOf = Callable[[str], Path | None]
"""Node id -> where that process of this node listens; None: it is none."""


async def open_call(
    path: Path, method: str, metadata: Iterable[tuple[str, str]]
) -> tuple[Messages, dict[str, str]] | None:
    """A stream of `method` and what the callee says of itself; None: no process listens there.
    Raises Unavailable with the callee's reason for refusing it."""
    messages = Messages(SEND_MAX_BYTES)
    try:
        with _short(path) as address:
            await asyncio.get_running_loop().create_unix_connection(lambda: messages, address)
    except (OSError, NotImplementedError):
        return None
    try:
        await messages.write(json.dumps({_METHOD: method, **dict(metadata)}).encode())
        answer = await messages.read()
        if answer is None:
            raise Unavailable("it closed the connection")
        return messages, _read_hello(answer)
    except BaseException:
        messages.close()
        raise


class LocalCall:
    """What `PeerServer` uses of gRPC's context, of a call that came over a Unix socket."""

    def __init__(self, messages: Messages, metadata: Mapping[str, str]) -> None:
        self._messages = messages
        self._metadata = metadata

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """What the caller says of itself."""
        return self._metadata.items()

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        """Tell the caller that it is accepted, and by whom."""
        self._messages.limit = SEND_MAX_BYTES
        await self._messages.write(json.dumps(dict(metadata)).encode())

    async def read(self) -> Any:
        """The next message; gRPC's EOF behind the last one."""
        try:
            data = await self._messages.read()
        except Unavailable:
            raise _Aborted from None
        return grpc.aio.EOF if data is None else data

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more."""
        try:
            await self._messages.write(data)
        except Unavailable:
            raise _Aborted from None

    async def abort(self, status: object, details: str, trailing: object = ()) -> Never:
        """End the call and say why."""
        self._messages.end(details)
        raise _Aborted


class _Aborted(Exception):
    """The call is over."""


class LocalServer:
    """Listens at a path for the other processes of the node."""

    def __init__(self, path: Path, serve: Callable[[LocalCall, str], Awaitable[None]]) -> None:
        """`serve(call, method)`: until the call is over."""
        self._path = path
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; where that can't be, the others come over gRPC."""
        loop = asyncio.get_running_loop()
        try:
            sock = _listening_at(self._path)
            self._server = await loop.create_unix_server(self._connection, sock=sock)
        except (OSError, NotImplementedError, AttributeError) as error:
            _log.info("no socket for the other processes at %s: %s", self._path, error)

    def _connection(self) -> Messages:
        return Messages(_HELLO_MAX_BYTES, self._accept)

    def _accept(self, messages: Messages) -> None:
        if len(self._calls) >= _CALLS_MAX:
            messages.end(f"{_CALLS_MAX} calls are open, the most there may be")
            return
        task = asyncio.get_running_loop().create_task(self._run(messages))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _run(self, messages: Messages) -> None:
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = await messages.read()
            if hello is not None:
                metadata = _read_hello(hello)
                await self._serve(LocalCall(messages, metadata), metadata.pop(_METHOD, ""))
        except (_Aborted, TimeoutError, Unavailable):
            pass
        except Exception:
            _log.exception("a call of another process failed")
        finally:
            messages.close()

    async def stop(self) -> None:
        """End all calls and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        with suppress(OSError):
            self._path.unlink()


def _read_hello(data: bytes) -> dict[str, str]:
    """Raises Unavailable."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise Unavailable("the other process does not say who it is")
    return found


def _listening_at(path: Path) -> socket.socket:
    """In place of a socket that is left there, for this user alone. Raises OSError."""
    with suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            sock.bind(address)
        # Nothing can connect before asyncio listens.
        path.chmod(0o600)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path as an address that is not too long for one. Raises OSError."""
    if len(os.fsencode(path)) <= _ADDRESS_MAX_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
