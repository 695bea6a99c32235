"""Links between node processes that can be cut and slowed: TCP relays in front of the ports at
which nodes talk to each other.

A cut link is silent, as a broken cable is: bytes and ends of connections wait in the relay until
it is healed, and neither side is told. Who opened a connection is looked up in /proc, so nodes need
no settings of their own for each pair, and those who are no node pass freely.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

_READ_BYTES: Final = 1 << 18
_PROC: Final = Path("/proc")
_INODE_COLUMN: Final = 9
_R = TypeVar("_R")
_Way: TypeAlias = tuple[str, str, str]
"""(source, target, listener that the connection was made to)."""


class Links:
    """All relays of a cluster, on one thread with an event loop of its own."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """`pids`: node -> process id, kept current by the caller."""
        self._pids = pids
        self._cuts: set[_Way] = set()
        self._gates: dict[_Way, asyncio.Event] = {}
        self._delays_s: dict[tuple[str, str], float] = {}
        self._relays: list[_Relay] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def relay(self, node: str, listener: str, port: int) -> int:
        """The port of a relay to `port` of `node`, both on 127.0.0.1, until `close`."""

        async def serve() -> int:
            def accepted(connection: socket.socket) -> None:
                carrying = self._carry(node, listener, port, connection)
                task = asyncio.get_running_loop().create_task(carrying)
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

            relay = _Relay(node, accepted)
            relay.listen()
            self._relays.append(relay)
            return relay.port

        return self._run(serve())

    def down(self, node: str) -> None:
        """The node's process is gone: its relays refuse connections, as its host would, unless a
        link to or from it is cut."""

        async def refuse() -> None:
            if not any(node in way[:2] for way in self._cuts):
                for relay in self._of(node):
                    relay.refuse()

        self._run(refuse())

    def up(self, node: str) -> None:
        """The node's process starts: its relays take connections."""

        async def listen() -> None:
            for relay in self._of(node):
                relay.listen()

        self._run(listen())

    def _of(self, node: str) -> list[_Relay]:
        return [relay for relay in self._relays if relay.node == node]

    def cut(self, source: str, target: str, listeners: Iterable[str]) -> None:
        """What `source` sends to `target` over connections to these listeners, of either, does not
        arrive from now on; the other way is as it was."""
        if not sys.platform.startswith("linux"):
            raise OSError("links are cut by looking connections up in /proc, which is Linux's")

        async def shut() -> None:
            for way in [(source, target, listener) for listener in listeners]:
                self._cuts.add(way)
                self._gate(way).clear()

        self._run(shut())

    def slow(self, source: str, target: str, delay_s: float) -> None:
        """What `source` sends to `target` arrives so much later, up to 256 KiB at a time."""

        async def note() -> None:
            self._delays_s[source, target] = delay_s

        self._run(note())

    def heal(self) -> None:
        """Every link is as it was made; what waited arrives."""

        async def open_all() -> None:
            self._delays_s.clear()
            self._cuts.clear()
            for gate in self._gates.values():
                gate.set()

        self._run(open_all())

    def close(self) -> None:
        """End all connections and relays, and the thread."""

        async def end() -> None:
            for relay in self._relays:
                relay.close()
            # Not cancelled, which the streams of asyncio would report as a failure of each.
            for gate in self._gates.values():
                gate.set()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await asyncio.gather(*self._connections, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _R]) -> _R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _gate(self, way: _Way) -> asyncio.Event:
        gate = self._gates.get(way)
        if gate is None:
            gate = self._gates[way] = asyncio.Event()
            if way not in self._cuts:
                gate.set()
        return gate

    async def _passed(self, way: _Way) -> None:
        """Returns when what goes this way now would arrive."""
        delay_s = self._delays_s.get(way[:2])
        if delay_s:
            await asyncio.sleep(delay_s)
        await self._gate(way).wait()

    async def _carry(self, node: str, listener: str, port: int, connection: socket.socket) -> None:
        """One connection to `node`, until either side ends it."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=_READ_BYTES)
        there, here = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        source = _process_of(there[1], here[1], self._pids) if there and here else ""
        opened = [writer]
        self._writers.add(writer)
        try:
            there_way, back_way = (source, node, listener), (node, source, listener)
            await self._passed(there_way)
            answers, onward = await asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES)
            opened.append(onward)
            self._writers.add(onward)
            for each in opened:
                each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pumps = {
                asyncio.ensure_future(_pump(reader, onward, partial(self._passed, there_way))),
                asyncio.ensure_future(_pump(answers, writer, partial(self._passed, back_way))),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:  # the node is down: its caller is told by the end of the connection
            pass
        finally:
            for each in opened:
                self._writers.discard(each)
                each.close()


class _Relay:
    """One port of 127.0.0.1, always the same."""

    def __init__(self, node: str, accepted: Callable[[socket.socket], None]) -> None:
        self.node = node
        self.port = 0
        """0 before the first `listen`."""
        self._accepted = accepted
        self._listening: socket.socket | None = None
        self._held: socket.socket | None = None

    def listen(self) -> None:
        """Not by a server of asyncio: one that is closed forgets, and leaves open, connections that
        it is about to hand over."""
        if self._listening is not None:
            return
        self._let_go()
        self._listening = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        assert self._listening is not None
        with contextlib.suppress(OSError):  # that connection is gone again
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            self._accepted(connection)

    def refuse(self) -> None:
        """Bound and not listening: connections are refused, and no other process gets the port."""
        if self._listening is None:
            return
        self.close()
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", self.port))

    def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    passed: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    while True:
        try:
            data = await reader.read(_READ_BYTES)
        except ConnectionError:
            data = b""
        # The end of a connection waits as well: a node behind a cut link is not heard to die.
        await passed()
        if not data:
            return
        writer.write(data)
        await writer.drain()


def _process_of(port: int, relay_port: int, pids: Mapping[str, int]) -> str:
    """The node whose process has this connection; empty: none of them."""
    ends = (f":{port:04X}", f":{relay_port:04X}")
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[1].endswith(ends[0]) and columns[2].endswith(ends[1]):
                    return _owner(f"socket:[{columns[_INODE_COLUMN]}]", pids)
    return ""


def _owner(opened: str, pids: Mapping[str, int]) -> str:
    for node, pid in list(pids.items()):
        with contextlib.suppress(OSError):
            for descriptor in (_PROC / str(pid) / "fd").iterdir():
                # One that was closed meanwhile is not the one that is looked for.
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) == opened:
                        return node
    return ""
