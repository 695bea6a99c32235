"""Bans that operators made, in a compacted topic, so that they outlast a restart. Edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgpack

from broker_core.api.errors import InvalidRequest, LakeMQError
from broker_core.api.ports import Broker
from broker_core.api.types import Columns
from plugins.mqtt.bans import Ban, Bans, check_ban
from plugins.mqtt.kept_values import BadSnapshot, any_text, number_or_none, unpacked_map
from plugins.mqtt.reading import Salvage, batches_of

TOPIC: Final = "__mqtt_bans"
Publish = Callable[[str, Columns, Callable[[LakeMQError | None], None]], None]


class BanLog:
    """One record for each ban, by kind and value."""

    def __init__(self, bans: Bans, broker: Broker, publish: Publish, salvage: Salvage) -> None:
        self._salvage = salvage
        self._bans = bans
        self._broker = broker
        self._publish = publish

    async def read(self, now_ms: int) -> None:
        end = self._broker.partition(TOPIC, 0).high_watermark
        async for batch in batches_of(self._broker, TOPIC, 0, 0, end):
            for place, key, value in self._salvage.rows(batch):
                try:
                    self._take(key, value, now_ms)
                except (ValueError, InvalidRequest) as error:
                    self._salvage.refused(place, error)

    def _take(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        kind, _, name = key.decode().partition("/")
        self._bans.lift(kind, name)
        ban = read_ban(kind, name, value) if value is not None else None
        if ban is not None and (ban.until_ms is None or ban.until_ms > now_ms):
            self._bans.impose(ban)

    async def keep(self, kind: str, name: str, ban: Ban | None) -> None:
        """Returns when it is on disk. None: the ban is lifted. Raises LakeMQError."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: LakeMQError | None) -> None:
            if error is not None and not kept.done():
                kept.set_exception(error)
            elif not kept.done():
                kept.set_result(None)

        value = None
        if ban is not None:
            value = bytes(msgpack.packb({"until": ban.until_ms, "why": ban.why}))
        self._publish(TOPIC, Columns([value], [f"{kind}/{name}".encode()]), ended)
        await kept


def read_ban(kind: str, name: str, value: bytes) -> Ban:
    """Raises BadSnapshot, InvalidRequest."""
    found = unpacked_map(value)
    try:
        until_ms, why = number_or_none(found["until"]), any_text(found["why"])
    except KeyError as error:
        raise BadSnapshot(f"{error} is missing") from None
    return check_ban(Ban(kind, name, until_ms, why))
