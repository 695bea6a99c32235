"""`lakemq config show`, `diff` and `reload`: the configuration of nodes that run."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import AdminOptions, option_groups, print_table, progress

configuration = typer.Typer()
_PAGE = 500
Node = Annotated[
    str, typer.Option("--node", metavar="NODE", help="Of this node; else of the one that is asked.")
]
OneNode = Annotated[
    str, typer.Option("--node", metavar="NODE", help="Of this node alone; else of all nodes.")
]


def _settings(node: AdminOptions, query: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = urlencode({"limit": _PAGE, **query, "cursor": cursor})
        page = json.loads(ask_admin(node, f"api/v1/settings?{asked}"))
        found += page["data"]
        cursor = page["meta"]["next"]
        for missing in page["meta"]["missing"]:
            typer.echo(f"lakemq: {missing['node']} did not answer: {missing['reason']}", err=True)
    return found


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
    found = _settings(node, {"changed": str(not every).lower(), "q": text, "node": of})
    rows = [
        (each["node"], each["setting"], _shown(each["value"]), each["source"], each["reloadable"],
         each["pending"] or None)
        for each in found
    ]  # fmt: skip
    print_table(("node", "setting", "value", "source", "reloadable", "needs"), rows, data=found)


@configuration.command("diff")
@option_groups
def diff(of: OneNode = "", *, node: AdminOptions) -> None:
    """Show settings that are written otherwise than they are used, and whether a reload or a
    restart puts them into use."""
    found = _settings(node, {"pending": "true", "node": of})
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
