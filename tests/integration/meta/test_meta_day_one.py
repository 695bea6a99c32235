"""What an operator does with a group of three nodes, with real nodes and the real command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakemq.cli.meta_commands import meta
from lakemq.meta_service.api.remote.client import RemoteClient
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_ports

CONFIG = """
[node]
id = "{name}"
[meta]
port = {port}
raft_port = {raft_port}
{members}
[admin]
enabled = false
[plugins.mqtt]
port = 0
[plugins.native]
port = 0
"""


class Site:
    """Nodes by name; each keeps its ports when it starts again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.nodes: dict[str, NodeProcess] = {}

    def add(self, name: str, join: list[str] | None = None) -> None:
        port, raft_port = free_ports(2)
        members = "" if join else f'members = {{ {name} = "127.0.0.1:{raft_port}" }}'
        config = CONFIG.format(name=name, port=port, raft_port=raft_port, members=members)
        arguments = tuple(part for address in join or [] for part in ("--join", address))
        self.nodes[name] = NodeProcess(self._folder / name, config, arguments=arguments)
        self.nodes[name].start(60)

    def at(self, *names: str) -> list[str]:
        return [self.nodes[name].addresses["meta"] for name in names]

    async def meta(self, *words: str) -> str:
        """Output of `lakemq meta`, asked at every node."""
        where = [part for address in self.at(*self.nodes) for part in ("--address", address)]
        result = await asyncio.to_thread(CliRunner().invoke, meta, [*words, *where])
        assert result.exit_code == 0, result.output
        return result.output

    async def voters(self, *names: str) -> None:
        """Wait until exactly those vote."""
        async with asyncio.timeout(60):
            while True:
                lines = (await self.meta("members")).splitlines()
                found = {line.split()[0] for line in lines if "learner" not in line}
                if found == set(names):
                    return
                await asyncio.sleep(0.1)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    for node in site.nodes.values():
        await asyncio.to_thread(node.kill)


async def test_the_first_days_of_a_group(site: Site) -> None:
    await asyncio.to_thread(site.add, "n1")
    await asyncio.gather(
        *(asyncio.to_thread(site.add, name, site.at("n1")) for name in ("n2", "n3"))
    )
    await site.voters("n1", "n2", "n3")
    client = RemoteClient(site.at("n1", "n2", "n3"), timeout_s=60, attempt_s=1)
    await client.put(b"day", b"one")

    for name in ("n1", "n3"):  # a rolling restart
        status = await client.status()
        if status.leader_id == name:
            await site.meta("transfer")
        await asyncio.to_thread(site.nodes[name].stop)
        await client.put(b"while/" + name.encode(), b"away")
        await asyncio.to_thread(site.nodes[name].start, 60)

    dead = site.nodes.pop("n2")
    await asyncio.to_thread(dead.kill)
    await site.meta("remove", "n2")
    await asyncio.to_thread(site.add, "n4", site.at("n1"))
    await site.voters("n1", "n3", "n4")
    await client.close()

    client = RemoteClient(site.at("n4"), timeout_s=60)
    _, rows = await client.scan(b"")
    assert {row.key for row in rows} >= {b"day", b"while/n1", b"while/n3"}
    await client.close()
