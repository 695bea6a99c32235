"""Goal: a disk that is really full costs nobody an acknowledged record: who publishes is told so by
an error that says to try again, readers go on, and when there is room again, so does the broker.

The node's folder lies on a file system of its own, small and in memory; only root may mount one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.small_disk import free_bytes, grow, small_disk

pytestmark = pytest.mark.fault

_MIB = 1024 * 1024
RESERVE_MIB = 4
FREE_MIB = 12
VALUE_BYTES = 100_000


@contextmanager
def node_on_small_disk(folder: Path, settings: str) -> Iterator[tuple[NodeProcess, Path]]:
    """The node, and a file beside its own that takes most of the room."""
    node = NodeProcess(folder, f"{PORTS_FREE}[plugins.journal]\n{settings}")
    with small_disk(node.data_dir) as ballast:
        grow(ballast, FREE_MIB * _MIB)
        with node:
            yield node, ballast


def value(number: int) -> bytes:
    return b"%d " % number + b"." * VALUE_BYTES


async def fill(producer: lakemq.Producer, numbers: range) -> tuple[list[int], lakemq.LakeMQError]:
    """The numbers that are acknowledged until one is refused; why it is."""
    taken: list[int] = []
    for each in numbers:
        try:
            await producer.send("t", value(each))
        except lakemq.LakeMQError as error:
            return taken, error
        taken.append(each)
    raise AssertionError("the disk took all of it")


async def stored(client: lakemq.Client) -> list[int]:
    return [int((each.value or b"").split(b" ")[0]) async for each in client.consume("t")]


async def test_what_others_write_fills_the_disk(tmp_path: Path) -> None:
    """The broker looks at the space at its start only, and so meets the end of it in a write."""
    settings = "free_min_bytes = 0\nmaintenance_interval_ms = 3600000\n"
    with node_on_small_disk(tmp_path, settings) as (node, ballast):
        async with lakemq.Client(node.native, timeout_s=100) as client:
            await client.create_topic("t", partitions=1, config={"segment_max_bytes": "500000"})
            async with await client.producer(delivery_timeout_ms=300) as producer:
                await producer.send("t", b"0")
                grow(ballast, 0)
                taken, error = await fill(producer, range(1, 200))
                assert isinstance(error, lakemq.StorageFull) and error.retriable, repr(error)
                with pytest.raises(lakemq.StorageFull, match="no space left"):
                    await producer.send("t", value(999))
                assert await stored(client) == [0, *taken]
                ballast.unlink()
                placed = await producer.send("t", value(1000))
                assert placed.offset == len(taken) + 1
            expected = [0, *taken, 1000]
            assert await stored(client) == expected
        node.kill()
        node.start()
        async with lakemq.Client(node.native, timeout_s=100) as client:
            assert await stored(client) == expected


async def test_the_reserve_is_kept_and_lets_records_be_deleted(tmp_path: Path) -> None:
    settings = f"free_min_bytes = {RESERVE_MIB * _MIB}\nmaintenance_interval_ms = 500\n"
    with node_on_small_disk(tmp_path, settings) as (node, ballast):
        async with lakemq.Client(node.native, timeout_s=100) as client:
            await client.create_topic("t", partitions=1, config={"segment_max_bytes": "500000"})
            async with await client.producer(delivery_timeout_ms=300) as producer:
                taken, error = await fill(producer, range(200))
                assert isinstance(error, lakemq.StorageFull) and error.retriable, repr(error)
                assert "free_min_bytes" in str(error) and len(taken) > 10
                assert free_bytes(ballast) > (RESERVE_MIB - 1) * _MIB
                assert await stored(client) == taken
                await client.admin.delete_records("t", {0: len(taken)})
            async with await client.producer(delivery_timeout_ms=30_000) as producer:
                assert (await producer.send("t", b"1000")).offset == len(taken)
            assert await stored(client) == [1000]
