"""`lakemq ledger`: what is missing, came late or came twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import AdminOptions, option_groups, print_table
from lakemq.broker_core.api.command_line.completion import listed_names

_PAGE = 500
_PARTITION = ("topic", "partition", "devices", "records", "lag", "unread", "deleted", "evicted")
_DEVICE = (
    "device", "records", "missing", "gaps", "late", "duplicates", "strays", "restarts", "overdue",
    "delay_max_ms",
)  # fmt: skip


@option_groups
def ledger(
    topic: Annotated[
        str,
        typer.Argument(
            help="Show this topic's devices.", autocompletion=listed_names("topics", "name")
        ),
    ] = "",
    device: Annotated[str, typer.Option("--device", help="Only the one of this name.")] = "",
    text: Annotated[str, typer.Option("--match", help="A text in the device's name.")] = "",
    sort: Annotated[
        str,
        typer.Option(help="device, records, missing, late, duplicates, last_ms; - before it: most"),
    ] = "-missing",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Most devices shown.")] = 100,
    *,
    node: AdminOptions,
) -> None:
    """Show what devices sent incompletely, late or twice, in topics with the setting `ledger`.

    Without a topic: the partitions that are counted.
    """
    if topic or device or text:
        query = {"topic": topic, "device": device, "q": text, "sort": sort}
        found = _listed(node, "ledger/devices", query, limit)
    else:
        found = _listed(node, "ledger/partitions", {}, limit)
    if topic or device or text:
        rows = [(each["topic"], *_cells(each, _DEVICE), _time(each["last_ms"])) for each in found]
        print_table(("topic", *_DEVICE, "last (UTC)"), rows, data=found)
    else:
        rows = [(*_cells(each, _PARTITION), each["node"], each["rule"]) for each in found]
        print_table((*_PARTITION, "node", "rule"), rows, data=found)


def _listed(
    node: AdminOptions, path: str, query: Mapping[str, str], limit: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < limit:
        asked = {"limit": min(_PAGE, limit - len(found)), "cursor": cursor, **query}
        page = json.loads(ask_admin(node, f"api/v1/{path}?{urlencode(asked)}"))
        found += page["data"]
        cursor = page["meta"]["next"]
        for missing in page["meta"]["missing"]:
            typer.echo(f"lakemq: {missing['node']} did not answer: {missing['reason']}", err=True)
    return found


def _cells(row: Mapping[str, Any], names: tuple[str, ...]) -> list[Any]:
    return [row[name] for name in names]


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
