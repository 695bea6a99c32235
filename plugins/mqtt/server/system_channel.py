"""`$SYS` of all nodes: each tells the others what it counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgpack

from lakemq.broker_core.api.cluster.channels import Channel, ChannelEvents, Peer
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.ops.system_topics import (
    Values,
    forget_node,
    publish_system_topics,
    read_values,
)
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot

_log: Final = logging.getLogger(__name__)
CHANNEL: Final = "mqtt.system"
NODES_MAX: Final = 1_000


class SystemChannel(ChannelEvents):
    """Lives on the event loop."""

    def __init__(self, hub: Hub, broker: Broker, version: str, now_ms: Callable[[], int]) -> None:
        self._hub = hub
        self._broker = broker
        self._version = version
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._others: dict[str, Values] | None = None
        """None: no other node was heard."""
        self._channel: Channel | None = None

    def open(self) -> None:
        """Begin to hear other nodes."""
        self._channel = self._broker.channel(CHANNEL, self)

    def close(self) -> None:
        """Hear them no more."""
        if self._channel is not None:
            self._channel.close()

    def publish(self) -> None:
        """Tell subscribers, and the other nodes."""
        own = publish_system_topics(
            self._hub, self._version, self._started_ms, self._now_ms(), self._broker.node_id,
            self._others,
        )  # fmt: skip
        nodes = self._channel.nodes() if self._channel is not None else ()
        data = bytes(msgpack.packb(own)) if nodes else b""
        for node in nodes:
            assert self._channel is not None
            self._channel.send(node, data)

    def message(self, peer: Peer, payload: bytes) -> None:
        """See `ChannelEvents`."""
        try:
            values = read_values(payload)
        except BadSnapshot as error:
            _log.warning("values of $SYS from node %s are left out: %s", peer.node_id, error)
            return
        if self._others is None:
            self._others = {}
        others = self._others
        if peer.node_id in others or len(others) < NODES_MAX:
            others[peer.node_id] = values

    def ended(self, peer: Peer) -> None:
        """See `ChannelEvents`."""
        if self._others and self._others.pop(peer.node_id, None) is not None:
            forget_node(self._hub, peer.node_id)
