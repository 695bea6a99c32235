"""What every listener that accepts connections must do: the suite for the port `Listener`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from lakemq.broker_core.api.administration.routes import METHODS
from lakemq.broker_core.api.errors import StartupError
from lakemq.broker_core.api.ports import Administered, Broker, Listener
from lakemq.testing.broker import running_broker

WAIT_S: Final = 30.0
"""How long `stop` may take, and an answer may be awaited."""
MakeListener = Callable[[Broker, int], Listener]
"""(broker, TCP port on 127.0.0.1; 0: any that is free) -> a listener that has not started."""


class ListenerContract:
    """Give the fixture `make_listener`, a `MakeListener`.

        class TestMyListener(ListenerContract):
            @pytest.fixture
            def make_listener(self):
                return lambda broker, port: MyListener(broker, MySettings(port=port))

    `broker` is a real one. A plugin that gives several listeners has a suite for each.
    """

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture
    async def broker(self, tmp_path: Path) -> AsyncIterator[Broker]:
        """A broker that has started, with its data below `tmp_path`."""
        async with running_broker(tmp_path / "broker") as running:
            yield running.broker

    async def test_it_says_where_it_listens(
        self, broker: Broker, make_listener: MakeListener
    ) -> None:
        """`addresses` names the ports that are bound, and clients can connect to them."""
        async with started(make_listener(broker, 0)) as listener:
            assert isinstance(listener, Listener)
            assert listener.name
            assert listener.addresses(), "it listens nowhere"
            for host, port in endpoints(listener):
                assert port != 0, "the port that is bound, not the one that was asked for"
                _, writer = await asyncio.open_connection(host, port)
                writer.close()

    async def test_a_port_that_is_taken_is_a_startup_error(
        self, broker: Broker, make_listener: MakeListener
    ) -> None:
        """StartupError that names the port."""
        with taken_port() as port, pytest.raises(StartupError, match=str(port)):
            await make_listener(broker, port).start()

    async def test_after_stop_no_client_is_accepted_and_the_port_is_free(
        self, broker: Broker, make_listener: MakeListener
    ) -> None:
        """A second listener can bind the same port at once."""
        async with started(make_listener(broker, 0)) as listener:
            ((host, port), *_) = endpoints(listener)
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)
        async with started(make_listener(broker, port)) as again:
            assert (host, port) in endpoints(again)

    async def test_stop_ends_connections(self, broker: Broker, make_listener: MakeListener) -> None:
        """Also one that has said nothing yet, and one in the middle of a word."""
        listener = make_listener(broker, 0)
        async with started(listener):
            ((host, port), *_) = endpoints(listener)
            silent, first = await asyncio.open_connection(host, port)
            talking, second = await asyncio.open_connection(host, port)
            second.write(b"\x10")
            await asyncio.sleep(0.05)
        try:
            for reader in (silent, talking):
                await within(ended(reader), "a connection is open after stop")
        finally:
            first.close()
            second.close()

    async def test_garbage_of_one_client_leaves_the_others_alone(
        self, broker: Broker, make_listener: MakeListener
    ) -> None:
        """Random bytes end their own connection, and no other one."""
        rng = random.Random(1)
        async with started(make_listener(broker, 0)) as listener:
            ((host, port), *_) = endpoints(listener)
            _, other = await asyncio.open_connection(host, port)
            for size in (1, 100, 100_000):
                reader, writer = await asyncio.open_connection(host, port)
                with contextlib.suppress(OSError):
                    writer.write(rng.randbytes(size))
                    writer.write_eof()
                    await within(ended(reader), "garbage and its end do not end a connection")
                writer.close()
            assert not other.is_closing()
            _, last = await asyncio.open_connection(host, port)
            last.close()
            other.close()

    async def test_its_admin_routes_are_well_formed(
        self, broker: Broker, make_listener: MakeListener
    ) -> None:
        """Known methods and relative paths, of a listener that is `Administered`."""
        listener = make_listener(broker, 0)
        if isinstance(listener, Administered):
            for route in listener.admin_routes():
                assert getattr(route, "method", "GET") in METHODS, route
                assert route.path and not route.path.startswith("/"), route


@contextlib.asynccontextmanager
async def started(listener: Listener) -> AsyncIterator[Listener]:
    """Start it; stop it, within bounded time."""
    await within(listener.start(), "start does not return")
    try:
        yield listener
    finally:
        await within(listener.stop(), "stop does not return")


async def within(waited: Awaitable[None], failure: str) -> None:
    """AssertionError, with `failure`, when it takes too long."""
    try:
        async with asyncio.timeout(WAIT_S):
            await waited
    except TimeoutError:
        raise AssertionError(f"{failure} ({WAIT_S:.0f} s)") from None


async def ended(reader: asyncio.StreamReader) -> None:
    """Until the other side has closed; what it says first is read."""
    with contextlib.suppress(OSError):
        while await reader.read(65_536):
            pass


def endpoints(listener: Listener) -> list[tuple[str, int]]:
    """(host, port) of each of its addresses."""
    split = [address.rpartition(":") for address in listener.addresses()]
    return [(host.strip("[]"), int(port)) for host, _, port in split]


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port of 127.0.0.1 that another socket listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]
