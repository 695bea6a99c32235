"""`lakemq audit`: what operators changed, from the audit log of all nodes."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import AdminOptions, option_groups, print_table

_PAGE = 500


@option_groups
def audit(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Most changes shown.")] = 50,
    text: Annotated[str, typer.Option("--match", help="A text in what was changed.")] = "",
    who: Annotated[str, typer.Option(help="Only of this one, like user:ann.")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only what was refused.")] = False,
    *,
    node: AdminOptions,
) -> None:
    """Show what operators changed, on all nodes, the newest first."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < limit:
        query = {"limit": _PAGE, "q": text, "who": who, "cursor": cursor}
        page = json.loads(ask_admin(node, f"api/v1/audit?{urlencode(query)}"))
        found += [each for each in page["data"] if not failed or each["outcome"] != "done"]
        cursor = page["meta"]["next"]
        for missing in page["meta"]["missing"]:
            typer.echo(f"lakemq: {missing['node']} did not answer: {missing['reason']}", err=True)
    del found[limit:]
    rows = [
        (
            each["at"][:19].replace("T", " "), each["who"], each["from_host"], each["by"],
            each["action"], each["resource"], each["outcome"], each["node"],
        )
        for each in found
    ]  # fmt: skip
    headings = ("at (UTC)", "who", "from", "by", "action", "resource", "outcome", "node")
    print_table(headings, rows, data=found)
