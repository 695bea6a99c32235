"""One node with users, and a dashboard of it, for all tests of pages without a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lakemq
from tests.support.node.dashboard import Visitor, dashboard_of
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.users import USERS_ONLY, add_user, login


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Where root may do everything, and ann describe: her role has a rule."""
    folder = tmp_path_factory.mktemp("dashboard")
    add_user(folder, "root")
    add_user(folder, "ann", "viewer")
    rules = """
[[security.rules]]
who = ["role:viewer"]
operations = ["describe"]
resources = ["cluster:*", "topic:*", "group:*", "schema:*", "sink:*", "transaction:*"]
"""
    config = PORTS_FREE + USERS_ONLY.format(folder=folder) + rules
    with NodeProcess(folder, config) as node:
        yield node


@pytest.fixture(scope="package")
def url(node: NodeProcess) -> Iterator[str]:
    with dashboard_of(node.addresses["admin"]) as url:
        yield url


@pytest.fixture(scope="package")
def client(node: NodeProcess) -> Iterator[lakemq.SyncClient]:
    with lakemq.connect(node.native, timeout_s=10, **login("root")) as client:
        yield client


@pytest.fixture(scope="package")
def ann(url: str) -> Visitor:
    visitor = Visitor(url)
    assert visitor.log_in("ann").status == 303
    return visitor


@pytest.fixture(scope="package")
def root(url: str) -> Visitor:
    visitor = Visitor(url)
    assert visitor.log_in("root").status == 303
    return visitor
