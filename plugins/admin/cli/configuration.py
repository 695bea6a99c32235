"""`lakemq config show`, `diff`, `reload`, `set`, `unset`, `get` and `list`: the configuration of
nodes that run."""

from __future__ import annotations

import json
import tomllib
from typing import Annotated, Any
from urllib.parse import quote

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    ExitCode,
    fail,
    option_groups,
    print_table,
    progress,
    say,
)
from lakemq.broker_core.api.command_line.completion import listed_names
from lakemq.plugins.admin.cli.asking import listed

configuration = typer.Typer()
_NODES = listed_names("nodes", "node")
Node = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="NODE",
        help="Of this node; else of the one that is asked.",
        autocompletion=_NODES,
    ),
]
OneNode = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="NODE",
        help="Of this node alone; else of all nodes.",
        autocompletion=_NODES,
    ),
]


Setting = Annotated[
    str,
    typer.Argument(
        metavar="SETTING",
        help="Like topics.retention_ms.",
        autocompletion=listed_names("settings", "setting"),
    ),
]
Scope = Annotated[
    str, typer.Option("--scope", metavar="SCOPE", help="cluster, or node=ID for one node.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check it, and change nothing.")]


@configuration.command("show")
@option_groups
def show(
    every: Annotated[
        bool, typer.Option("--effective", help="All settings, defaults included.")
    ] = False,
    text: Annotated[str, typer.Option("--match", help="A text in the setting's name.")] = "",
    of: OneNode = "",
    *,
    node: AdminOptions,
) -> None:
    """Show settings that are in use and where they are from.

    Without `--effective`: those that are not the default.
    """
    found = listed(node, "settings", {"changed": str(not every).lower(), "q": text, "node": of})
    _print(found)


def _print(found: list[dict[str, Any]]) -> None:
    rows = [
        (each["node"], each["setting"], _shown(each["value"]), each["source"], each["reloadable"],
         each["pending"] or None)
        for each in found
    ]  # fmt: skip
    print_table(("node", "setting", "value", "source", "reloadable", "needs"), rows, data=found)


@configuration.command("get")
@option_groups
def get(setting: Setting, of: OneNode = "", *, node: AdminOptions) -> None:
    """Show one setting: what nodes use, and where it is from."""
    found = listed(node, "settings", {"q": setting, "node": of})
    exact = [each for each in found if each["setting"] == setting]
    if not exact:
        fail(f"no node has a setting {setting}", ExitCode.UNKNOWN)
    _print(exact)


@configuration.command("list")
@option_groups
def list_dynamic(*, node: AdminOptions) -> None:
    """List dynamic settings, which `lakemq config set` made.

    Problem: why the node that is asked does not use it.
    """
    found = listed(node, "dynamic-settings", {})
    rows = [
        (each["setting"], _shown(each["value"]), each["scope"], each["problem"] or None)
        for each in found
    ]
    print_table(("setting", "value", "scope", "problem"), rows, data=found)


@configuration.command("set")
@option_groups
def set_dynamic(
    setting: Setting,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="As TOML has it, or a text.")],
    scope: Scope = "cluster",
    dry_run: DryRun = False,
    *,
    node: AdminOptions,
) -> None:
    """Set a setting on all nodes or on one, at once and until `unset`.

    It comes before the files of the nodes, and survives restarts. Only what a reload can change
    can be set: `lakemq config show --effective` tells which.
    """
    path = f"{_path(scope, setting)}?dry_run={str(dry_run).lower()}"
    done = json.loads(ask_admin(node, path, "PUT", {"value": _value(value)}))
    would = "would set" if dry_run else "set"
    say(f"{would} {setting} = {_shown(done['value'])} for {scope}", **done, dry_run=dry_run)


@configuration.command("unset")
@option_groups
def unset_dynamic(
    setting: Setting, scope: Scope = "cluster", dry_run: DryRun = False, *, node: AdminOptions
) -> None:
    """Give a setting back to the files of the nodes."""
    path = f"{_path(scope, setting)}?dry_run={str(dry_run).lower()}"
    done = json.loads(ask_admin(node, path, "DELETE"))
    would = "would unset" if dry_run else "unset"
    say(f"{would} {setting} for {scope}", **done, dry_run=dry_run)


def _path(scope: str, setting: str) -> str:
    return f"api/v1/dynamic-settings/{quote(scope, safe='')}/{quote(setting, safe='')}"


def _value(text: str) -> object:
    """A number, a flag or a quoted text as TOML has it; else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@configuration.command("diff")
@option_groups
def diff(of: OneNode = "", *, node: AdminOptions) -> None:
    """Show settings that are written otherwise than they are used, and whether a reload or a
    restart puts them into use."""
    found = listed(node, "settings", {"pending": "true", "node": of})
    rows = [
        (each["node"], each["setting"], _shown(each["value"]), each["source"],
         _shown(each["written"]), each["written_source"], each["pending"])
        for each in found
    ]  # fmt: skip
    headings = ("node", "setting", "in use", "from", "written", "in", "needs")
    print_table(headings, rows, data=found)


@configuration.command("reload")
@option_groups
def reload(
    of: Node = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")
    ] = False,
    *,
    node: AdminOptions,
) -> None:
    """Have a node read its configuration again, and use what it can without a restart.

    A file that is wrong changes nothing: the error names its line.
    """
    name = of or json.loads(ask_admin(node, "api/v1/node"))["node_id"]
    path = f"api/v1/nodes/{quote(name, safe='')}/reload?dry_run={str(dry_run).lower()}"
    done = json.loads(ask_admin(node, path, "POST"))
    rows = [
        (each["setting"], _shown(each["before"]), _shown(each["after"]), needs)
        for key, needs in (("applied", None), ("restart", "restart"))
        for each in done[key]
    ]
    for warning in done["warnings"]:
        progress(f"lakemq: warning: {warning}")
    print_table(("setting", "was", "is", "needs"), rows, data=done)


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
