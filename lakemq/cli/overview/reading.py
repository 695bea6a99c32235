"""What the admin API tells of the whole cluster, for one screen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from lakemq.broker_core.api.admin_client import Refused, ask, ask_admin
from lakemq.broker_core.api.command_line import AdminOptions, ExitCode, fail

_PAGE: Final = 500
_PAGES_MAX: Final = 20
"""Of a list that is read whole."""
_NAMED: Final = 3
"""Partitions that are named of each lack."""


@dataclass
class Reading:
    """Answers of the admin API, as docs/openapi.json has them."""

    cluster: dict[str, Any]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    """What partitions lack -> some that do."""
    clients: int | None = None
    """Connected MQTT clients; None: no node speaks MQTT, or this user may not see them."""
    slow: int = 0
    """Slow subscribers."""
    failed_plugins: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Nodes that did not answer the others, and why."""
    denied: list[str] = field(default_factory=list)
    """What this user may not see."""


def read(node: AdminOptions) -> Reading:
    """Asks any node; a node that does not answer ends the command."""
    found = Reading(json.loads(ask_admin(node, "api/v1/cluster")))
    found.nodes = _whole(node, found, "nodes")
    found.groups = _whole(node, found, "groups")
    for lack, count in found.cluster["lacks"].items():
        if count:
            query = {"lacks": lack, "internal": "true", "limit": _NAMED}
            rows = _page(node, found, "partitions", query)["data"]
            found.lacking[lack] = [f"{row['topic']}/{row['partition']}" for row in rows]
    clients = _page(node, found, "mqtt/clients", {"connected": "true", "limit": 1})
    found.clients = clients["meta"]["total"] if "meta" in clients else None
    found.slow = _page(node, found, "mqtt/slow", {"limit": 1}).get("meta", {}).get("total", 0)
    found.failed_plugins = [
        f"{row['name']} on {row['node']}: {row['error']}"
        for row in _whole(node, found, "plugins")
        if row["enabled"] and row["error"]
    ]
    return found


def _whole(node: AdminOptions, found: Reading, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": _PAGE}
    for _ in range(_PAGES_MAX):
        page = _page(node, found, path, query)
        rows += page["data"]
        query["cursor"] = page.get("meta", {}).get("next")
        if query["cursor"] is None:
            break
    return rows


def _page(node: AdminOptions, found: Reading, path: str, query: dict[str, Any]) -> dict[str, Any]:
    """Without rows where no node has such a list, or this user may not see it."""
    try:
        page: dict[str, Any] = json.loads(ask(node, f"api/v1/{path}?{urlencode(query)}"))
    except Refused as refusal:
        if refusal.exit_code is ExitCode.DENIED:
            found.denied.append(path)
        elif refusal.exit_code is not ExitCode.UNKNOWN:
            fail(refusal, refusal.exit_code, code=refusal.code)
        return {"data": []}
    for each in page["meta"].get("missing", ()):
        found.missing[each["node"]] = each["reason"]
    return page
