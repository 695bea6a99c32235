"""Nodes, clients and topics that most integration tests need.

A module whose tests stop the node, want other settings, or look at all that a node has, defines a
`node` of its own in place of this one; `client` and `topic` use it then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess, unique


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with the default settings, shared by the modules of this process: a test uses topics,
    groups and queues whose names are its own."""
    with NodeProcess(tmp_path_factory.mktemp("shared")) as node:
        yield node


@pytest.fixture
def fresh_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that a test has for itself, to fill, kill and start again."""
    node = NodeProcess(tmp_path / "node").start()
    try:
        yield node
    finally:
        node.kill()


@pytest.fixture
def client(node: NodeProcess) -> Iterator[lakemq.SyncClient]:
    with lakemq.connect(node.native, timeout_s=10) as client:
        yield client


@pytest.fixture
def topic(client: lakemq.SyncClient, request: pytest.FixtureRequest) -> str:
    """A new topic of one partition, or of as many as `pytest.mark.partitions` says."""
    marker = request.node.get_closest_marker("partitions")
    name = unique("topic")
    client.create_topic(name, partitions=marker.args[0] if marker else 1)
    return name
