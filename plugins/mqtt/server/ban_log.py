"""Bans that operators made, in a state topic that all nodes share: they outlast a restart, and hold
on every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgpack

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.followed import FollowedRecord, FollowedTopic
from lakemq.broker_core.api.state.internal_topics import BANS as TOPIC
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.ops.operating import enforce
from lakemq.plugins.mqtt.routing.bans import Ban, check_ban
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.stored_values import (
    BadSnapshot,
    any_text,
    number_or_none,
    unpacked_map,
)
from lakemq.plugins.mqtt.wire.messages import Place

START_WAIT_S: Final = 10.0
"""How long a start waits at most for bans that this node has."""


class BanLog:
    """One record for each ban, by kind and value. Implements `Follower`."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        now_ms: Callable[[], int],
        salvage: Salvage,
        after: Callable[[], None],
    ) -> None:
        """`after`: carries out what the hub wants done."""
        self._hub = hub
        self._broker = broker
        self._now_ms = now_ms
        self._salvage = salvage
        self._after = after
        self._topic = StateTopic(broker, TOPIC, routed=True, now_ms=now_ms)
        self._followed = FollowedTopic(broker, TOPIC, self, open_stored=salvage.opened)

    async def start(self) -> None:
        """Impose what was kept, except bans that have ended, and follow what other nodes write."""
        await self._topic.ensure()
        # A node of a cluster is not heard before it is registered, and takes clients before: those
        # who are banned are sent away when the topic is read.
        here = self._broker.serves(TOPIC, 0)
        await self._followed.start(START_WAIT_S if here else 0)

    async def stop(self) -> None:
        """Follow no more."""
        await self._followed.stop()

    def restore(self, newest: Sequence[FollowedRecord]) -> None:
        """See `Follower`."""
        kept = {record.key for record in newest}
        for ban in self._hub.bans.imposed():
            if _key(ban.kind, ban.value) not in kept:
                self._hub.bans.lift(ban.kind, ban.value)
        self.take(newest)

    def take(self, records: Sequence[FollowedRecord]) -> None:
        """See `Follower`."""
        for record in records:
            try:
                self._take(record.key, record.value)
            except (ValueError, InvalidRequest) as error:
                self._salvage.refused(Place(TOPIC, 0, record.offset), error)
        self._after()

    def _take(self, key: bytes, value: bytes | None) -> None:
        kind, _, name = key.decode().partition("/")
        bans, now_ms = self._hub.bans, self._now_ms()
        ban = read_ban(kind, name, value) if value is not None else None
        if ban is None or (ban.until_ms is not None and ban.until_ms <= now_ms):
            bans.lift(kind, name)
            return
        bans.impose(ban)
        enforce(self._hub, ban, now_ms)

    async def keep(self, kind: str, name: str, ban: Ban | None) -> None:
        """Returns when it is on disk. None: the ban is lifted. Raises LakeMQError."""
        value = None
        if ban is not None:
            value = bytes(msgpack.packb({"until": ban.until_ms, "why": ban.why}))
        await self._topic.write({_key(kind, name): value})


def _key(kind: str, name: str) -> bytes:
    return f"{kind}/{name}".encode()


def read_ban(kind: str, name: str, value: bytes) -> Ban:
    """Raises BadSnapshot, InvalidRequest."""
    found = unpacked_map(value)
    try:
        until_ms, why = number_or_none(found["until"]), any_text(found["why"])
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None
    return check_ban(Ban(kind, name, until_ms, why))
