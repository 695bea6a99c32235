"""Tells the other nodes what this one wants, and hears what they want, over a channel. A node
alone does none of it. Edge: asks the clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents, Peer
from lakemq.broker_core.api.ports import Broker, Wanted
from lakemq.plugins.mqtt.interest.filtering import FILTER
from lakemq.plugins.mqtt.interest.frames import Members, decode
from lakemq.plugins.mqtt.interest.hashes import Hasher
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.interest.own import GroupKey, OwnInterest
from lakemq.plugins.mqtt.interest.picking import Sharing
from lakemq.plugins.mqtt.routing.subscriptions import SubscriptionIndex
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot

CHANNEL: Final = "mqtt.interest"
PAUSE_S: Final = 0.02
"""Between two messages to a node at the least."""
_LOST_S: Final = 0.5
"""Pause after a message that could not be sent."""
_log: Final = logging.getLogger(__name__)


class InterestExchange(ChannelEvents):
    """Lives on the event loop."""

    def __init__(self, index: SubscriptionIndex, broker: Broker, strategy: str) -> None:
        """`strategy`: by which shared groups pick their members."""
        hasher = Hasher(broker.cluster_id)
        self.own = OwnInterest(hasher, self._recounted)
        self.others = OthersInterest(hasher)
        self.on_change: Callable[[], None] = lambda: None
        """Called when what another node wants has changed: filters or members of groups."""
        self.on_group: Callable[[GroupKey], None] = lambda key: None
        """Called when nodes have told each other of a group's members, for each change."""
        self.others.on_group = lambda key: self.on_group(key)
        self.sharing = Sharing(broker.node_id, self._count, self.others.groups, strategy)
        self._index = index
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = float("-inf")

    def start(self, broker: Broker) -> None:
        """Talk to other nodes as they come."""
        self._channel = broker.channel(CHANNEL, self)

    def stop(self) -> None:
        """Say and hear nothing more."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._timer is not None:
            self._timer.cancel()
        self._index.on_filter = self._index.on_group = None

    @property
    def counts(self) -> bool:
        """Whether there are other nodes, or have been."""
        return self._index.on_filter is not None

    # -- what leaders may leave out

    def wanted(self) -> Wanted | None:
        """By what the others have been told. None: something is wanted of which they do not
        know."""
        own = self.own
        return Wanted(FILTER, own.number) if self.counts and own.grown <= own.number else None

    def still(self, wanted: Wanted) -> bool:
        """Whether nothing has come to be wanted since."""
        return self.own.grown <= wanted.number

    # -- this node

    def _look(self) -> None:
        """Follow the subscriptions from now on."""
        if not self.counts:
            self._index.on_filter, self._index.on_group = self._filter, self._group
            self.own.begin(self._index.filters(), self._index.group_keys())

    def _filter(self, topic_filter: str, here: bool) -> None:
        if here:
            self.own.added(topic_filter)
        else:
            self.own.removed(topic_filter)
        self._tell_soon()

    def _group(self, name: str, topic_filter: str) -> None:
        if self._index.group(name, topic_filter) is None:
            self.own.group_emptied((name, topic_filter))
        else:
            self.own.group_changed((name, topic_filter))
        self.sharing.changed((name, topic_filter))
        self.on_change()
        self._tell_soon()

    def _count(self, key: GroupKey) -> Members:
        group = self._index.group(*key)
        if group is None:
            return Members(0, 0)
        connected = sum(one.session.connection is not None for one in group.members)
        return Members(connected, len(group.members) - connected)

    def _recounted(self, key: GroupKey) -> Members:
        """What others are told of a group."""
        members = self._count(key)
        self.on_group(key)
        return members

    def _tell_soon(self, pause_s: float = PAUSE_S) -> None:
        if self._timer is None and self._channel is not None:
            loop = asyncio.get_running_loop()
            at_s = max(loop.time(), self._told_s + pause_s)
            self._timer = loop.call_at(at_s, self._tell)

    def _tell(self) -> None:
        self._timer = None
        channel = self._channel
        if channel is None:
            return
        if self.own.scan():
            self._told_s = float("-inf")
            self._tell_soon()
            return
        self._told_s = asyncio.get_running_loop().time()
        lost = False
        for node, message in self.own.told().items():
            if not channel.send(node, message):
                self.own.lost(node)
                lost = True
        if self.own.telling:
            self._tell_soon(_LOST_S if lost else PAUSE_S)

    # -- other nodes

    def reachable(self, node: str) -> None:
        """Tell it everything."""
        self._look()
        self.own.reachable(node)
        self._tell_soon()

    def unreachable(self, node: str) -> None:
        """Tell it nothing more."""
        self.own.unreachable(node)

    def begun(self, peer: Peer) -> None:
        """It tells everything soon."""
        self.others.begun(peer)
        self._others_changed()

    def ended(self, peer: Peer) -> None:
        """Nothing is known of it."""
        self.others.ended(peer)
        self._others_changed()

    def message(self, peer: Peer, payload: bytes) -> None:
        """What it wants."""
        try:
            said = decode(payload)
        except BadSnapshot as error:
            _log.warning("node %s: %s", peer.node_id, error)
            self.others.begun(peer)  # nothing is known of it until it tells everything
            return
        self.others.said(peer, said)
        self._others_changed()

    def _others_changed(self) -> None:
        self.sharing.changed()
        self.on_change()
