"""Goal: metrics of logins and of authorizers move."""

from __future__ import annotations

import asyncio
import base64
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import aiomqtt
import pytest

from tests.support.node.metrics import Now, now, still
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.node.ports import free_port
from tests.support.node.users import USERS_ONLY, add_user

AT_ONCE = 8


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One password is checked at a time, three wrong ones are borne, and the web service that
    decides what devices do is not there."""
    folder = tmp_path_factory.mktemp("access")
    for name in ("root", "ann", "bob"):
        add_user(folder, name)
    bounds = "failures_max = 3\nlockout_ms = 60000\npassword_threads = 1\npasswords_waiting_max = 1"
    config = PORTS_FREE + USERS_ONLY.format(folder=folder).replace(
        "[security]", f"[security]\n{bounds}\nunmatched = 'allow'"
    )
    config += (
        f'[[security.authorizers]]\nkind = "http"\nurl = "http://127.0.0.1:{free_port()}/acl"\n'
    )
    with NodeProcess(folder, config) as running:
        yield running


def told(node: NodeProcess) -> Now:
    return now(node.addresses["admin"], authorization=basic("root", "root's password"))


def logs_in(node: NodeProcess, name: str) -> int:
    """The status of a request with a wrong password."""
    request = urllib.request.Request(
        f"http://{node.addresses['admin']}/metrics", headers={"Authorization": basic(name, "x")}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    refused.value.close()
    return refused.value.code


def test_wrong_passwords_are_checked_and_then_refused_unseen(node: NodeProcess) -> None:
    before = told(node)
    for _ in range(5):
        assert logs_in(node, "ann") in (401, 429)
    after = told(node)
    assert not still(before, after, "security.logins.refused", "security.logins.hasty")
    checked, hasty = (
        after[name] - before[name]
        for name in ("security.passwords.checked", "security.logins.hasty")
    )
    assert (checked, hasty) == (3, 2)


def test_logins_for_which_there_is_no_room_are_turned_away(node: NodeProcess) -> None:
    before = told(node)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: logs_in(node, f"nobody-{number}"), range(3 * AT_ONCE)))
    assert not still(before, told(node), "security.passwords.turned_away")


def test_a_web_service_that_does_not_answer(node: NodeProcess) -> None:
    before = told(node)

    async def publish() -> None:
        there = aiomqtt.Client(
            "127.0.0.1", int(node.addresses["mqtt"].rpartition(":")[2]), username="bob",
            password="bob's password", protocol=aiomqtt.ProtocolVersion.V5, identifier="d",
        )  # fmt: skip
        async with there as client:
            await client.publish("a/b", b"x", qos=1)

    asyncio.run(publish())
    after = told(node)
    assert not still(
        before, after, "security.authorizers.questions", "security.authorizers.failures",
        "mqtt.publishes.refused",
    )  # fmt: skip
