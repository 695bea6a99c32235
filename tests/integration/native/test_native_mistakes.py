"""Goal: every failure of the SDK is a `LakeMQError` that says what is wrong and whether trying
again may help, for both faces, whatever the caller got wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lakemq
from tests.integration.native.test_native_tls import Authority
from tests.support.node.node import PORTS_FREE, NodeProcess


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ca")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("mistakes")) as node:
        with lakemq.connect(node.native) as client:
            client.create_topic("t", partitions=1)
        yield node


def refused(call: Callable[[], object], *kinds: type[lakemq.LakeMQError]) -> lakemq.LakeMQError:
    """What it raises; never retriable."""
    with pytest.raises(lakemq.LakeMQError) as raised:
        call()
    error = raised.value
    assert isinstance(error, kinds or lakemq.InvalidRequest)
    assert not error.retriable
    return error


def test_what_has_a_plain_meaning_works(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        made = client.create_topic("plain", partitions=1, config={"retention_ms": 5_000_000})
        assert made.config["retention_ms"] == "5000000"
        client.admin.alter_topic("plain", {"retention_ms": 6_000_000})
        client.send("plain", b"a", acks="all")
        client.send_batch("plain", [lakemq.NewRecord(b"b")], compression="lz4", acks="leader")
        future = datetime(2100, 1, 1, tzinfo=UTC)
        assert client.offsets_for_timestamp("plain", future) == {0: 2}
        assert client.offsets_for_timestamp("plain", datetime(2020, 1, 1, tzinfo=UTC)) == {0: 0}

    async def other_face() -> None:
        async with lakemq.Client(node.native) as client:
            await client.create_topic("plain2", partitions=1, config={"retention_bytes": None})
            async with await client.producer(acks="all", compression="zstd") as producer:
                assert (await producer.send("plain2", b"a")).offset == 0
            assert await client.offsets_for_timestamp("plain2", 5) == {0: 0}

    asyncio.run(other_face())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.send_batch("t", [b"a", b"b"]), "a record is of type bytes; it takes NewReco"),
        (lambda c: c.send_batch("t", [{"value": b"a"}]), "a record is of type dict"),
        (lambda c: c.send_batch("t", b"ab"), "records is of type bytes; it takes a list"),
        (lambda c: c.send_batch("t", 5), "records is of type int; it takes a list"),
        (lambda c: c.send("t", b"a", acks="most"), "acks is 'most'"),
        (lambda c: c.send_batch("t", [lakemq.NewRecord(b"a")], compression="gz"), "compression is"),
        (lambda c: c.create_topic("u", partitions=0), "partitions is 0"),
        (lambda c: c.create_topic("u", config={"retention_ms": 5.0}), "config retention_ms is"),
        (lambda c: c.schedules.send("t", b"a", delay=5), "delay is 5; it takes a timedelta"),
        (lambda c: c.offsets_for_timestamp("t", "2020-01-01"), "timestamp_ms is '2020-01-01'"),
        (lambda c: c.subscribe("t", group="g", auto_offset_reset="earliest"), "mean 'start'"),
        (lambda c: c.queue("t", group="g", lockms=3), "did you mean 'lock_ms'"),
    ],
)
def test_the_blocking_face(node: NodeProcess, call: Callable[[Any], object], said: str) -> None:
    with lakemq.connect(node.native) as client:
        assert said in str(refused(lambda: call(client)))


def test_the_asyncio_face(node: NodeProcess) -> None:
    async def run() -> None:
        async with lakemq.Client(node.native) as client:
            for call, said in (
                (lambda: client.producer(acks="most"), "acks is 'most'"),
                (lambda: client.producer(compression="gz"), "compression is 'gz'"),
                (lambda: client.create_topic("u", partitions=0), "partitions is 0"),
                (lambda: client.offsets_for_timestamp("t", "x"), "timestamp_ms is 'x'"),
                (lambda: client.schedules.send("t", b"a", delay=5), "takes a timedelta"),
            ):
                with pytest.raises(lakemq.InvalidRequest, match=said):
                    await call()
            with pytest.raises(lakemq.InvalidRequest, match="mean 'start'"):
                client.subscribe("t", group="g", auto_offset_reset="x")  # type: ignore[call-arg]
            with pytest.raises(lakemq.InvalidRequest, match="mean 'lock_ms'"):
                client.queue("t", group="g", lockms=3)  # type: ignore[call-arg]
            async with await client.producer() as producer:
                with pytest.raises(lakemq.InvalidRequest, match="of type dict; send_arrow takes"):
                    await producer.send_arrow("t", {"value": [b"a"]})  # type: ignore[arg-type]
                with pytest.raises(lakemq.InvalidRequest, match="a record is of type bytes"):
                    await producer.send_batch("t", [b"a"])  # type: ignore[list-item]

    asyncio.run(run())


def test_too_large_is_said_and_the_producer_goes_on(node: NodeProcess) -> None:
    large = bytes(20_000_000)
    with lakemq.connect(node.native) as client:
        refused(lambda: client.send("t", large), lakemq.BatchTooLarge)
        client.send("t", b"after")

    async def run() -> None:
        async with (
            lakemq.Client(node.native) as client,
            await client.producer() as producer,
        ):
            for _ in range(2):
                with pytest.raises(lakemq.BatchTooLarge, match="topic t takes"):
                    await producer.send("t", large)
                await producer.send("t", b"after")

    asyncio.run(run())


def test_a_closed_client_says_so(node: NodeProcess) -> None:
    client = lakemq.connect(node.native)
    client.send("t", b"a")
    client.close()
    for call in (
        lambda: client.send("t", b"a"),
        lambda: client.topics(),
        lambda: client.schedules,
        lambda: list(client.consume("t")),
    ):
        assert "closed" in str(refused(call))

    async def run() -> None:
        client = lakemq.Client(node.native)
        producer = await client.producer()
        await producer.send("t", b"a")
        await producer.close()
        with pytest.raises(lakemq.InvalidRequest, match="closed"):
            await producer.send("t", b"a")
        left_open = await client.producer()
        await left_open.send("t", b"a")
        await client.close()
        with pytest.raises(lakemq.LakeMQError, match="closed") as raised:
            while True:
                await left_open.send("t", b"a")
        assert not raised.value.retriable
        with pytest.raises(lakemq.InvalidRequest, match="closed"):
            await client.topics()

    asyncio.run(run())


@pytest.mark.parametrize("address", ["http://127.0.0.1:9700", "127.0.0.1:abc", ""])
def test_what_is_no_address(address: str) -> None:
    assert "bootstrap" in str(refused(lambda: lakemq.connect(address)))
    assert "bootstrap" in str(refused(lambda: lakemq.Client(address)))


def test_without_a_port_the_default_is_tried() -> None:
    with lakemq.connect("127.0.0.1") as client:
        assert client.bootstrap == "127.0.0.1:9700"


def test_mistakes_about_tls_are_told_at_once(
    node: NodeProcess, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("server")
    listener = "[plugins.native]\nport = 0"
    secure = f'{listener}\ntls_cert = "{certificate}"\ntls_key = "{key}"'
    stranger = Authority(tmp_path, "other")
    with NodeProcess(tmp_path / "tls", PORTS_FREE.replace(listener, secure)) as tls_node:
        mistakes = (
            (tls_node.native, None, "it speaks TLS: give tls="),
            (node.native, lakemq.Tls(authority.file), "it does not speak TLS: leave tls= out"),
            (tls_node.native, lakemq.Tls(stranger.file), "not signed by an authority of tls.ca"),
            (tls_node.native, lakemq.Tls(authority.file, server_name="x"), "for another name"),
        )
        with ThreadPoolExecutor(len(mistakes)) as at_once:  # each takes some seconds
            list(at_once.map(lambda each: check_mistake(*each), mistakes))


def check_mistake(address: str, tls: lakemq.Tls | None, said: str) -> None:
    with lakemq.connect(address, tls=tls) as client:
        assert said in str(refused(client.topics, lakemq.TlsFailed))
        assert said in str(refused(lambda: client.send("t", b"a"), lakemq.TlsFailed))

    async def run() -> None:
        async with lakemq.Client(address, tls=tls) as client:
            await client.producer()

    assert said in str(refused(lambda: asyncio.run(run()), lakemq.TlsFailed))


def test_a_topic_that_is_not_there_is_warned_of(
    node: NodeProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lakemq.sdk")
    with lakemq.connect(node.native) as client, client.subscribe(["t", "tpyo"], group="w") as found:
        next(iter(found))  # of the topic that is there
        client.create_topic("later", partitions=1)
    (line,) = [each.getMessage() for each in caplog.records]
    assert line == "group w waits for topics that do not exist (yet): 'tpyo'"
