"""Goal: each kind of part that a running node can replace is replaced, the rest is refused in a
sentence, and what fails on the way leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakemq.broker_core.api.errors import NotAuthorized, PluginError, UnknownMechanism
from lakemq.broker_core.api.ports import Credentials
from lakemq.broker_core.api.types import Columns, Principal
from lakemq.node import Node
from lakemq.testing import RunningBroker, running_broker
from tests.support.node.installed_plugin import InstalledPlugin

PLUGIN = """
from opentelemetry.metrics import Observation

from lakemq.broker_core.api.hooks import hookimpl
from lakemq_parts.said import said, SAYS


class Worker:
    name = "worker"

    async def start(self):
        said.append(f"{SAYS} started")

    def addresses(self):
        return ADDRESSES

    async def stop(self):
        said.append(f"{SAYS} stopped")


class Authorizer:
    def authorize(self, principal, operation, resource, context):
        return False if principal.name == SAYS else None


class Mechanism:
    name = SAYS.upper()

    def begin(self, credentials):
        raise NotImplementedError


class Authenticator:
    async def authenticate(self, credentials):
        return None


class Stamp:
    def intercept(self, topic, columns, principal):
        return columns._replace(values=[SAYS.encode()] * len(columns.values))


ADDRESSES = []


@hookimpl
def register_listeners(context, broker):
    context.meter.create_observable_gauge("parts", [lambda _: [Observation(len(SAYS))]])
    return [Worker()]


@hookimpl
def register_authorizer(context):
    return Authorizer()


@hookimpl
def register_authenticator(context):
    return Authenticator()


@hookimpl
def register_mechanisms(context):
    return [Mechanism()]


@hookimpl
def register_interceptors(context):
    return [Stamp()]
"""
SAID = "import builtins\n\nsaid = builtins.lakemq_said\nSAYS = 'old'\n"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers say, old and new ones: it outlives their modules."""
    found: list[str] = []
    monkeypatch.setattr("builtins.lakemq_said", found, raising=False)
    return found


@pytest.fixture
def installed(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> InstalledPlugin:
    plugin = InstalledPlugin(tmp_path / "made", "parts")
    plugin.write("plugin", PLUGIN)
    plugin.write("said", SAID)
    monkeypatch.syspath_prepend(plugin.folder)
    # Read again by a reload.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakemq.toml").write_text("[plugins.parts]\n")
    for name in [each for each in sys.modules if each.partition(".")[0] == "lakemq_parts"]:
        monkeypatch.delitem(sys.modules, name)
    return plugin


@pytest.fixture
async def running(installed: InstalledPlugin, tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path / "data", config="[plugins.parts]\n") as running:
        yield running


def node_of(running: RunningBroker) -> Node:
    return running._node


async def reload(running: RunningBroker, name: str = "parts") -> None:
    await node_of(running)._administration.reload_plugin(name)


def gauge(running: RunningBroker) -> list[str]:
    text = node_of(running).telemetry.prometheus_text().decode()
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("parts{")]


async def stored(running: RunningBroker) -> list[bytes | None]:
    await running.broker.publish("t", Columns([b"x"]), principal=Principal("ann"))
    return await running.values("t")


def begins(running: RunningBroker, mechanism: str) -> bool:
    try:
        running.broker.begin_exchange(mechanism, Credentials("x", "y", "127.0.0.1"))
    except UnknownMechanism:
        return False
    except NotImplementedError:
        return True
    raise AssertionError


async def test_every_part_is_replaced(
    running: RunningBroker, installed: InstalledPlugin, said: list[str]
) -> None:
    await running.broker.create_topic("t", partitions=1)
    assert await stored(running) == [b"old"]
    assert gauge(running) == ["3.0"]
    changes: list[str] = []
    running.broker.on_access_change(lambda: changes.append("changed"))

    installed.replace("said", "'old'", "'newer'")
    await reload(running)

    # The new worker had started before the old one was stopped.
    assert said == ["old started", "newer started", "old stopped"]
    assert await stored(running) == [b"old", b"newer"]
    with pytest.raises(NotAuthorized):
        await running.broker.publish("t", Columns([b"x"]), principal=Principal("newer"))
    await running.broker.publish("t", Columns([b"x"]), principal=Principal("old"))
    assert (begins(running, "NEWER"), begins(running, "OLD")) == (True, False)
    assert gauge(running) == ["5.0"]
    assert changes == ["changed"]
    await node_of(running).stop()
    assert said[3:] == ["newer stopped"]


async def test_what_fails_leaves_nothing_behind(
    running: RunningBroker, installed: InstalledPlugin, said: list[str]
) -> None:
    await running.broker.create_topic("t", partitions=1)
    code = sys.modules["lakemq_parts.said"]
    installed.replace("said", "'old'", "'newer'")
    installed.replace(
        "plugin", "    async def start(self):\n", "    async def start(self):\n        1 / 0\n"
    )
    with pytest.raises(PluginError, match="listener worker: ZeroDivisionError"):
        await reload(running)
    installed.write("plugin", PLUGIN.replace("return [Worker()]", "return [Worker(), 7]"))
    with pytest.raises(PluginError, match="7 is no Listener"):
        await reload(running)
    installed.write("plugin", PLUGIN.replace("ADDRESSES = []", "ADDRESSES = ['127.0.0.1:7']"))
    with pytest.raises(PluginError, match="worker has clients at 127.0.0.1:7: only a restart"):
        await reload(running)
    assert said == ["old started", "newer started", "newer stopped"]
    assert sys.modules["lakemq_parts.said"] is code
    assert sys.modules["lakemq_parts"].said is code
    assert await stored(running) == [b"old"]
    assert gauge(running) == ["3.0"]
    assert not begins(running, "NEWER")
    # Nothing of it stands in the way of code that works.
    installed.write("plugin", PLUGIN)
    await reload(running)
    assert await stored(running) == [b"old", b"newer"]


async def test_a_listener_with_clients_needs_a_restart(
    installed: InstalledPlugin, tmp_path: Path
) -> None:
    installed.replace("plugin", "ADDRESSES = []", "ADDRESSES = ['127.0.0.1:7']")
    async with running_broker(tmp_path / "data", config="[plugins.parts]\n") as running:
        with pytest.raises(PluginError) as refused:
            await reload(running)
        assert str(refused.value) == (
            "plugin parts: its listener worker has clients at 127.0.0.1:7: only a restart takes "
            "new code"
        )
        with pytest.raises(PluginError, match="plugin journal is a part of LakeMQ"):
            await reload(running, "journal")
