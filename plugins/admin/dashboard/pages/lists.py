"""Pages that are a list: schemas, transactions, schedules, plugins, the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import segment
from lakemq.plugins.admin.dashboard.site import Page, Site
from lakemq.plugins.admin.dashboard.tables import Choice, Column, Table

_SCHEMAS: Final = Table(
    "schemas",
    (
        Column("name", "Subject", sort=True,
               link=lambda row: f"/schemas/{quote(row['name'], safe='')}"),
        Column("compatibility", "Compatibility"),
        Column("versions", "Versions", "list",
               value=lambda row: [each["version"] for each in row["versions"]]),
        Column("used_by", "Used by topics", "list"),
    ),
    "schemas",
    "No schema is registered. Register one:",
    "lakemq schema register SUBJECT FILE",
)  # fmt: skip
_TRANSACTIONS: Final = Table(
    "transactions",
    (
        Column("name", "Name", sort=True),
        Column("kind", "Kind"),
        Column("state", "State", "state", sort=True),
        Column("epoch", "Epoch", "number"),
        Column("staged_batches", "Staged batches", "number"),
        Column("staged_bytes", "Staged", "size", sort=True),
        Column("last_batch_id", "Last commit", "number"),
        Column("timeout_ms", "Ends after", "duration"),
        Column("detail", "Detail"),
        Column("node", "Coordinator"),
    ),
    "transactions",
    "No producer and no sink has used transactions.",
)
_SCHEDULES: Final = Table(
    "schedules",
    (
        Column("deliver_at_ms", "Due (UTC)", "time", sort=True),
        Column("topic", "Topic", sort=True),
        Column("partition", "Partition", "number"),
        Column("records", "Records", "number"),
        Column("size_bytes", "Size", "size"),
        Column("schedule_id", "Schedule"),
        Column("node", "Node"),
    ),
    "scheduled records",
    "No record waits for its time.",
    searched="Contains",
)
_PLUGINS: Final = Table(
    "plugins",
    (
        Column("name", "Plugin", sort=True),
        Column("enabled", "State", "state",
               value=lambda row: "failed" if row["error"] else "on" if row["enabled"] else "off"),
        Column("error", "Error"),
        Column("version", "Version"),
        Column("distribution", "From"),
        Column("hooks", "Registers", "list",
               value=lambda row: [each.removeprefix("register_") for each in row["hooks"]]),
        Column("settings", "Settings", "json"),
        Column("node", "Node"),
    ),
    "plugins",
    "No plugin is installed.",
)  # fmt: skip
_AUDIT: Final = Table(
    "audit",
    (
        Column("at_ms", "When (UTC)", "time", sort=True),
        Column("who", "Who", sort=True),
        Column("from_host", "From"),
        Column("by", "By"),
        Column("action", "What", sort=True),
        Column("resource", "On what"),
        Column("outcome", "Outcome", "state"),
        Column("detail", "Detail"),
        Column("request", "Asked", "json"),
        Column("node", "Node"),
    ),
    "changes",
    "Nothing was changed yet.",
    choices=(Choice("outcome", "Outcome", (
        ("", "any"), ("done", "done"), ("refused", "refused"), ("failed", "failed"))),),
    searched="Contains",
)  # fmt: skip
_FLOW: Final = (("/transactions", "Transactions"), ("/schedules", "Scheduled records"))


class ListPages:
    """One list each."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages."""
        route = self._site.get_route
        return [
            route("/schemas", self._list(_SCHEMAS, "Schemas")),
            route("/schemas/{subject:path}", self._schema),
            route("/transactions", self._list(_TRANSACTIONS, "Transactions", _FLOW)),
            route("/schedules", self._list(_SCHEDULES, "Scheduled records", _FLOW)),
            route("/plugins", self._list(_PLUGINS, "Plugins")),
            route("/audit", self._list(_AUDIT, "Audit")),
        ]

    def _list(self, table: Table, title: str, views: Sequence[tuple[str, str]] = ()) -> Page:
        async def shown(request: Request) -> Response:
            return await self._site.table(request, table, "list.html", title, views=views)

        return shown

    async def _schema(self, request: Request) -> Response:
        """A version of a subject; the newest without one."""
        subject = request.path_params["subject"]
        wanted = request.query_params.get("version", "")
        query = {"version": wanted} if wanted else {}
        schema = await self._site.get(request, f"schemas/{segment(subject)}", query)
        found = await self._site.get(request, "schemas", {"q": subject, "limit": "500"})
        row = next((each for each in found["data"] if each["name"] == subject), None)
        return self._site.page(
            request, "schema.html", f"Schema {subject}", schema=schema, subject=row
        )
