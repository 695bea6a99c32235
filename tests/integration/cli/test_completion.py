"""Goal: Tab completes commands and the names of the broker that runs, in a real shell; where no
broker answers a shell sees nothing, soon. Colours are for terminals that want them.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import add_plugin_commands, app
from tests.support.node.admin_api import ask
from tests.support.node.node import NodeProcess, unique
from tests.support.terminal import LAKEMQ, PLAIN, Terminal

COLOUR: Final = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")


@pytest.fixture
def names(client: lakemq.SyncClient) -> tuple[str, str]:
    """A topic, and a group that has committed in it."""
    topic, group = unique("completed-topic"), unique("completed-group")
    client.create_topic(topic)
    client.reset_offsets(group, {lakemq.TopicPartition(topic, 0): 0})
    return topic, group


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_in_bash(node: NodeProcess, names: tuple[str, str]) -> None:
    path = f"{LAKEMQ.parent}:{os.environ['PATH']}"
    shell = Terminal(
        "bash", "--norc", "--noprofile", "-i",
        environment={"PATH": path, "PS1": "", "LAKEMQ_BOOTSTRAP": node.native},
    )  # fmt: skip
    try:
        shell.type('eval "$(lakemq --show-completion bash)"; echo "rea""dy"\n')
        shell.read(until="ready")
        for typed, name in (("topic desc", "topic describe"), ("group delete completed-g", "")):
            shell.type(f"lakemq {typed}\t")
            shell.type('\x01echo "\x05"done""\n')  # to the line's begin, and to its end
            wanted = f"lakemq {name or f'group delete {names[1]}'} done"
            assert wanted.encode() in shell.read(until="done\r\n")
    finally:
        shell.end()


_with_plugins = cache(add_plugin_commands)


def complete(shell: str, line: str) -> str:
    """What `lakemq` tells the script of a shell in which this line is typed."""
    _with_plugins()
    asked = {
        "_LAKEMQ_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": f"lakemq {line}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    run = CliRunner().invoke(app, [], prog_name="lakemq", env=asked)
    assert run.stderr == ""
    return run.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_names_for_other_shells(shell: str, node: NodeProcess, names: tuple[str, str]) -> None:
    topic, group = names
    there = f"--bootstrap {node.native}"
    ask(node, "POST", f"schemas/{topic}-value", {"schema_type": "json-schema", "text": "{}"})
    for line, name in (
        (f"consume {there} {topic}", topic),
        (f"produce {there} completed-t", topic),
        (f"consume {topic} {there} --group completed-g", group),
        (f"group reset-offsets {there} {group} --topic completed-t", topic),
        (f"export {there} --topic completed-t", topic),
        (f"export status {there} --topic completed-t", topic),
        (f"schema get {there} {topic}", f"{topic}-value"),
        ("schema compatibility full-t", "full-transitive"),
        ("export --to ice", "iceberg"),
        ("export audit --to ", "parquet"),
        ("export --evolve w", "widen"),
        ("consume --from lat", "latest"),
        (f"consume {topic} --format js", "json"),
        ("produce --acks rep", "replicated"),
    ):
        assert name in complete(shell, line), line
    assert names[0] not in complete(shell, f"consume {there} completed-g")
    assert "__" not in complete(shell, f"topic describe {there} ")
    assert "version" in complete(shell, "ver")


def test_names_that_the_metaservice_keeps(node: NodeProcess, names: tuple[str, str]) -> None:
    topic, _ = names
    user, rule = unique("completed-user"), unique("completed-rule")
    there = f"--address {node.addresses['meta']}"
    ask(node, "POST", "users", {"name": user, "password": "secret-99"})
    rule_of = {"who": [f"user:{user}"], "operations": ["read"], "resource": "topic:x", "id": rule}
    made = ask(node, "POST", "rules", rule_of)
    ask(node, "PUT", f"quotas/user:{user}", {"records_per_s": 7})
    (key,) = (ask(node, "POST", "keys", {"says": "completed"}).json["id"],)
    for line, name in (
        (f"node drain {there} no", "node-1"),
        (f"meta transfer {there} no", "node-1"),
        (f"meta remove {there} ", "node-1"),
        (f"partition move {topic}/0 {there} --to ", "node-1"),
        (f"partition move {topic}/0 {there} --to other,n", "other,node-1"),
        (f"partition elect {there} {topic}", f"{topic}/0"),
        (f"partition list {there} --topic completed-t", topic),
        (f"user passwd {there} completed-u", user),
        (f"user delete {there} ", user),
        (f"acl test {there} -o read -r topic:x --user completed-u", user),
        (f"acl delete {there} completed-r", made.json["ids"][0]),
        (f"quota delete {there} user:completed-u", f"user:{user}"),
    ):
        assert name in complete("fish", line), line
    # No user of its own, though it is kept beside them.
    assert key not in complete("fish", f"user delete {there} ")
    assert topic not in complete("fish", f"partition list {there} --topic node")
    assert "__" not in complete("fish", f"partition list {there} --topic ")


def test_names_that_the_admin_api_tells(node: NodeProcess, names: tuple[str, str]) -> None:
    there = f"--admin {node.addresses['admin']}"
    made = ask(node, "POST", "keys", {"says": unique("completed")}).json["id"]
    banned = unique("completed-client")
    ask(node, "POST", "mqtt/bans", {"kind": "client_id", "value": banned, "seconds": 60})
    for line, name in (
        (f"config diff {there} --node no", "node-1"),
        (f"config get {there} topics.reten", "topics.retention_ms"),
        (f"key revoke {there} {made[:2]}", made),
        (f"mqtt unban {there} client_id completed-c", banned),
        (f"ledger {there} completed-t", names[0]),
    ):
        assert name in complete("fish", line), line


def test_users_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    for user in ("ann", "ben"):
        made = CliRunner().invoke(
            app, ["user", "add", user, "--file", str(file), "--password-stdin"], input="secret-9\n"
        )
        assert made.exit_code == 0, made.stderr
    assert complete("fish", f"user delete --file {file} a").split() == ["ann"]
    file.write_text("nonsense\n")
    assert complete("fish", f"user delete --file {file} a").strip() == ""


def test_no_broker_is_no_name_and_no_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert complete("fish", f"topic describe --bootstrap {address} a").strip() == ""
        assert time.monotonic() - began < 8
        for line in (
            f"node drain --address {address} a",
            f"config diff --admin {address} --node a",
        ):
            began = time.monotonic()
            assert complete("fish", line).strip() == ""
            assert time.monotonic() - began < 8
    assert complete("fish", "topic describe --bootstrap 127.0.0.1:1 a").strip() == ""
    for line in (
        "meta remove --address 127.0.0.1:1 a", "user delete --address nonsense --tls-ca /none a",
        "mqtt kick --admin 127.0.0.1:1 a", "mqtt kick --admin nonsense --tls-ca /none a",
    ):  # fmt: skip
        assert complete("fish", line).strip() == "", line
    assert complete("fish", "topic describe --bootstrap nonsense --tls-ca /none a").strip() == ""


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_on_a_terminal(environment: dict[str, str], coloured: bool) -> None:
    terminal = Terminal(str(LAKEMQ), "version", "--help", environment=environment)
    try:
        printed = terminal.read()
    finally:
        terminal.end()
    assert b"Print the version" in printed
    assert (COLOUR.search(printed) is not None) == coloured
    assert coloured or "TERM" not in environment or b"\x1b" not in printed


def test_no_colours_in_a_pipe() -> None:
    environment = {**PLAIN, "TERM": "xterm"}
    run = subprocess.run(
        [LAKEMQ, "version", "--help"], env=environment, capture_output=True, check=True
    )
    assert b"Print the version" in run.stdout and b"\x1b" not in run.stdout
