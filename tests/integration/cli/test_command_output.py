"""Goal: every command obeys `--output json`, and ends with the code that docs/cli.md tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer
from click import Command
from typer.testing import CliRunner

from lakemq.cli.commands import add_plugin_commands, app
from tests.support.node.node import NodeProcess, unique

ELSEWHERE: Final = {
    "start": "tests/integration/node/test_command.py",
    "bench": "tests/integration/cli/test_bench.py",
    "cluster demo": "starts nodes",
    "dashboard": "serves until it is ended",
    "doctor": "tests/unit/test_doctor.py",
    "export": "needs Spark",
    "meta restore": "takes a folder",
    "top": "tests/integration/cli/test_top.py",
}
"""Not run here, and why."""
BROKER, META, ADMIN, NONE = "bootstrap", "address", "admin", ""
SCHEMA: Final = '{"type": "object"}'


@cache
def command() -> Command:
    add_plugin_commands()
    return typer.main.get_command(app)


def leaves(at: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(at, "commands", {}).items():
        yield from leaves(each, (*words, name))
    if not getattr(at, "commands", {}) or at.invoke_without_command:
        yield " ".join(words), at


def test_every_command_has_the_option() -> None:
    found = dict(leaves(command()))
    without = [
        name
        for name, each in found.items()
        if not {"--output", "--json"} <= {opt for param in each.params for opt in param.opts}
    ]
    assert without == []
    assert {"topic create", "mqtt clients", "journal verify", "export audit"} <= set(found)


def test_each_command_prints_json_and_nothing_else(node: NodeProcess, tmp_path: Path) -> None:
    where = {
        BROKER: ("--bootstrap", node.native),
        META: ("--address", node.addresses["meta"]),
        ADMIN: ("--admin", node.addresses["admin"]),
        NONE: (),
    }
    schema = tmp_path / "s.json"
    schema.write_text(SCHEMA)
    config = tmp_path / "node.toml"
    config.write_text("[plugins.mqtt]\nport = 1\n")
    name, user, where_from = unique("output"), unique("user"), str(node.data_dir)
    calls: list[tuple[str, str, int, tuple[str, ...]]] = [
        ("version", NONE, 0, ()),
        ("plugin list", NONE, 0, ()),
        ("plugin resume", ADMIN, 0, ("mqtt",)),
        ("plugin resume", ADMIN, 4, (unique("none"),)),
        ("proto", NONE, 0, (str(tmp_path / "proto"),)),
        ("plugin reload", ADMIN, 4, ("none",)),
        ("plugin replay", BROKER, 2, ("none", "--topic", unique("none"))),
        ("plugin new", NONE, 0, ("output", "--folder", str(tmp_path / "plugin"))),
        ("config check", NONE, 0, ("-c", str(config))),
        ("config show", ADMIN, 0, ("--match", "retention")),
        ("config diff", ADMIN, 0, ()),
        ("config reload", ADMIN, 0, ("--dry-run",)),
        ("init", NONE, 0, (str(tmp_path / "made.toml"),)),
        ("init", NONE, 1, (str(config),)),
        ("config set", ADMIN, 0, ("topics.retention_ms", "604800000", "--scope", "node=none")),
        ("config set", ADMIN, 1, ("topics.retention_ms", "x")),
        ("config list", ADMIN, 0, ()),
        ("config get", ADMIN, 0, ("topics.retention_ms",)),
        ("config get", ADMIN, 4, ("topics.none",)),
        ("config unset", ADMIN, 0, ("topics.retention_ms", "--scope", "node=none")),
        ("config unset", ADMIN, 4, ("topics.retention_ms", "--scope", "node=none")),
        ("topic create", BROKER, 0, (name, "-p", "2")),
        ("topic create", BROKER, 1, (name,)),
        ("topic list", BROKER, 0, ()),
        ("topic describe", BROKER, 0, (name,)),
        ("topic describe", BROKER, 4, (unique("none"),)),
        ("topic alter", BROKER, 0, (name, "-c", "retention_ms=1000000000")),
        ("topic alter", BROKER, 2, (name,)),
        ("topic add-partitions", BROKER, 0, (name, "3")),
        ("produce", BROKER, 0, (name, "-v", "21.5", "-k", "a")),
        ("consume", BROKER, 0, (name,)),
        ("topic delete-records", BROKER, 0, (name, "--before", "latest", "--yes")),
        ("group list", BROKER, 0, ()),
        ("group reset-offsets", BROKER, 0, (name, "--topic", name, "--to", "earliest")),
        ("group describe", BROKER, 0, (name,)),
        ("group delete", BROKER, 0, (name, "--yes")),
        ("queue alter", BROKER, 0, (name, "--topic", name, "--lock-ms", "2000")),
        ("queue list", BROKER, 0, ()),
        ("queue describe", BROKER, 0, (name, "--topic", name)),
        ("queue describe", BROKER, 4, (unique("none"), "--topic", name)),
        ("queue reset", BROKER, 0, (name, "--topic", name, "--to", "latest")),
        ("queue delete", BROKER, 0, (name, "--topic", name, "--yes")),
        ("schema check", BROKER, 0, (name, str(schema))),
        ("schema register", BROKER, 0, (name, str(schema))),
        ("schema list", BROKER, 0, ()),
        ("schema get", BROKER, 0, (name,)),
        ("schema compatibility", BROKER, 0, ("full", "--subject", name)),
        ("schema delete", BROKER, 0, (name, "--yes")),
        ("transaction list", BROKER, 0, ()),
        ("transaction abort", BROKER, 2, ("neither", name)),
        ("transaction delete", BROKER, 2, ("neither", name, "--yes")),
        ("schedule list", BROKER, 0, ()),
        ("schedule cancel", BROKER, 4, (unique("none"),)),
        ("cluster describe", BROKER, 0, ()),
        ("cluster advice", META, 0, ()),
        ("cluster rebalance", META, 0, ("--plan",)),
        ("cluster rebalance", META, 2, ("--plan", "--stop")),
        ("node list", META, 0, ()),
        ("node drain", META, 4, (unique("none"),)),
        ("node undrain", META, 4, (unique("none"),)),
        ("node remove", META, 4, (unique("none"),)),
        ("node decommission", META, 4, (unique("none"),)),
        ("partition list", META, 0, ("--topic", name)),
        ("partition move", META, 4, (f"{unique('none')}/0", "--to", "node-1")),
        ("partition elect", META, 0, (f"{name}/0",)),
        ("meta status", META, 0, ()),
        ("meta members", META, 0, ()),
        ("meta digest", META, 0, ()),
        ("meta snapshot", META, 0, ()),
        ("meta backup", META, 0, (str(tmp_path / "backup"),)),
        ("meta verify", NONE, 0, (str(tmp_path / "backup"),)),
        ("meta verify", NONE, 1, (str(config),)),
        ("meta transfer", META, 3, ("nobody",)),
        ("meta promote", META, 1, ("nobody",)),
        ("meta remove", META, 1, ("nobody",)),
        ("user add", META, 0, (user, "--role", "r", "--password-stdin")),
        ("user passwd", META, 0, (user, "--password-stdin")),
        ("user roles", META, 0, (user, "--role", "s")),
        ("user list", META, 0, ()),
        ("user delete", META, 0, (user,)),
        ("user delete", META, 4, (user,)),
        ("key create", ADMIN, 0, (user, "--role", "r", "--expires", "30d")),
        ("key create", ADMIN, 2, (user, "--expires", "1y")),
        ("key list", ADMIN, 0, ()),
        ("key revoke", ADMIN, 4, (unique("none"),)),
        ("acl add", META, 0, _rule(user)),
        ("acl list", META, 0, ()),
        ("acl test", META, 0, ("-o", "read", "-r", "topic:x", "--user", user)),
        ("acl delete", META, 0, (user,)),
        ("quota set", META, 0, (f"user:{user}", "--records-per-s", "10")),
        ("quota list", META, 0, ()),
        ("quota delete", META, 0, (f"user:{user}",)),
        ("audit", ADMIN, 0, ("-n", "1")),
        ("ledger", ADMIN, 0, ()),
        ("status", ADMIN, 0, ()),
        ("explain", ADMIN, 1, ("--topic-name", unique("none"))),
        ("bridge status", ADMIN, 0, ()),
        ("mqtt clients", ADMIN, 0, ()),
        ("mqtt client", ADMIN, 4, (unique("none"),)),
        ("mqtt kick", ADMIN, 4, (unique("none"),)),
        ("mqtt slow", ADMIN, 0, ("--clear",)),
        ("mqtt ban", ADMIN, 0, ("client_id", user, "--seconds", "60")),
        ("mqtt bans", ADMIN, 0, ()),
        ("mqtt unban", ADMIN, 0, ("client_id", user)),
        ("journal verify", NONE, 0, (where_from, "--topic", name)),
        ("journal stats", NONE, 0, (where_from, "--topic", name)),
        ("journal dump", NONE, 2, (str(tmp_path / "none"),)),
        ("export audit", BROKER, 2, ("--topic", name, "--to", "delta")),
        ("export status", BROKER, 0, ("--topic", name)),
        ("export status", BROKER, 2, ("--path", "p")),
        ("export status", BROKER, 2, ("--to", "delta")),
        ("export vacuum", NONE, 2, ("--to", "delta")),
        ("dlq replay", BROKER, 2, ("--topic", name, "--to", "delta")),
        ("topic delete", BROKER, 0, (name, "--yes")),
    ]
    every = {name for name, _ in leaves(command())}
    wrong = {}
    for words, place, code, arguments in calls:
        run = CliRunner().invoke(
            app, [*words.split(), *arguments, *where[place], "--output", "json"], input="secret-9\n"
        )
        problem = _problem(run.exit_code, run.stdout, run.stderr, code)
        if problem:
            wrong[" ".join((words, *arguments))] = problem
    assert not wrong, "\n".join(f"{words}: {problem}" for words, problem in wrong.items())
    assert every - {name for name, *_ in calls} == set(ELSEWHERE)


def _rule(user: str) -> tuple[str, ...]:
    return ("-w", f"user:{user}", "--operation", "read", "-r", "topic:x", "--id", user)


def _problem(exit_code: int, stdout: str, stderr: str, code: int) -> str:
    try:
        printed = [json.loads(line) for line in stdout.splitlines()]
        told = [json.loads(line) for line in stderr.splitlines()[-1:]] if code else []
    except ValueError as error:
        return f"{error}: {stdout}{stderr}"
    if exit_code != code:
        return f"exit code {exit_code} in place of {code}: {stdout}{stderr}"
    if code and not (printed or told[0]["exit_code"] == code):
        return f"says not why: {stderr}"
    if not code and not printed:
        return "prints nothing"
    return ""


def test_no_answer_is_an_exit_code_of_its_own(node: NodeProcess) -> None:
    command()
    for words in (
        ("topic", "list", "--bootstrap", "127.0.0.1:1"),
        ("mqtt", "clients", "--admin", "127.0.0.1:1"),
        ("node", "list", "--address", "127.0.0.1:1"),
    ):
        run = CliRunner().invoke(app, [*words])
        assert (run.exit_code, run.stdout) == (3, ""), (words, run.stderr)
        assert run.stderr.startswith("lakemq: ")
