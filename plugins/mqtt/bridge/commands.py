"""`lakemq bridge`: what bridges do, as the admin API tells it."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import AdminOptions, is_json, option_groups, print_table

bridge = typer.Typer(no_args_is_help=True, help="Bridges to remote MQTT brokers.")

_PAGE: Final = 500
_COUNTS: Final = (
    "forwarded", "received", "repeated", "refused", "lost", "connects", "failures",
)  # fmt: skip
_COLUMNS: Final = ("link", "node", "connected", "lag", "inflight", *_COUNTS)


@bridge.callback()
def _group() -> None:
    """Bridges to remote MQTT brokers."""


@bridge.command("status")
@option_groups
def status(node: AdminOptions) -> None:
    """Show every link of the cluster: the node that runs it, whether it is connected, its lag, and
    record counts."""
    links = sorted(_links(node), key=lambda each: (each["link"], each["node"]))
    if not links and not is_json():
        typer.echo("no node runs a bridge")
        return
    rows = [
        (*(each[name] for name in _COLUMNS[:5]), *(each["counts"].get(name, 0) for name in _COUNTS))
        for each in links
    ]
    print_table(_COLUMNS, rows)


def _links(node: AdminOptions) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = urlencode({"limit": _PAGE, "cursor": cursor})
        page = json.loads(ask_admin(node, f"api/v1/bridges?{asked}"))
        found += page["data"]
        cursor = page["meta"]["next"]
        for missing in page["meta"]["missing"]:
            typer.echo(f"lakemq: {missing['node']} did not answer: {missing['reason']}", err=True)
    return found
