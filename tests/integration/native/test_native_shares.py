"""Goal: transactional ids, sinks, groups and queues of one account leave room for others'."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import lakemq
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.users import USERS_ONLY, add_user, login

CONFIG = (
    """groups_max = 4
queues_max = 4
[transactions]
owners_max = 4
"""
    + USERS_ONLY
    + """[[security.rules]]
who = ["user:ann", "user:bob"]
operations = ["write", "describe", "read", "alter", "create"]
resources = ["topic:*", "group:*", "transaction:*", "sink:*"]
"""
)


async def make(client: lakemq.Client, kind: str, name: str, made: list[Any]) -> None:
    if kind == "transaction":
        await client.transactional_producer(name)
    elif kind == "sink":
        await client.staging.open_sink(name)
    elif kind == "queue":
        made.append(client.queue("t", group=name))
        await made[-1].open()
    else:
        made.append(await client.subscribe("t", group=name).__aenter__())
        assert (await anext(aiter(made[-1]))).value == b"x"


async def fill(client: lakemq.Client, kind: str, user: str) -> tuple[int, str]:
    """How many of a kind the user gets, and why no more."""
    made: list[Any] = []
    try:
        for number in range(5):
            await make(client, kind, f"{user}-{number}", made)
    except lakemq.InvalidRequest as error:
        return number, str(error)
    finally:
        for each in made:
            await each.close()
    raise AssertionError


def test_there_is_room_for_others(tmp_path: Path) -> None:
    for name in ("root", "ann", "bob"):
        add_user(tmp_path, name)

    async def run(node: NodeProcess) -> None:
        async with (
            lakemq.Client(node.native, **login("ann")) as ann,
            lakemq.Client(node.native, **login("bob")) as bob,
        ):
            for kind in ("transaction", "queue", "group"):
                count, why = await fill(ann, kind, "ann")
                assert count == 2
                assert "ann has 2 " in why
                assert (await fill(bob, kind, "bob"))[0] == 2
            with pytest.raises(lakemq.InvalidRequest):
                await make(ann, "sink", "ann-more", [])

    with NodeProcess(tmp_path, PORTS_FREE + CONFIG.format(folder=tmp_path)) as node:
        with lakemq.connect(node.native, **login("root")) as root:
            root.create_topic("t", partitions=1)
            root.send("t", b"x")
        asyncio.run(run(node))
