"""A member of the MetaService alone, and two brokers alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.node.admin_api import ask
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
        _until_registered(found)
        yield found
    finally:
        for node in found.values():
            node.kill()


def _until_registered(nodes: dict[str, NodeProcess]) -> None:
    """Listeners open before a node is registered, and others hear of it later still."""
    deadline = time.monotonic() + 60
    for asked in (nodes["a"], nodes["b"]):
        while any(ask(asked, "GET", f"plugins?node={name}").status != 200 for name in "ab"):
            assert time.monotonic() < deadline, "the brokers do not know each other"
            time.sleep(0.05)
