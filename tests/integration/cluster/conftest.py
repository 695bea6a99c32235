"""A member of the MetaService alone, and two brokers alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_ports

MEMBER = """
[node]
id = "m"
roles = ["meta"]
[meta]
port = {meta}
raft_port = 0
[admin]
port = 0
[plugins.mqtt]
port = 0
[plugins.native]
port = 0
"""
BROKER = """
[node]
id = "{name}"
roles = ["broker"]
[meta]
join = ["127.0.0.1:{meta}"]
[admin]
port = 0
[plugins.mqtt]
enabled = false
[plugins.native]
port = 0
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    folder = tmp_path_factory.mktemp("roles")
    (meta,) = free_ports(1)
    found = {"m": NodeProcess(folder / "m", MEMBER.format(meta=meta))} | {
        name: NodeProcess(folder / name, BROKER.format(name=name, meta=meta)) for name in "ab"
    }
    try:
        # Together: brokers wait for the member.
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda node: node.start(60), found.values()))
        yield found
    finally:
        for node in found.values():
            node.kill()
