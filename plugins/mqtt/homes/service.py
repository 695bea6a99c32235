"""Sessions that nodes share: when they do, and what nodes ask each other about them.

A node alone keeps its sessions for itself. As soon as there are several brokers, and all that are
alive know how, the topic of homes is made; a node that sees it shares its sessions from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents, Peer
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, Unavailable
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import TopicInfo
from lakemq.plugins.mqtt.homes import frames
from lakemq.plugins.mqtt.homes.exclusive_claims import ExclusiveClaims
from lakemq.plugins.mqtt.homes.frames import Kind
from lakemq.plugins.mqtt.homes.home import TOPIC, Home
from lakemq.plugins.mqtt.homes.log_ends import LogEnds
from lakemq.plugins.mqtt.homes.owner import SessionOwner
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.session.connecting import unshared
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.state.ledger import Writing
from lakemq.plugins.mqtt.state.sessions import Positions
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.reasons import Reason

_log: Final = logging.getLogger(__name__)
CHANNEL: Final = "mqtt.homes"
CUT_OFF_MS: Final = 5_000
"""How long a node that hears nothing of the MetaService keeps its clients: others take them."""
OFFERED_AT_ONCE: Final = 1_000
"""Sessions of clients that are away that a drained node gives up in a second."""
SOON_S: Final = 2.0
"""How long clients of a node that has just found others wait until nodes share sessions: else a
client could be connected to two of them. Nodes of older builds never do."""
_PEER: Final = "peer"
"""What a node listens on that holds replicas."""


Begin = Callable[[Coroutine[Any, Any, None]], object]


class SharedSessions(ChannelEvents):
    """Lives on the event loop."""

    def __init__(
        self, hub: Hub, broker: Broker, begin: Begin, after: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """As for `SessionOwner`."""
        self._hub = hub
        self._broker = broker
        self._begin = begin
        self._after = after
        self._now_ms = now_ms
        self._channel: Channel | None = None
        self.home = Home(broker, self.ask, self._reaches, begin, hub.limits.sessions_max)
        self.log_ends = LogEnds(hub, broker, begin)
        self.owner = SessionOwner(hub, self, begin, after, now_ms)
        self.exclusive = ExclusiveClaims(hub, self, begin, after, now_ms)
        self._creating = self._offering = self._waited = False
        self._held: list[Connection] = []
        """Clients that wait until nodes share sessions."""
        self._in_touch_ms = now_ms()
        self._life = 0
        self._unwatch: list[Callable[[], None]] = []

    @property
    def active(self) -> bool:
        """Whether nodes share sessions."""
        return self._hub.ended is not None

    async def start(self) -> None:
        """Begin to listen to other nodes. Sessions that this node kept for itself are there."""
        self._channel = self._broker.channel(CHANNEL, self)
        self._unwatch = [
            self._broker.watch_topics(self._topic_changed),
            self._broker.watch_nodes(self._nodes_changed),
        ]
        if self.home.topic.info is not None:
            self._activate()
            await self.home.start()
        else:
            self._wait_for_others()

    async def stop(self) -> None:
        """Hear and answer no more."""
        for remove in self._unwatch:
            remove()
        if self.active:
            await self.home.stop()
        if self._channel is not None:
            self._channel.close()

    def _activate(self) -> None:
        self._hub.ended = {}
        self.owner.begin()
        self._let_in()

    def _wait_for_others(self) -> None:
        """Once: when this node finds the first others, its clients wait for `SOON_S`."""
        if not self._waited and self._alive():
            self._waited = self._hub.sharing_soon = True
            asyncio.get_running_loop().call_later(SOON_S, self._let_in)

    def _let_in(self) -> None:
        self._hub.sharing_soon = False
        held, self._held = self._held, []
        if held and self.active:
            self.owner.claim(held)
        elif held:
            for connection in held:
                unshared(connection, self._now_ms())
            self._after()

    def _topic_changed(self, name: str, topic: TopicInfo | None) -> None:
        if name == TOPIC and topic is not None and not self.active:
            _log.info("MQTT sessions are shared with the other nodes from now on")
            self._activate()
            self._begin(self.home.start())

    # -- engine

    def claim(self, connections: Sequence[Connection]) -> None:
        """Clients have connected: get their sessions."""
        if self.active:
            self.owner.claim(connections)
        else:
            self._held += connections

    def save(self, writing: Writing) -> None:
        """Have homes keep sessions."""
        self.owner.save(writing)

    def tick(self) -> None:
        """Call about once a second."""
        if not self.active:
            self._share_if_possible()
            return
        self.owner.adopt(self.home.orphans())
        self.owner.handed_over.tick(self._now_ms())
        self.exclusive.tick()
        self._drain()
        self._look_at_registration()
        now_ms = self._now_ms()
        if self._broker.in_touch():
            self._in_touch_ms = now_ms
        elif now_ms - self._in_touch_ms >= CUT_OFF_MS:
            # Its sessions are granted to others by now.
            for connection in list(self._hub.connections):
                text = "this node is cut off from the cluster"
                connection.close(Reason.SERVER_UNAVAILABLE, text, now_ms)

    def _drain(self) -> None:
        """Leave nothing behind that other nodes would have to notice."""
        mine = (one for one in self._broker.nodes() if one.node_id == self._broker.node_id)
        drained = any(one.state == "draining" for one in mine)
        if drained and not self._offering:
            self._offering = True
            self._begin(self._offer())

    async def _offer(self) -> None:
        try:
            await self.owner.offer(OFFERED_AT_ONCE)
        finally:
            self._offering = False

    def _share_if_possible(self) -> None:
        """Make the topic of homes, if there are other nodes, and those that are alive share
        sessions too: a node of an older build does not, and none begins before it is upgraded."""
        alive = self._alive()
        if self._creating or self._channel is None or not alive:
            return
        if alive <= set(self._channel.nodes()):
            self._creating = True
            self._begin(self._create())

    def _alive(self) -> set[str]:
        """Other nodes that may share sessions."""
        return {
            one.node_id
            for one in self._broker.nodes()
            if _PEER in one.addresses
            and one.node_id != self._broker.node_id
            and one.state in ("active", "draining")
        }

    async def _create(self) -> None:
        try:
            await self.home.topic.ensure()
        except LakeMQError as error:
            _log.info("MQTT sessions can't be shared yet: %s", error)
        finally:
            self._creating = False

    def _nodes_changed(self) -> None:
        if not self.active:
            self._wait_for_others()
            return
        self.home.nodes_changed()
        self._look_at_registration()

    def _look_at_registration(self) -> None:
        # Also when no node has come or gone since this one shares its sessions.
        with contextlib.suppress(Unavailable):
            life = self.home.owner().life
            if self._life not in (0, life):
                # Registered again: homes hear what it still has, and say what it has lost.
                self._begin(self.owner.announce(all_of_them=True))
                self._hub.exclusive.claim_all_again()
            self._life = life

    # -- homes

    def partition_of(self, client_id: str) -> int:
        """Raises UnknownTopic."""
        return self.home.partition_of(client_id)

    def home_of(self, client_id: str) -> str:
        """The node that leads the client's partition; empty: none does. Raises UnknownTopic."""
        topic = self._broker.topic(TOPIC)
        return leadership(topic, self.partition_of(client_id)).leader or ""

    def _reaches(self, node: str) -> bool:
        channel = self._channel
        return node == self._broker.node_id or (channel is not None and node in channel.nodes())

    async def ends(self) -> Positions:
        """Where bound partitions end, as their leaders know. None of those that can't be asked in
        time."""
        return await self.log_ends.find()

    async def ask(self, node: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask a node, this one too. Raises LakeMQError."""
        if node == self._broker.node_id:
            try:
                async with asyncio.timeout(timeout_s):
                    life = self.home.owner().life
                    return await self.request(Peer(node, life), payload)
            except TimeoutError:
                raise Unavailable("this node takes too long") from None
        if self._channel is None:
            raise Unavailable("this node is not connected to others yet")
        return await self._channel.request(node, payload, timeout_s)

    def reachable(self, node: str) -> None:
        """Perhaps it was the last one that was missing."""
        if not self.active:
            self._share_if_possible()

    async def request(self, peer: Peer, payload: bytes) -> bytes:
        """What a node is told that asks. Raises InvalidRequest for what is no request, Unavailable,
        NotLeader."""
        if not self.active:
            raise Unavailable("this node does not share its sessions yet; try again")
        try:
            kind, data = frames.split(payload)
            node, life = peer.node_id, peer.broker_epoch
            if kind is Kind.CLAIM:
                return await self.home.claim(node, life, data)
            if kind is Kind.SAVE:
                return await self.home.save(node, data)
            if kind is Kind.ANNOUNCE:
                return await self.home.announced(node, life, data)
            if kind is Kind.LET_GO:
                return await self.owner.let_go(node, data)
            if kind is Kind.KNOWN:
                return await self.owner.known(node, data)
            if kind is Kind.OFFER:
                self.owner.adopt(await self.home.offered(node, data))
                return b""
            return self.owner.owned(data)
        except BadSnapshot as error:
            raise InvalidRequest(f"node {peer.node_id}: {error}") from None
