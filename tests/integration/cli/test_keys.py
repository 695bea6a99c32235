"""Goal: an operator makes, sees and revokes API keys by commands; scripts can take the key up."""

from __future__ import annotations

import json
from functools import cache

from typer.testing import CliRunner, Result

from lakemq.cli.commands import add_plugin_commands, app
from tests.support.node.admin_api import ask
from tests.support.node.node import NodeProcess, unique

_with_plugins = cache(add_plugin_commands)


def lakemq(node: NodeProcess, *words: str, token: str = "") -> Result:
    _with_plugins()
    where = ("--admin", node.addresses["admin"])
    return CliRunner().invoke(app, [*words, *where], env={"LAKEMQ_TOKEN": token})


def test_a_key_is_made_used_and_revoked(node: NodeProcess) -> None:
    purpose = unique("nightly backup")
    made = lakemq(node, "key", "create", purpose, "-r", "viewer", "-r", "viewer", "--expires", "2d")
    assert made.exit_code == 0, made.stderr
    # Standard output is the key and nothing else, for `TOKEN=$(lakemq key create ...)`.
    (token,) = made.stdout.splitlines()
    key_id = made.stderr.split()[2]
    assert made.stderr.startswith(f"lakemq: key {key_id} is good until 20")
    who = ask(node, "GET", "whoami", headers={"Authorization": f"Bearer {token}"}).json
    assert (who["name"], who["roles"]) == (f"key:{key_id}", ["viewer"])
    assert lakemq(node, "audit", "-n", "1", token=token).exit_code == 0
    (shown,) = json.loads(lakemq(node, "key", "list", "--match", purpose, "--json").stdout)
    assert (shown["id"], shown["roles"]) == (key_id, ["viewer"])
    assert abs(shown["expires_ms"] - shown["made_ms"] - 2 * 86_400_000) < 5_000
    assert shown["last_used_ms"] >= shown["made_ms"]
    heading, row = lakemq(node, "key", "list", "--match", purpose).stdout.splitlines()
    assert heading.split()[:2] == ["key", "for"] and row.startswith(key_id)
    for text in (made.stderr, row, json.dumps(shown)):
        assert token not in text
    revoked = lakemq(node, "key", "revoke", key_id)
    assert (revoked.exit_code, revoked.stdout) == (0, f"revoked {key_id}\n")
    assert lakemq(node, "audit", token=token).exit_code == 5
    assert lakemq(node, "key", "revoke", key_id).exit_code == 4
    assert lakemq(node, "key", "list", "--match", purpose, "--json").stdout == "[]\n"


def test_a_key_for_good_and_a_wrong_end(node: NodeProcess) -> None:
    made = lakemq(node, "key", "create", unique("for good"), "--json")
    found = json.loads(made.stdout)
    assert found["expires_ms"] is None and found["key"] not in made.stderr
    assert lakemq(node, "key", "revoke", found["id"]).exit_code == 0
    for expires in ("1y", "0.5d", "12"):
        wrong = lakemq(node, "key", "create", "x", "--expires", expires)
        assert wrong.exit_code == 2 and "12h or 30d" in wrong.stderr
    assert lakemq(node, "key", "create", "x", "--expires", "0h").exit_code == 1
