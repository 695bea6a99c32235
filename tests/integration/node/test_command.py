"""Goal: the `lakemq` command reads well; what goes wrong is one clear line and exit 1."""

from __future__ import annotations

import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from lakemq.cli.commands import add_plugin_commands, app
from tests.support.node.node import PORTS_FREE, NodeProcess


class Said(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    stdout: str
    stderr: str


def process(*words: str, stdin: str = "") -> Said:
    """In a process of its own, as a user has it."""
    run = subprocess.run(
        [sys.executable, "-m", "lakemq", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Said(run.returncode, run.stdout, run.stderr)


@cache
def with_plugins() -> typer.Typer:
    add_plugin_commands()
    return app


def lakemq(*words: str, stdin: str = "") -> Said:
    """In this process, which needs no second for its imports."""
    run = CliRunner().invoke(with_plugins(), words, input=stdin, prog_name="lakemq")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
    return Said(run.exit_code, run.stdout, run.stderr)


def failure(*words: str, code: int = 1) -> str:
    """The one line that a failing command says. A node sets up the whole process' logging."""
    said = process(*words) if words[0] == "start" else lakemq(*words)
    assert said.code == code, said
    assert said.stderr.count("\n") == 1, said.stderr
    return said.stderr.strip()


def test_help_names_every_command() -> None:
    run = process("--help")
    assert run.code == 0
    for name in ("start", "topic", "produce", "consume", "export", "plugin", "config", "version"):
        assert f" {name} " in run.stdout


def test_version() -> None:
    assert process("version").stdout.startswith("lakemq 0.")


def test_topics_produce_consume(node: NodeProcess) -> None:
    at = ("--bootstrap", node.native)
    made = lakemq("topic", "create", "cli", "-p", "2", *at).stdout
    assert "created cli with 2 partition(s)" in made
    run = process("produce", "cli", "--key-separator", ":", *at, stdin="a:1\nb:2\nplain\n")
    assert "3 record(s) stored, acks=leader" in run.stderr
    out = lakemq("consume", "cli", *at).stdout
    assert sorted(out.split()) == ["1", "2", "plain"]
    out = lakemq("consume", "cli", "--json", "-n", "1", *at).stdout
    assert '"offset": 0' in out and out.count("\n") == 1
    listed = lakemq("topic", "list", *at).stdout
    assert any(line.split()[:3] == ["cli", "2", "3"] for line in listed.splitlines())
    described = lakemq("topic", "describe", "cli", *at).stdout
    assert "online" in described and "retention_ms=604800000" in described
    assert "deleted cli" in lakemq("topic", "delete", "cli", "--yes", *at).stdout
    assert failure("topic", "describe", "cli", *at, code=4) == (
        "lakemq: topic 'cli' does not exist"
    )


def test_no_broker(node: NodeProcess) -> None:
    assert "no answer from the broker at 127.0.0.1:1" in failure(
        "topic", "list", "--bootstrap", "127.0.0.1:1", code=3
    )


def test_plugin_list() -> None:
    out = lakemq("plugin", "list").stdout
    rows = {line.split()[0]: line for line in out.splitlines()[1:] if line.strip()}
    assert " on " in rows["mqtt"] and "listeners" in rows["mqtt"]
    assert "storage" in rows["journal"]


def test_config_check(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text("[plugins.mqtt]\nport = 1\n")
    said = lakemq("config", "check", "-c", str(file)).stdout
    assert "ok; plugins on: admin, bridge, journal, ledger, mqtt, native" in said
    file.write_text("[plugins.mqtt]\nprot = 1\n")
    assert failure("config", "check", "-c", str(file), code=2).endswith(
        "lakemq.toml:2: plugins.mqtt.prot: unknown setting; did you mean 'port'?"
    )
    checked = failure("config", "check", "-c", str(file), code=2)
    assert failure("start", "-c", str(file), code=2) == checked


@pytest.mark.parametrize("section", ["meta", "admin", "plugins.mqtt", "plugins.native"])
def test_a_taken_port(section: str, tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(PORTS_FREE.replace(f"[{section}]\nport = 0", f"[{section}]\nport = {port}"))
        said = failure("start", "-c", str(file), "-d", str(tmp_path / "data"))
    assert f":{port}" in said


def test_a_locked_data_folder(node: NodeProcess, tmp_path: Path) -> None:
    said = failure("start", "-c", str(node.config_file), "-d", str(node.data_dir))
    assert said == f"lakemq: data folder {node.data_dir} is in use by process {node.pid}"


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = failure("start", "-d", str(tmp_path / "file"))
    assert f"data folder {tmp_path / 'file'}: " in said


def test_another_nodes_data_folder(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        data = node.data_dir
    file = tmp_path / "other.toml"
    file.write_text(PORTS_FREE + '\n[node]\nid = "other"\n')
    said = failure("start", "-c", str(file), "-d", str(data))
    assert "belongs to node 'node-1', this is 'other'" in said


def test_no_storage_plugin(tmp_path: Path) -> None:
    file = tmp_path / "lakemq.toml"
    file.write_text(PORTS_FREE + "[plugins.journal]\nenabled = false\n")
    said = failure("start", "-c", str(file), "-d", str(tmp_path / "data"))
    assert said == "lakemq: exactly one storage plugin must be on; on: none is"


def test_a_node_stops_cleanly_when_told(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path).start()
    assert node.stop() == 0
    assert "Traceback" not in node.log_file.read_text()


SPARK = ("pyspark", "py4j", "pyarrow", "deltalake", "pyiceberg", "pandas")


def test_starting_imports_no_spark() -> None:
    code = (
        "import lakemq.cli.commands, lakemq.node, sys;"
        f"print(*[name for name in {SPARK!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_node_that_is_ready_has_not_imported_what_may_come_later(tmp_path: Path) -> None:
    """Each of them is 2 to 200 ms of CPU, of which a node that starts has 500. Nor has it looked
    for garbage, which takes some 20."""
    heavy = (
        *SPARK, "numpy", "aiohttp", "jwt", "cryptography", "obstore", "websockets", "jinja2",
        "prometheus_client", "opentelemetry.exporter", "opentelemetry.sdk.trace", "pysyncobj",
        "rich", "lakemq.cli.commands", "lakemq.spark_plugin", "lakemq.plugins.native.sdk",
        "lakemq.plugins.mqtt.ops.commands", "lakemq.plugins.journal.tools.commands",
        "lakemq.plugins.admin.http.server", "lakemq.plugins.admin.dashboard.child",
        "lakemq.plugins.admin.api.service", "lakemq.plugins.admin.resources.all",
        "lakemq.plugins.mqtt.ops.admin", "lakemq.plugins.native.groups.routes",
        "lakemq.plugins.native.groups.export_routes", "lakemq.plugins.native.queues.admin_routes",
        "lakemq.plugins.ledger.routes", "lakemq.broker_core.administration.operations",
        "lakemq.broker_core.administration.meta_group",
        "lakemq.broker_core.security.authn.tokens",
        "lakemq.broker_core.security.authn.http_callback",
        "lakemq.broker_core.security.authz.http_rules",
    )  # fmt: skip
    code = (
        "import gc, lakemq.service_manager, os, sys;"
        f"heavy = {heavy!r};"
        "collected = lambda: sum(each['collections'] for each in gc.get_stats());"
        "before = collected();"
        "lakemq.service_manager.notify = lambda text: ("
        "print('imported:', *[name for name in heavy if name in sys.modules], flush=True),"
        "print('collections:', collected() - before, flush=True),"
        " os._exit(0));"
        "from lakemq.cli.main import main;"
        "main()"
    )
    (tmp_path / "lakemq.toml").write_text(PORTS_FREE)
    words = ["start", "-c", str(tmp_path / "lakemq.toml"), "-d", str(tmp_path / "data")]
    run = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-3:] == ["ready", "imported:", "collections: 0"]
