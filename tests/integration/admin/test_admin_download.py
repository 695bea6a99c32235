"""Goal: a download is sent as it is made and as long as was promised; who gets less, or is too
slow, is cut off, and what was opened for it is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from lakemq.broker_core.api.administration.meta_group import HEAD_BYTES, BackupNote
from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import ANONYMOUS, Principal
from lakemq.plugins.admin.config import AdminSettings
from lakemq.plugins.admin.http import application
from lakemq.plugins.admin.listener import AdminListener
from tests.support.node.administered import ListedChanges, StubNode

PART = b"x" * 1_000_000


class Catalog:
    """Lets everybody do everything."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        return ANONYMOUS

    def authorize(self, *_: object) -> None:
        return


class Group:
    """Gives `parts` parts of 1 MB, of `size`; then it fails if `fails`."""

    def __init__(self, parts: int, size: int, *, fails: bool = False, pause_s: float = 0.0) -> None:
        self._parts, self._size, self._fails, self._pause_s = parts, size, fails, pause_s
        self.given = 0
        self.closed = asyncio.Event()

    async def backup(self) -> tuple[BackupNote, AsyncGenerator[bytes]]:
        return BackupNote(7, 2, self._size, "c" * 32), self._content()

    async def _content(self) -> AsyncGenerator[bytes]:
        try:
            yield b"h" * HEAD_BYTES
            for _ in range(self._parts):
                await asyncio.sleep(self._pause_s)
                self.given += 1
                yield PART
            if self._fails:
                raise Unavailable("the member is gone")
        finally:
            self.closed.set()


@asynccontextmanager
async def served(group: Group, settings: AdminSettings) -> AsyncIterator[tuple[str, ListedChanges]]:
    node = StubNode(Catalog(), group=group)
    node.audit = changes = ListedChanges()
    listener = AdminListener(node, settings)
    await listener.start()
    try:
        yield listener.addresses()[0], changes
    finally:
        await listener.stop()


async def post(address: str) -> tuple[int, bytes]:
    url = f"http://{address}/api/v1/meta/backup"
    async with aiohttp.ClientSession() as session, session.post(url, json={}) as answer:
        return answer.status, await answer.read()


async def test_it_is_whole_and_outlives_the_time_to_authenticate() -> None:
    group = Group(8, 8 * len(PART), pause_s=0.3)
    settings = AdminSettings(port=0, unauthenticated_timeout_ms=2000)
    async with served(group, settings) as (address, changes):
        status, body = await post(address)
    assert (status, len(body)) == (200, HEAD_BYTES + 8 * len(PART))
    assert group.closed.is_set()
    (noted,) = changes.changes
    assert (noted.action, noted.outcome) == ("POST meta/backup", "done")
    assert noted.after == {"log_index": 7, "bytes": HEAD_BYTES + 8 * len(PART)}


async def test_one_that_fails_on_the_way_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(1, 2 * len(PART), fails=True)
    async with served(group, AdminSettings(port=0)) as (address, _):
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(5):  # at once, not when the idle connection ends
                await post(address)
    assert group.closed.is_set()
    (line,) = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert "was cut off: the member is gone" in line


async def test_who_takes_nothing_holds_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_PART_MAX_S", 0.3)
    group = Group(100, 100 * len(PART))
    async with served(group, AdminSettings(port=0)) as (address, _):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as idle:
            head = f"POST /api/v1/meta/backup HTTP/1.1\r\nHost: {address}\r\n"
            idle.sendall(
                f"{head}Content-Type: application/json\r\nContent-Length: 0\r\n\r\n".encode()
            )
            async with asyncio.timeout(30):
                await group.closed.wait()
    # What the sockets and the server's buffers hold, and no more, was read for it.
    assert 0 < group.given < 50
