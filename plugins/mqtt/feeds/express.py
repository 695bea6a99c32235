"""Publishes that no topic takes, to the nodes whose clients want them: in batches, through memory
alone, dropped and counted where a node is slow. Edge: schedules on the event loop.

Source: MQTT 5.0 section 4.3.1 (QoS 0 is delivered at most once).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final

import msgpack

from lakemq.broker_core.api.cluster.channels import PAYLOAD_MAX_BYTES, Channel, ChannelEvents, Peer
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.interest.frames import Members
from lakemq.plugins.mqtt.interest.others import OthersInterest
from lakemq.plugins.mqtt.interest.sharing import serves
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.shared import Group
from lakemq.plugins.mqtt.state.stored_values import (
    U32_MAX,
    BadSnapshot,
    binary,
    flag,
    items,
    number,
    number_or_none,
    text,
    topic_name,
)
from lakemq.plugins.mqtt.wire.messages import Message

CHANNEL: Final = "mqtt.express"
BATCH_BYTES: Final = 256 * 1024
"""A batch is sent when it has so much, and at the end of the turn."""
BATCH_MAX: Final = 16_384
_log: Final = logging.getLogger(__name__)


class Express(ChannelEvents):
    """Lives on the event loop."""

    def __init__(
        self, hub: Hub, others: OthersInterest, now_ms: Callable[[], int], after: Callable[[], None]
    ) -> None:
        """`after` is called when messages of another node were delivered."""
        self._hub = hub
        self._others = others
        self._now_ms = now_ms
        self._after = after
        self._node_id = ""
        self._numbers = itertools.count()
        self._waiting: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._due: asyncio.Handle | None = None
        self._channel: Channel | None = None

    def start(self, broker: Broker) -> None:
        """Take publishes of this node, and of others."""
        self._node_id = broker.node_id
        self._channel = broker.channel(CHANNEL, self)
        self._hub.express = self

    def stop(self) -> None:
        """Send what waits, and nothing more."""
        self._hub.express = None
        self._send_all()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # -- out

    def wanted(self, name: str) -> bool:
        """Whether another node has subscribers of a topic name."""
        return bool(self._others.who(name))

    def send(self, message: Message, now_ms: int) -> int:
        """To the nodes that want it; the number by which nodes share it out in groups."""
        found = next(self._numbers)
        nodes = self._others.who(message.topic)
        if nodes:
            entry = encode(message, found, now_ms)
            for node in nodes:
                self._add(node, entry)
        return found

    def _add(self, node: str, entry: bytes) -> None:
        waiting = self._waiting.setdefault(node, [])
        waiting.append(entry)
        size = self._sizes[node] = self._sizes.get(node, 0) + len(entry)
        if size >= BATCH_BYTES or len(waiting) >= BATCH_MAX:
            self._send(node)
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        for node in list(self._waiting):
            self._send(node)

    def _send(self, node: str) -> None:
        entries = self._waiting.pop(node)
        del self._sizes[node]
        counters, batch = self._hub.counters, pack(entries)
        fits = len(batch) <= PAYLOAD_MAX_BYTES
        if fits and self._channel is not None and self._channel.send(node, batch):
            counters.express_sent += len(entries)
        else:
            counters.express_dropped += len(entries)

    # -- in

    def message(self, peer: Peer, payload: bytes) -> None:
        """Publishes of another node's clients."""
        now_ms = self._now_ms()
        try:
            found = unpack(payload, now_ms)
        except BadSnapshot as error:
            _log.warning("node %s: %s", peer.node_id, error)
            return
        for message, count in found:
            self._hub.route_express(message, count, now_ms)
        self._hub.counters.express_received += len(found)
        self._after()

    def serves(self, group: Group, count: int) -> bool:
        """Whether this node gives message `count` to one of its members of a group."""
        connected = sum(one.session.connection is not None for one in group.members)
        own = Members(connected, len(group.members) - connected)
        others = self._others.groups((group.name, group.topic_filter))
        return not others or serves(self._node_id, {self._node_id: own, **others}, count)


def encode(message: Message, count: int, now_ms: int) -> bytes:
    """One entry of a batch."""
    left_s = None
    if message.expires_ms is not None:
        left_s = max(0, -(-(message.expires_ms - now_ms) // 1000))
    return bytes(
        msgpack.packb(
            [
                message.topic, message.payload, message.qos, message.retain, message.properties,
                left_s, message.origin, count,
            ]
        )
    )  # fmt: skip


def pack(entries: list[bytes]) -> bytes:
    """A batch: a msgpack array of entries."""
    return bytes(msgpack.Packer().pack_array_header(len(entries))) + b"".join(entries)


def unpack(data: bytes, now_ms: int) -> list[tuple[Message, int]]:
    """Messages, and by which number nodes share each out. Raises BadSnapshot."""
    try:
        found = msgpack.unpackb(data, max_array_len=BATCH_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadSnapshot(f"no batch of publishes: {error}") from None
    return [_message(items(entry, 8), now_ms) for entry in items(found)]


def _message(entry: list[object], now_ms: int) -> tuple[Message, int]:
    topic, payload, qos, retain, properties, left_s, origin, count = entry
    message = Message(
        topic_name(topic),
        binary(payload),
        number(qos, 0, 2),
        flag(retain),
        now_ms,
        binary(properties),
        number_or_none(left_s, 0, U32_MAX),
        None if origin is None else text(origin),
    )
    return message, number(count)
