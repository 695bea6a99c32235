"""What nodes and clients say to each other, late, and cut off: channels between brokers, and
connections of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from lakemq.broker_core.api.cluster.channels import ChannelEvents, Peer
from lakemq.broker_core.api.errors import LakeMQError, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from tests.support.mqtt.cluster.world import World

NOTICED_MAX_S = 0.3
"""How late the ends of a link hear that it is lost, or there again."""


class Lane:
    """One direction of one connection: in order, late."""

    def __init__(self, world: World, delay_max_s: float) -> None:
        self._world = world
        self._delay_max_s = delay_max_s
        self._last_s = 0.0

    def carry(self, arrive: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + self._world.rng.uniform(0, self._delay_max_s)
        self._last_s = max(at_s, self._last_s + 1e-6)
        loop.call_at(self._last_s, arrive, context=self._world.context)


class SimChannel:
    """Implements `Channel`, for one life of one node."""

    def __init__(self, channels: SimChannels, node: str, name: str, events: ChannelEvents) -> None:
        self.name, self.node, self.events = name, node, events
        self._channels = channels
        self.known: set[str] = set()
        """Nodes that it reaches, as it has heard."""
        self.links: dict[str, tuple[int, Peer]] = {}
        """Node -> number of the link by which it has begun here, and as whom."""

    def has(self, node: str, link: int) -> bool:
        return node in self.links and self.links[node][0] == link

    def nodes(self) -> Collection[str]:
        return sorted(self.known)

    def send(self, node: str, payload: bytes) -> bool:
        if node not in self.known:
            return False
        self._channels.carry(self, node, lambda end, peer: end.events.message(peer, payload))
        return True

    async def request(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        if node not in self.known:
            raise Unavailable(f"node {node} can't be reached")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def ask(end: SimChannel, peer: Peer) -> None:
            found: Any = None
            try:
                found = await end.events.request(peer, payload)
            except LakeMQError as error:
                found = error
            self._channels.answer(end.node, self.node, lambda: self._answered(answer, found))

        self._channels.carry(
            self, node, lambda end, peer: asyncio.get_running_loop().create_task(ask(end, peer))
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise OutcomeUnknown(f"{node} did not answer") from None

    @staticmethod
    def _answered(answer: asyncio.Future[bytes], found: Any) -> None:
        if answer.done():
            return
        if isinstance(found, LakeMQError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def close(self) -> None:
        self._channels.ends.pop((self.name, self.node), None)


class SimChannels:
    """All channels of all nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends: dict[tuple[str, str], SimChannel] = {}
        self.number: dict[tuple[str, str], int] = {}
        """(from, to) -> of the link; what an earlier one carries is lost."""
        self._lanes: dict[tuple[str, str, str, int], Lane] = {}

    def open(self, node: str, name: str, events: ChannelEvents) -> SimChannel:
        end = self.ends[name, node] = SimChannel(self, node, name, events)
        for other in self.world.names:
            self._meet(node, other, name)
            self._meet(other, node, name)
        return end

    def _link(self, source: str, target: str) -> int:
        return self.number.setdefault((source, target), 1)

    def _meet(self, source: str, target: str, name: str) -> None:
        """The link from one node to another begins, for one channel."""
        if source == target:
            return
        link = self._link(source, target)

        def there() -> None:
            end, other = self.ends.get((name, source)), self.ends.get((name, target))
            good = link == self._link(source, target) and self.world.linked(source, target)
            if not good or end is None or other is None or other.has(source, link):
                return
            peer = self.world.peer(source)
            other.links[source] = (link, peer)
            self.world.call(target, other.events.begun, peer)
            self.world.call(source, self._reached, end, target)

        self.world.later(self.world.rng.uniform(0, NOTICED_MAX_S), there)

    @staticmethod
    def _reached(end: SimChannel, target: str) -> None:
        end.known.add(target)
        end.events.reachable(target)

    def changed(self, node: str) -> None:
        """Links of a node are cut, or there again."""
        for other in self.world.names:
            if other != node:
                self._renew(node, other)
                self._renew(other, node)

    def registered_again(self, node: str) -> None:
        """Its links begin again, with its new epoch; those of others to it go on."""
        for other in self.world.names:
            if other != node:
                self._renew(node, other)

    def _renew(self, source: str, target: str) -> None:
        self.number[source, target] = self._link(source, target) + 1
        for name in sorted({each for each, _ in self.ends}):
            self._part(source, target, name)
            self._meet(source, target, name)

    def _part(self, source: str, target: str, name: str) -> None:
        end, other = self.ends.get((name, source)), self.ends.get((name, target))
        link = self._link(source, target)

        def gone() -> None:
            if other is not None and source in other.links and other.links[source][0] < link:
                _, peer = other.links.pop(source)
                self.world.call(target, other.events.ended, peer)

        if end is not None and target in end.known:
            end.known.discard(target)
            self.world.call(source, end.events.unreachable, target)
        self.world.later(self.world.rng.uniform(0, NOTICED_MAX_S), gone)

    def carry(
        self, source: SimChannel, target: str, there: Callable[[SimChannel, Peer], object]
    ) -> None:
        link = self._link(source.node, target)
        key = (source.name, source.node, target, link)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(self.world, self.world.delay_max_s)

        def arrive() -> None:
            end = self.ends.get((source.name, target))
            current = link == self._link(source.node, target)
            if current and end is not None and end.has(source.node, link):
                self.world.call(target, there, end, end.links[source.node][1])

        lane.carry(arrive)

    def answer(self, source: str, target: str, there: Callable[[], None]) -> None:
        link, back = self._link(source, target), self._link(target, source)

        def arrive() -> None:
            if (link, back) == (self._link(source, target), self._link(target, source)):
                self.world.call(target, there)

        self.world.later(self.world.rng.uniform(0, self.world.delay_max_s), arrive)


class Socket(asyncio.Transport):
    """The node's end of a client's connection: a transport for a `SocketLink`."""

    def __init__(self, world: World, node: str, client: Callable[[bytes | None], None]) -> None:
        super().__init__()
        self._world, self.node = world, node
        self._out = Lane(world, world.delay_max_s)
        self._in = Lane(world, world.delay_max_s)
        self._client = client
        """Takes bytes; None: the connection is over."""
        self._closing = False
        self.link: Any = None
        self._paused: list[bytes] | None = None

    # -- as asyncio has it

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = self._paused or []

    def resume_reading(self) -> None:
        waiting, self._paused = self._paused or [], None
        for data in waiting:
            self._received(data)

    def write(self, data: Any) -> None:
        if not self._closing and self._world.reaches_clients(self.node):
            copied = bytes(data)
            self._out.carry(lambda: self._client(copied))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._world.reaches_clients(self.node):
                self._out.carry(lambda: self._client(None))
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    abort = close

    # -- the client's end

    def send(self, data: bytes) -> None:
        life = self._world.nodes[self.node].life
        self._in.carry(lambda: life.call(self._received, data))

    def _received(self, data: bytes) -> None:
        if self._paused is not None:
            self._paused.append(data)
        elif not self._closing:
            self.link.data_received(data)

    def lose(self, after_s: float) -> None:
        """The node hears after so long that the client is gone."""
        life = self._world.nodes[self.node].life
        self._world.later(after_s, lambda: self._in.carry(lambda: life.call(self._lost)))

    def _lost(self) -> None:
        if not self._closing:
            self._closing = True
            self.link.connection_lost(None)
