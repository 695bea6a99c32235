"""Whether a node's process is gone, as another node finds out at its address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from lakemq.broker_core import refusals
from lakemq.broker_core.refusals import Refusals


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_PAUSE_S", 0.01)


def bound() -> socket.socket:
    """A port that refuses connections until `listen`."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  nothing tells it
            await asyncio.sleep(0.005)


async def test_who_refuses_is_found_until_it_listens_again() -> None:
    with bound() as port:
        host, number = port.getsockname()
        seen = Refusals(lambda node: f"{host}:{number}", lambda: {"n": 7})
        told: list[object] = []
        seen.on_found = lambda: told.append(seen.found())
        seen.look_at("n")
        seen.look_at("n")
        await until(lambda: bool(told))
        assert told == [[("n", 7)]]
        port.listen(16)
        await until(lambda: not seen.found())
        assert len(told) == 1
        await seen.stop()


async def test_who_listens_is_looked_at_some_times_only() -> None:
    connections: list[object] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        seen = Refusals(lambda node: f"127.0.0.1:{port}", lambda: {"n": 7})
        seen.on_found = lambda: pytest.fail("it lives")
        seen.look_at("n")
        await until(lambda: len(connections) == refusals.ALIVE)
        await asyncio.sleep(0.1)
        assert len(connections) == refusals.ALIVE and seen.found() == []
        await seen.stop()


async def test_nothing_is_known_of_an_unknown_node_nor_after_the_end() -> None:
    seen = Refusals(lambda node: "", lambda: {"n": 7})
    seen.on_found = lambda: pytest.fail("it has no address")
    seen.look_at("n")  # without an address
    seen.look_at("other")  # not registered
    await asyncio.sleep(0.05)
    await seen.stop()
    seen.look_at("n")
    assert len(asyncio.all_tasks()) == 1
