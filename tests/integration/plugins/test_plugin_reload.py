"""Goal: a node that is published to goes on with a plugin's new code between two records; code that
fails changes nothing; who asked is in the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.plugins.commands import plugin
from tests.support.node.admin_api import ask
from tests.support.node.installed_plugin import InstalledPlugin
from tests.support.node.node import PORTS_FREE, NodeProcess

RELOAD = "nodes/node-1/plugins/sized/reload"
CONFIG = "[topics]\npartitions = 1\n" + PORTS_FREE.replace(
    "[plugins.native]",
    '[[plugins.mqtt.bindings]]\nfilter = "readings/#"\ntopic = "readings"\n[plugins.native]',
)
PASSES = "        return columns\n"
CAPITALS = (
    "        return columns._replace(values=[(each or b'').upper() for each in columns.values])\n"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> InstalledPlugin:
    return InstalledPlugin(tmp_path_factory.mktemp("plugin") / "made")


@pytest.fixture(scope="module")
def node(
    installed: InstalledPlugin, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeProcess]:
    config = CONFIG + "[plugins.sized]\nvalue_max_bytes = 1000\n"
    path = {"PYTHONPATH": f"{installed.folder}:{Path(__file__).parents[3]}"}
    with NodeProcess(tmp_path_factory.mktemp("node"), config, path) as node:
        yield node


def version_of(node: NodeProcess) -> str:
    rows = ask(node, "GET", "plugins").data
    return str(*(each["version"] for each in rows if each["name"] == "sized"))


async def test_new_code_between_two_records(node: NodeProcess, installed: InstalledPlugin) -> None:
    sent = 0
    async with aiomqtt.Client(hostname="127.0.0.1", port=node.mqtt_port) as client:

        async def publish() -> None:
            nonlocal sent
            await client.publish("readings/1", b"x%d" % sent, qos=1)
            sent += 1

        for _ in range(20):
            await publish()
        installed.version("0.2.0")
        installed.replace("interceptor", PASSES, CAPITALS)
        reload = asyncio.create_task(asyncio.to_thread(ask, node, "POST", RELOAD))
        while not reload.done():
            await publish()
        before = sent
        for _ in range(20):
            await publish()
    assert reload.result().json == {
        "node": "node-1", "plugin": "sized", "before": "0.1.0", "version": "0.2.0",
        "hooks": ["register_interceptors", "register_settings"],
    }  # fmt: skip
    with lakemq.connect(node.native) as native:
        values = [each.value or b"" for each in native.consume("readings")]
    # One after the other, each once, and never back to the old code.
    assert [int(value[1:]) for value in values] == list(range(sent))
    first = next(number for number, value in enumerate(values) if value.startswith(b"X"))
    assert 20 <= first <= before
    assert all(value.startswith(b"X") for value in values[first:])
    assert version_of(node) == "0.2.0"
    noted = [each for each in ask(node, "GET", "audit").data if "sized" in json.dumps(each)]
    assert (noted[0]["outcome"], noted[0]["before"], noted[0]["after"]) == (
        "done", "0.1.0", "0.2.0",
    )  # fmt: skip


def refused(node: NodeProcess, status: int, code: str, path: str = RELOAD) -> str:
    answered = ask(node, "POST", path)
    assert (answered.status, answered.json["code"]) == (status, code), answered.body
    return str(answered.json["detail"])


def test_code_that_fails_changes_nothing(node: NodeProcess, installed: InstalledPlugin) -> None:
    package, before = installed.package, version_of(node)
    kept = {path: path.read_text() for path in package.glob("*.py")}
    installed.version("0.3.0")

    installed.write("interceptor", "def half(:\n")
    assert "SyntaxError" in refused(node, 400, "PLUGIN")
    installed.write("interceptor", "import sys\nsys.exit('no')\n")
    assert "plugin sized: SystemExit: no" in refused(node, 400, "PLUGIN")
    installed.write("interceptor", kept[package / "interceptor.py"])

    installed.replace("plugin", "return [SizeLimit", "return 7, [SizeLimit")
    assert "is no Interceptor" in refused(node, 400, "PLUGIN")
    installed.write("plugin", kept[package / "plugin.py"] + STORAGE)
    assert "is a storage engine" in refused(node, 400, "PLUGIN")
    installed.write("plugin", kept[package / "plugin.py"])

    installed.replace("settings", "value_max_bytes", "value_most_bytes")
    assert "plugins.sized.value_max_bytes: unknown" in refused(node, 400, "CONFIG")
    # The configuration is still read with the old class.
    assert ask(node, "POST", "nodes/node-1/reload").json["applied"] == []
    installed.write("settings", kept[package / "settings.py"])

    assert version_of(node) == before
    assert refused(node, 400, "PLUGIN", "nodes/node-1/plugins/mqtt/reload").startswith(
        "plugin mqtt is a part of LakeMQ"
    )
    assert "no plugin 'none' is on" in refused(
        node, 404, "UNKNOWN_ENTRY", "nodes/node-1/plugins/none/reload"
    )


STORAGE = """
@hookimpl
def register_storage(context: PluginContext) -> object:
    return None
"""


def test_the_command_and_the_section_as_it_is_written_now(
    node: NodeProcess, installed: InstalledPlugin
) -> None:
    node.config_file.write_text(CONFIG + "[plugins.sized]\nvalue_max_bytes = 3\n")
    installed.version("0.4.0")
    asked = ["reload", "sized", "--admin", node.addresses["admin"]]
    told = CliRunner().invoke(plugin, [*asked, "--dry-run"])
    assert told.exit_code == 0 and told.output.startswith("would reload sized on node-1: 0.4.0")
    assert ask(node, "GET", "settings?q=value_max").data[0]["value"] == 1000
    told = CliRunner().invoke(plugin, asked)
    assert told.exit_code == 0 and told.output.startswith("reloaded sized on node-1: 0.4.0")
    (row,) = ask(node, "GET", "settings?q=value_max").data
    assert (row["value"], row["written"], row["pending"]) == (3, 3, "")
    told = CliRunner().invoke(plugin, ["reload", "none", "--admin", node.addresses["admin"]])
    assert told.exit_code == 4 and "no plugin 'none' is on" in told.output
