"""Bans that operators made, in a state topic, so that they outlast a restart."""

from __future__ import annotations

from typing import Final

import msgpack

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.routing.bans import Ban, Bans, check_ban
from lakemq.plugins.mqtt.state.stored_values import (
    BadSnapshot,
    any_text,
    number_or_none,
    unpacked_map,
)
from lakemq.plugins.mqtt.wire.messages import Place

TOPIC: Final = "__mqtt_bans"


class BanLog:
    """One record for each ban, by kind and value."""

    def __init__(self, bans: Bans, topic: StateTopic, salvage: Salvage) -> None:
        self._bans = bans
        self._topic = topic
        self._salvage = salvage

    async def read(self, now_ms: int) -> None:
        """Impose what was kept, except bans that have ended."""
        async for record in self._topic.records():
            try:
                self._take(record.key, record.value, now_ms)
            except (ValueError, InvalidRequest) as error:
                self._salvage.refused(Place(TOPIC, *record[:2]), error)

    def _take(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        kind, _, name = key.decode().partition("/")
        self._bans.lift(kind, name)
        ban = read_ban(kind, name, value) if value is not None else None
        if ban is not None and (ban.until_ms is None or ban.until_ms > now_ms):
            self._bans.impose(ban)

    async def keep(self, kind: str, name: str, ban: Ban | None) -> None:
        """Returns when it is on disk. None: the ban is lifted. Raises LakeMQError."""
        value = None
        if ban is not None:
            value = bytes(msgpack.packb({"until": ban.until_ms, "why": ban.why}))
        await self._topic.write({f"{kind}/{name}".encode(): value})


def read_ban(kind: str, name: str, value: bytes) -> Ban:
    """Raises BadSnapshot, InvalidRequest."""
    found = unpacked_map(value)
    try:
        until_ms, why = number_or_none(found["until"]), any_text(found["why"])
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None
    return check_ban(Ban(kind, name, until_ms, why))
