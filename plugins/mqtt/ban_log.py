"""Bans that operators made, in a compacted topic, so that they outlast a restart. Edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgpack

from broker_core.api.errors import LakeMQError
from broker_core.api.ports import Broker
from broker_core.api.record_batch import RecordBatch
from broker_core.api.types import Columns
from plugins.mqtt.bans import Ban, Bans
from plugins.mqtt.reading import batches_of

TOPIC: Final = "__mqtt_bans"
Publish = Callable[[str, Columns, Callable[[LakeMQError | None], None]], None]


class BanLog:
    """One record for each ban, by kind and value."""

    def __init__(self, bans: Bans, broker: Broker, publish: Publish) -> None:
        self._bans = bans
        self._broker = broker
        self._publish = publish

    async def read(self, now_ms: int) -> None:
        end = self._broker.partition(TOPIC, 0).high_watermark
        async for batch in batches_of(self._broker, TOPIC, 0, 0, end):
            opened = RecordBatch(batch.data)
            for key, value in zip(opened.keys(), opened.values(), strict=True):
                kind, _, name = (key or b"").decode(errors="replace").partition("/")
                self._bans.lift(kind, name)
                ban = _read(kind, name, value) if value is not None else None
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


def _read(kind: str, name: str, value: bytes) -> Ban | None:
    """None: it is no ban."""
    try:
        found = msgpack.unpackb(value)
        return Ban(kind, name, found["until"], found["why"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException):
        return None
