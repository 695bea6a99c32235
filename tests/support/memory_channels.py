"""Channels between brokers in one process: what `Broker.channel` gives, in memory, with links that
tests cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents, Peer
from lakemq.broker_core.api.errors import LakeMQError, OutcomeUnknown, Unavailable


class MemoryChannels:
    """All nodes of one cluster. A node is there as soon as it has opened a channel."""

    def __init__(self, post: Callable[[Callable[[], None]], object] | None = None) -> None:
        """`post` carries out what it is given later, in order; None: the event loop does."""
        self.ends: dict[str, dict[str, MemoryChannel]] = {}
        """Channel -> node -> its end."""
        self.epochs: dict[str, int] = {}
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing comes through."""
        self.lives: dict[tuple[str, str], int] = {}
        """(from, to) -> number of the link: what was sent by an earlier one is lost."""
        self._post = post

    def post(self, what: Callable[[], None]) -> None:
        if self._post is not None:
            self._post(what)
        else:
            asyncio.get_running_loop().call_soon(what)

    def open(self, node: str, name: str, events: ChannelEvents) -> Channel:
        ends = self.ends.setdefault(name, {})
        ends[node] = end = MemoryChannel(self, node, name, events)
        for other in list(ends.values()):
            if other is not end:
                self._begin(end, other)
                self._begin(other, end)
        return end

    def peer(self, node: str) -> Peer:
        return Peer(node, self.epochs.setdefault(node, 1))

    def _begin(self, source: MemoryChannel, target: MemoryChannel) -> None:
        if (source.node, target.node) not in self.cuts:
            self.post(lambda: target.events.begun(self.peer(source.node)))
            self.post(lambda: source.events.reachable(target.node))

    def cut(self, source: str, target: str) -> None:
        """The link from a node to another one is lost, with what is under way."""
        if (source, target) in self.cuts:
            return
        self.cuts.add((source, target))
        self.lives[source, target] = self.lives.get((source, target), 0) + 1
        for ends in self.ends.values():
            if source in ends and target in ends:
                ends[source].events.unreachable(target)
                ends[target].events.ended(self.peer(source))

    def mend(self, source: str, target: str) -> None:
        """The link begins anew."""
        if (source, target) not in self.cuts:
            return
        self.cuts.discard((source, target))
        for ends in self.ends.values():
            if source in ends and target in ends:
                self._begin(ends[source], ends[target])

    def remove(self, node: str) -> None:
        """The node is gone: all of its links end, its channels too."""
        for other in {each for ends in self.ends.values() for each in ends} - {node}:
            self.cut(node, other)
            self.cut(other, node)
        for ends in self.ends.values():
            ends.pop(node, None)
        self.cuts = {pair for pair in self.cuts if node not in pair}
        self.epochs[node] = self.epochs.get(node, 1) + 1


class MemoryChannel:
    """Implements `Channel`."""

    def __init__(
        self, cluster: MemoryChannels, node: str, name: str, events: ChannelEvents
    ) -> None:
        self.name = name
        self.node = node
        self.events = events
        self._cluster = cluster

    def nodes(self) -> Collection[str]:
        return [
            node
            for node in self._cluster.ends[self.name]
            if node != self.node and (self.node, node) not in self._cluster.cuts
        ]

    def send(self, node: str, payload: bytes) -> bool:
        if node not in self.nodes():
            return False
        self._carry(node, lambda end, peer: end.events.message(peer, payload))
        return True

    async def request(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        if node not in self.nodes():
            raise Unavailable(f"node {node} can't be reached")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def ask(end: MemoryChannel, peer: Peer) -> None:
            try:
                found = await end.events.request(peer, payload)
            except LakeMQError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(found)

        tasks: list[asyncio.Task[None]] = []
        self._carry(node, lambda end, peer: tasks.append(asyncio.ensure_future(ask(end, peer))))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise OutcomeUnknown(f"{node} did not answer") from None

    def _carry(self, node: str, there: Callable[[MemoryChannel, Peer], object]) -> None:
        cluster, way = self._cluster, (self.node, node)
        life, peer = cluster.lives.get(way, 0), cluster.peer(self.node)

        def arrive() -> None:
            end = cluster.ends[self.name].get(node)
            if end is not None and way not in cluster.cuts and cluster.lives.get(way, 0) == life:
                there(end, peer)

        cluster.post(arrive)

    def close(self) -> None:
        self._cluster.ends[self.name].pop(self.node, None)
