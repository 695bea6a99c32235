"""Goal: three nodes, each with a vote in the MetaService, are administered from any of them: who
leads, who is a member, a backup of the catalog, settings that all follow."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakemq.cli.commands import app
from tests.support.node.admin_api import ask
from tests.support.node.node import NodeProcess, unique
from tests.support.node.ports import free_ports

Nodes = dict[str, NodeProcess]
NAMES = ("a", "b", "c")
CONFIG = """
[node]
id = "{name}"
[meta]
port = {meta_port}
raft_port = {raft_port}
members = {{ {members} }}
[admin]
port = {admin_port}
[plugins.mqtt]
enabled = false
[plugins.native]
port = 0
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder, ports = tmp_path_factory.mktemp("three"), free_ports(9)
    members = ", ".join(
        f'{name} = "127.0.0.1:{port}"' for name, port in zip(NAMES, ports, strict=False)
    )
    found = {
        name: NodeProcess(
            folder / name,
            CONFIG.format(
                name=name, members=members, raft_port=ports[at], meta_port=ports[3 + at],
                admin_port=ports[6 + at],
            ),
        )
        for at, name in enumerate(NAMES)
    }  # fmt: skip
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda node: node.start(), found.values()))
        yield found
    finally:
        for node in found.values():
            node.kill()


def members(node: NodeProcess) -> dict[str, str]:
    """As an operator's command has them from that node."""
    run = CliRunner().invoke(
        app, ["meta", "members", "--address", node.addresses["meta"], "--json"]
    )
    found: dict[str, str] = json.loads(run.stdout)["members"]
    return {name: role or "voter" for name, role in found.items()}


def leader(node: NodeProcess) -> str | None:
    return next((name for name, role in members(node).items() if role == "leader"), None)


def until(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 60
    while not wanted(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_leadership_goes_where_the_api_says(nodes: Nodes) -> None:
    before = until(lambda: leader(nodes["a"]), bool)
    wanted, asked = (name for name in NAMES if name != before)
    rows = ask(nodes[asked], "GET", "meta/members").data
    assert {each["member"]: each["role"] for each in rows} == members(nodes[asked])
    would = ask(nodes[asked], "POST", "meta/transfer?dry_run=true", {"member": wanted})
    assert (would.status, would.json) == (200, {"before": before, "wanted": wanted})
    assert leader(nodes[asked]) == before
    done = ask(nodes[asked], "POST", "meta/transfer", {"member": wanted})
    assert (done.status, done.json) == (202, {"before": before, "wanted": wanted})
    for name in NAMES:
        until(lambda name=name: leader(nodes[name]), lambda found: found == wanted)
    (noted,) = ask(nodes[asked], "GET", "audit?q=meta/transfer&limit=1").data
    assert (noted["outcome"], noted["before"], noted["node"]) == ("done", before, asked)
    refused = ask(nodes[asked], "POST", "meta/transfer", {"member": wanted})
    assert (refused.status, refused.json["code"]) == (400, "INVALID_REQUEST")
    unknown = ask(nodes[asked], "POST", "meta/transfer", {"member": "z"})
    assert (unknown.status, unknown.json["code"]) == (404, "UNKNOWN_NODE")


def download(node: NodeProcess, file: Path) -> str:
    """The name that the file was given."""
    request = urllib.request.Request(
        f"http://{node.addresses['admin']}/api/v1/meta/backup", b"{}", method="POST",
        headers={"Content-Type": "application/json", "Idempotency-Key": "again"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as answer:
        file.write_bytes(answer.read())
        assert answer.headers["Content-Length"] == str(file.stat().st_size)
        return str(answer.headers["Content-Disposition"])


def test_a_downloaded_backup_is_whole_and_can_be_restored(nodes: Nodes, tmp_path: Path) -> None:
    made = unique("backed-up")
    ask(nodes["a"], "POST", "topics", {"name": made})
    for name in NAMES:  # by the leader, and through those that are not
        file = tmp_path / f"{name}.backup"
        assert download(nodes[name], file).startswith('attachment; filename="catalog-2')
        checked = CliRunner().invoke(app, ["meta", "verify", str(file), "--json"])
        assert checked.exit_code == 0, checked.stderr
        found = json.loads(checked.stdout)
        assert found["bytes"] == file.stat().st_size - 68
        assert found["cluster"] == ask(nodes[name], "GET", "cluster").json["cluster_id"]
        assert made.encode() in file.read_bytes()
    (noted,) = ask(nodes["c"], "GET", "audit?node=c&q=meta/backup&limit=1").data
    assert noted["outcome"] == "done" and noted["after"]["bytes"] == file.stat().st_size
    restored = CliRunner().invoke(app, ["meta", "restore", str(file), str(tmp_path / "data")])
    assert restored.exit_code == 0, restored.stderr
    data = bytearray(file.read_bytes())
    for at in (len(data) // 2, 20, 3):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        wrong = CliRunner().invoke(app, ["meta", "verify", str(file)])
        assert wrong.exit_code == 1 and wrong.stderr.startswith("lakemq: "), at
    file.write_bytes(data[:-1])
    assert CliRunner().invoke(app, ["meta", "verify", str(file)]).exit_code == 1


def test_settings_changed_while_a_node_was_away_are_in_use_when_it_is_back(nodes: Nodes) -> None:
    cluster, own = "dynamic-settings/cluster", "dynamic-settings/node="
    kept, gone = "topics.segment_age_max_ms", "topics.retention_ms"

    def state(name: str) -> dict[str, tuple[object, str]]:
        found = ask(nodes[name], "GET", f"settings?node={name}&q=topics.&limit=500")
        if found.status != 200:
            return {}
        shown = {each["setting"]: (each["value"], each["source"]) for each in found.data}
        return {setting: shown[setting] for setting in (kept, gone)}

    def follow(name: str, *wanted: tuple[object, str]) -> None:
        until(lambda: state(name), lambda found: tuple(found.values()) == wanted)

    default = state("a")[gone]
    away = until(lambda: leader(nodes["a"]), bool)  # so that the MetaService elects another, too
    here, other = (name for name in NAMES if name != away)
    for setting, value in ((kept, 70_000), (gone, 3_600_000)):
        assert ask(nodes[away], "PUT", f"{cluster}/{setting}", {"value": value}).status == 200
    for name in NAMES:
        follow(name, (70_000, "cluster"), (3_600_000, "cluster"))
    nodes[away].kill()
    try:
        for method, path, body in (
            ("PUT", f"{cluster}/{kept}", {"value": 80_000}),
            ("PUT", f"{own}{other}/{kept}", {"value": 90_000}),
            ("DELETE", f"{cluster}/{gone}", None),
        ):
            until(
                lambda method=method, path=path, body=body: ask(nodes[here], method, path, body),
                lambda found: found.status == 200,
            )
        follow(here, (80_000, "cluster"), default)
        follow(other, (90_000, f"node={other}"), default)
    finally:
        nodes[away].start()
    # Not what it knew when it died.
    follow(away, (80_000, "cluster"), default)
    made = unique("dynamic")
    until(
        lambda: ask(nodes[away], "POST", "topics", {"name": made}), lambda done: done.status == 201
    )
    config = ask(nodes[away], "GET", f"topics/{made}").json["config"]
    assert config["segment_age_max_ms"] == 80_000
    for path in (f"{cluster}/{kept}", f"{own}{other}/{kept}"):
        assert ask(nodes[here], "DELETE", path).status == 200


def test_a_member_is_removed(nodes: Nodes) -> None:
    """The last one: from here on there are two."""
    leaves = until(lambda: leader(nodes["a"]), bool)  # it hands its leadership over first
    asked, other = (name for name in NAMES if name != leaves)
    path = f"meta/members/{leaves}"
    would = ask(nodes[asked], "DELETE", f"{path}?dry_run=true")
    assert (would.status, would.json) == (200, {"voters": sorted((asked, other))})
    assert set(members(nodes[asked])) == set(NAMES)
    voter = ask(nodes[asked], "POST", f"{path}/promote")
    assert (voter.status, voter.json["code"]) == (400, "INVALID_REQUEST")
    done = ask(nodes[asked], "DELETE", path)
    assert (done.status, done.json) == (200, {"voters": sorted((asked, other))}), done
    for name in (asked, other):
        until(lambda name=name: set(members(nodes[name])), lambda found: found == {asked, other})
    assert ask(nodes[asked], "DELETE", path).json["code"] == "UNKNOWN_NODE"
    audited = ask(nodes[asked], "GET", f"audit?node={asked}&q=DELETE%20meta").data
    assert [(each["outcome"], each["resource"], each["before"]) for each in audited] == [
        ("UNKNOWN_NODE", leaves, None), ("done", leaves, list(NAMES)),
    ]  # fmt: skip
