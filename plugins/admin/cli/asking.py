"""What commands of the admin API have in common."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import AdminOptions

_PAGE = 500


def listed(node: AdminOptions, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    """All rows of a list. A node that did not answer is named on standard error."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = urlencode({"limit": _PAGE, **query, "cursor": cursor})
        page = json.loads(ask_admin(node, f"api/v1/{path}?{asked}"))
        found += page["data"]
        cursor = page["meta"]["next"]
        for missing in page["meta"]["missing"]:
            typer.echo(f"lakemq: {missing['node']} did not answer: {missing['reason']}", err=True)
    return found
