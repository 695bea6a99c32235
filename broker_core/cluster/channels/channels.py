"""The channels of a node, and its links to the other nodes: opened while there are both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from lakemq.broker_core.api.cluster.channels import PAYLOAD_MAX_BYTES, ChannelEvents, Peer
from lakemq.broker_core.api.errors import InvalidRequest, Unavailable
from lakemq.broker_core.cluster.channels.frames import CHANNELS_MAX, NAME_MAX_BYTES, Said
from lakemq.broker_core.cluster.channels.link import TalkLink
from lakemq.broker_core.cluster.channels.service import TalkStream
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.streams import ByteStream

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Talk:
    """Numbers of one channel, which only grow."""

    sent: int = 0
    bytes_sent: int = 0
    received: int = 0
    bytes_received: int = 0
    dropped: int = 0
    """Messages and requests for nodes that can't be reached or take too long."""


class NodeChannel:
    """Implements `Channel`."""

    def __init__(
        self, name: str, events: ChannelEvents, links: dict[str, TalkLink], talk: Talk
    ) -> None:
        self.name = name
        self.events = events
        self.talk = talk
        self.on_close: Callable[[], None] = lambda: None
        self._links = links

    def nodes(self) -> Collection[str]:
        """Nodes that a message reaches now."""
        return [node for node, link in self._links.items() if self.name in link.channels]

    def send(self, node: str, payload: bytes) -> bool:
        """Send soon; False: it was dropped. Raises InvalidRequest."""
        self._check(payload)
        link = self._links.get(node)
        if link is None or not link.send(self.name, payload):
            self.talk.dropped += 1
            return False
        self.talk.sent += 1
        self.talk.bytes_sent += len(payload)
        return True

    async def request(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        """The node's answer. Raises Unavailable, OutcomeUnknown, what the node raises."""
        self._check(payload)
        link = self._links.get(node)
        if link is None:
            self.talk.dropped += 1
            raise Unavailable(f"node {node} is unknown")
        self.talk.sent += 1
        self.talk.bytes_sent += len(payload)
        try:
            return await link.request(self.name, payload, timeout_s)
        except Unavailable:
            self.talk.dropped += 1
            raise

    def close(self) -> None:
        """The end."""
        self.on_close()

    def _check(self, payload: bytes) -> None:
        if len(payload) > PAYLOAD_MAX_BYTES:
            raise InvalidRequest(
                f"channel {self.name}: {len(payload)} bytes; {PAYLOAD_MAX_BYTES} is the most"
            )


class Channels:
    """Lives on the event loop."""

    def __init__(self, node_id: str, peers: Peers, nodes: Callable[[], Collection[str]]) -> None:
        """`nodes`: ids of the nodes of the cluster as far as they are known."""
        self.talks: dict[str, Talk] = {}
        """Channel -> its numbers, of channels that were closed, too."""
        self._node_id = node_id
        self._peers = peers
        self._nodes = nodes
        self._links: dict[str, TalkLink] = {}
        self._channels: dict[str, NodeChannel] = {}
        self._streams: dict[str, TalkStream] = {}
        """The newest of each node."""

    def open(self, name: str, events: ChannelEvents) -> NodeChannel:
        """One side of a channel. Raises InvalidRequest: it is open already."""
        if name in self._channels:
            raise InvalidRequest(f"channel {name!r} is open already")
        if not 0 < len(name.encode()) <= NAME_MAX_BYTES or len(self._channels) >= CHANNELS_MAX:
            raise InvalidRequest(f"channel {name!r}: the name is too long, or there are too many")
        talk = self.talks.setdefault(name, Talk())
        channel = self._channels[name] = NodeChannel(name, events, self._links, talk)
        channel.on_close = lambda: self._close(channel)
        for stream in list(self._streams.values()):
            events.begun(stream.peer)
        self._announce()
        for node, link in list(self._links.items()):
            if name in link.channels:
                events.reachable(node)
        self.nodes_changed()
        return channel

    def _close(self, channel: NodeChannel) -> None:
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self._announce()

    def _announce(self) -> None:
        for stream in self._streams.values():
            stream.announce()

    def nodes_changed(self) -> None:
        """Keep links to the nodes that there are now, once there is a channel."""
        wanted = set(self._nodes()) - {self._node_id} if self._channels else set()
        for node in self._links.keys() - wanted:
            self._links.pop(node).close()
        for node in wanted - self._links.keys():
            self._links[node] = TalkLink(self._peers, node, self)

    # -- what links tell

    def link_changed(self, node: str, before: frozenset[str], now: frozenset[str]) -> None:
        """Implements `LinkOwner`."""
        for name, channel in list(self._channels.items()):
            if name in now and name not in before:
                channel.events.reachable(node)
            elif name in before and name not in now:
                channel.events.unreachable(node)

    # -- what streams of other nodes tell

    async def serve(self, peer: Peer, stream: ByteStream) -> None:
        """One stream of another node, until it ends. Raises BadFrame."""
        await TalkStream(peer, stream, self).run()

    def names(self) -> list[str]:
        """Implements `Talked`."""
        return list(self._channels)

    def begun(self, stream: TalkStream) -> None:
        """Implements `Talked`."""
        before = self._streams.get(stream.peer.node_id)
        if before is not None:
            self.ended(before)
        self._streams[stream.peer.node_id] = stream
        for channel in list(self._channels.values()):
            channel.events.begun(stream.peer)

    def ended(self, stream: TalkStream) -> None:
        """Implements `Talked`."""
        if self._streams.get(stream.peer.node_id) is not stream:
            return  # a newer one has taken its place
        del self._streams[stream.peer.node_id]
        for channel in list(self._channels.values()):
            channel.events.ended(stream.peer)

    def heard(self, stream: TalkStream, said: Said) -> None:
        """Implements `Talked`."""
        peer, channel = stream.peer, self._channels.get(said.channel)
        # It was closed, and the node does not know yet; or a newer stream has begun.
        if channel is None or self._streams.get(peer.node_id) is not stream:
            return
        channel.talk.received += 1
        channel.talk.bytes_received += len(said.payload)
        try:
            channel.events.message(peer, said.payload)
        except Exception:  # code of a plugin
            _log.exception("a message of node %s on channel %s", peer.node_id, said.channel)

    async def asked(self, stream: TalkStream, said: Said) -> bytes:
        """Implements `Talked`."""
        peer, channel = stream.peer, self._channels.get(said.channel)
        if channel is None:
            raise Unavailable(f"node {self._node_id} has no channel {said.channel!r}")
        channel.talk.received += 1
        channel.talk.bytes_received += len(said.payload)
        return await channel.events.request(peer, said.payload)
