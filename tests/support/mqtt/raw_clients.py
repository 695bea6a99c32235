"""Clients that are a socket and bytes, and brokers that note what clients show."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from lakemq.broker_core.api.types import ANONYMOUS, Credentials, Principal
from tests.support.mqtt.memory_broker import MemoryBroker

WAIT_S: Final = 30
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_opened: list[asyncio.StreamWriter] = []


async def dial(port: int, data: bytes = b"", **more: Any) -> Pair:
    """A connection on which `data` is sent; the fixture `raw_clients` closes it after the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **more)
    _opened.append(writer)
    writer.write(data)
    return reader, writer


async def close_all() -> None:
    for writer in _opened:
        writer.transport.abort()
    _opened.clear()
    await asyncio.sleep(0.01)


async def rest_of(reader: asyncio.StreamReader, within_s: float = WAIT_S) -> bytes:
    """What comes until the connection ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(65_536), within_s):
            found += piece
    return found


class NotingBroker(MemoryBroker):
    """Lets everybody in, and remembers what clients showed."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Credentials] = []

    @property
    def hosts(self) -> list[str]:
        return [each.peer_host for each in self.shown]

    async def authenticate(self, credentials: Credentials) -> Principal:
        self.shown.append(credentials)
        return ANONYMOUS


def other(**settings: Any) -> dict[str, Any]:
    """Settings of a server whose one listener is named `other`."""
    return {"tcp": False, "listeners": [{"name": "other", "port": 0, **settings}]}
