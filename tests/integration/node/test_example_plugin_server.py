"""The example plugin's socket edge, on real sockets; the broker answers when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lakemq_line.server import LineListener
from lakemq_line.settings import LineSettings
from opentelemetry.metrics import NoOpMeter

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotAuthenticated,
    StartupError,
)
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import Columns, Offset, Placed, Principal

READ_MAX_S = 10


class ScriptedBroker:
    """`publish` answers at once, or, while `held` is a list, when the test says so."""

    def __init__(self) -> None:
        self.held: list[tuple[Columns, asyncio.Future[Any]]] | None = None
        self.published: list[tuple[str, Columns]] = []
        self.stranger = False

    async def authenticate(self, credentials: Credentials) -> Principal:
        if self.stranger:
            raise NotAuthenticated("who are you?")
        return Principal(credentials.client_id, "anonymous", {"protocol": "line"})

    def publish(
        self, topic: str, columns: Columns, *, principal: Principal
    ) -> asyncio.Future[list[Placed | LakeMQError]]:
        if b"poison" in columns.values:
            raise InvalidRequest("poison")
        self.published.append((topic, columns))
        future = asyncio.get_running_loop().create_future()
        if self.held is None:
            self.settle(columns, future)
        else:
            self.held.append((columns, future))
        return future

    @staticmethod
    def settle(columns: Columns, future: asyncio.Future[Any]) -> None:
        future.set_result([Placed(0, Offset(int(value or b"0"))) for value in columns.values])


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
async def listener(broker: ScriptedBroker) -> AsyncIterator[LineListener]:
    settings = LineSettings(port=0, line_max_bytes=100, requests_in_flight_max=10)
    listener = LineListener(broker, settings, NoOpMeter("test"))  # type: ignore[arg-type]
    await listener.start()
    yield listener
    await listener.stop()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        async with asyncio.timeout(READ_MAX_S):
            return await self.reader.readline()


@pytest.fixture
async def client(listener: LineListener) -> AsyncIterator[Client]:
    client = await connect(listener)
    yield client
    client.writer.close()


async def connect(listener: LineListener) -> Client:
    host, _, port = listener.addresses()[0].rpartition(":")
    return Client(*await asyncio.open_connection(host, int(port)))


async def until(condition: Any) -> None:
    for _ in range(200 * READ_MAX_S):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


async def test_pipelined_requests_share_one_publish_and_are_answered_in_order(
    broker: ScriptedBroker, client: Client
) -> None:
    client.send(b"PUT a k 1\nPUT a - 2\nnonsense\nPUT a k 3\n")
    answers = [await client.line() for _ in range(4)]

    assert answers[:2] == [b"OK 0 1\n", b"OK 0 2\n"]
    assert answers[2].startswith(b"ERR INVALID_REQUEST ")
    assert answers[3] == b"OK 0 3\n"
    assert broker.published == [("a", Columns([b"1", b"2", b"3"], [b"k", None, b"k"]))]


async def test_a_late_answer_holds_back_those_behind_it(
    broker: ScriptedBroker, client: Client
) -> None:
    broker.held = []
    client.send(b"PUT slow k 1\nPUT quick k 2\n")
    await until(lambda: broker.held and len(broker.held) == 2)
    broker.settle(*broker.held[1])
    await asyncio.sleep(0.05)
    assert not client.reader._buffer  # type: ignore[attr-defined]

    broker.settle(*broker.held[0])
    assert [await client.line(), await client.line()] == [b"OK 0 1\n", b"OK 0 2\n"]


async def test_a_refused_record_does_not_take_its_neighbours_with_it(client: Client) -> None:
    client.send(b"PUT a k 1\nPUT a k poison\nPUT a k 3\n")

    assert await client.line() == b"OK 0 1\n"
    assert await client.line() == b"ERR INVALID_REQUEST poison\n"
    assert await client.line() == b"OK 0 3\n"


async def test_nothing_more_is_read_while_too_much_is_unanswered(
    broker: ScriptedBroker, client: Client
) -> None:
    broker.held = []
    for number in range(10):
        client.send(b"PUT a k %d\n" % number)
        await until(lambda expected=number + 1: len(broker.held or []) == expected)
    client.send(b"PUT a k 10\n")
    await asyncio.sleep(0.1)
    assert len(broker.held) == 10

    broker.settle(*broker.held[0])
    assert await client.line() == b"OK 0 0\n"
    await until(lambda: len(broker.held or []) == 11)
    for each in broker.held[1:]:
        broker.settle(*each)


async def test_a_line_that_is_too_long_is_answered_and_ends_the_connection(client: Client) -> None:
    client.send(b"PUT a k 1\n" + b"x" * 1_000_000)

    assert await client.line() == b"OK 0 1\n"
    assert await client.line() == b"ERR LINE_TOO_LONG a line holds at most 100 bytes\n"
    assert await client.line() == b""


async def test_a_client_that_says_no_more_still_gets_its_answers(
    broker: ScriptedBroker, client: Client
) -> None:
    broker.held = []
    client.send(b"PUT a k 1\n")
    client.writer.write_eof()
    await until(lambda: broker.held)
    await asyncio.sleep(0.05)
    broker.settle(*broker.held[0])

    assert await client.line() == b"OK 0 1\n"
    assert await client.line() == b""


async def test_stop_answers_what_was_asked(
    broker: ScriptedBroker, listener: LineListener, client: Client
) -> None:
    broker.held = []
    client.send(b"PUT a k 1\n")
    await until(lambda: broker.held)
    stopping = asyncio.create_task(listener.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    broker.settle(*broker.held[0])

    assert await client.line() == b"OK 0 1\n"
    assert await client.line() == b""
    await stopping
    assert not listener.connections


async def test_a_client_that_is_not_known_is_told_and_left(
    broker: ScriptedBroker, listener: LineListener
) -> None:
    broker.stranger = True
    client = await connect(listener)

    assert await client.line() == b"ERR NOT_AUTHENTICATED who are you?\n"
    assert await client.line() == b""
    client.writer.close()


async def test_a_taken_port_is_named(broker: ScriptedBroker, listener: LineListener) -> None:
    port = int(listener.addresses()[0].rpartition(":")[2])
    second = LineListener(broker, LineSettings(port=port), NoOpMeter("test"))  # type: ignore[arg-type]
    with pytest.raises(StartupError, match=f"line: cannot listen on 127.0.0.1:{port}"):
        await second.start()
