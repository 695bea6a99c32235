"""Channels: how a plugin talks to itself on the other nodes of the cluster.

Messages of one channel to one node arrive in the order of `send`, each once or never: a link that
ends takes with it what was under way. Nothing is kept for a node that is away. Who holds state of
other nodes drops it when `begun` or `ended` says so, and sends its own whole when `reachable` does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from lakemq.broker_core.api.errors import InvalidRequest

PAYLOAD_MAX_BYTES: Final = 4 * 1024 * 1024
"""Of a message, a request or an answer."""
QUEUE_MAX_BYTES: Final = 8 * 1024 * 1024
"""Messages of one channel that wait for one node; more are dropped and counted."""


class Peer(NamedTuple):
    """Another node, as the connection between brokers has shown it (mTLS, registration)."""

    node_id: str
    broker_epoch: int
    """Of its registration."""


class ChannelEvents:
    """What happens on a channel; override what matters. Called on the event loop; must neither
    block nor raise. What comes from peers is to be checked like anything from a network."""

    def message(self, peer: Peer, payload: bytes) -> None:
        """Another node has sent a message."""

    async def request(self, peer: Peer, payload: bytes) -> bytes:
        """Another node asks; the answer has at most `PAYLOAD_MAX_BYTES`. Many may be under way. A
        LakeMQError is raised there, too."""
        raise InvalidRequest("this channel answers no requests")

    def reachable(self, node: str) -> None:
        """What is sent to the node from now on arrives; what was sent before may be lost."""

    def unreachable(self, node: str) -> None:
        """The link to the node has ended, or its side of the channel was closed."""

    def begun(self, peer: Peer) -> None:
        """The first message of a new link of the node may come now: what it has said before
        counts no more."""

    def ended(self, peer: Peer) -> None:
        """The link of the node has ended; another one may begin at any time."""


class Channel(Protocol):
    """One side of a channel, as `Broker.channel` gives it."""

    name: str

    def nodes(self) -> Collection[str]:
        """Other nodes that a message reaches now: those that have this channel, too."""

    def send(self, node: str, payload: bytes) -> bool:
        """Send soon, together with what else this turn of the loop sends. False: it was dropped,
        as the node is not among `nodes`, or too much waits for it. Raises InvalidRequest for more
        than `PAYLOAD_MAX_BYTES`."""

    async def request(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        """What the node answers. Raises Unavailable where nothing was sent; OutcomeUnknown when no
        answer came in time or the link broke; else what `request` of the other side raises."""

    def close(self) -> None:
        """The end: nothing is told any more."""
