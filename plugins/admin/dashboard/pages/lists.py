"""Pages that are a list: bridges, exports, the ledger, plugins, the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.site import MQTT_VIEWS, Page, Site
from lakemq.plugins.admin.dashboard.tables import Choice, Column, Table, Text

_PLUGINS: Final = Table(
    "plugins",
    (
        Column("name", "Plugin", sort=True),
        Column("enabled", "State", "state",
               value=lambda row: "failed" if row["error"] else "quarantined" if
               row.get("quarantines") else "on" if row["enabled"] else "off"),
        Column("error", "Error"),
        Column("quarantines", "Not called", "list",
               value=lambda row: [
                   f"{each['topic'] or 'all topics'}: {each['reason']}"
                   for each in row.get("quarantines", ())
               ]),
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
_BRIDGES: Final = Table(
    "bridges",
    (
        Column("link", "Link", sort=True),
        Column("connected", "State", "state",
               value=lambda row: "connected" if row["connected"] else "offline"),
        Column("url", "Remote broker"),
        Column("client_id", "Client id there"),
        Column("lag", "Lag (records)", "number", sort=True),
        Column("inflight", "In flight", "number"),
        Column("counts", "Since the start", "list"),
        Column("node", "Node"),
    ),
    "bridges",
    "No node has a link to another MQTT broker: see [[plugins.bridge.links]].",
    searched="Link contains",
)  # fmt: skip
_EXPORTS: Final = Table(
    "exports",
    (
        Column("export_id", "Export", sort=True,
               link=lambda row: f"/groups/export.{row['export_id']}?node={quote(row['node'])}"),
        Column("topic", "Topic", sort=True),
        Column("lag", "Lag (records)", "number"),
        Column("rows_per_s", "Rows/s", "number"),
        Column("committed_ms", "Last commit (UTC)", "time", sort=True),
        Column("commit", "Commits", "number"),
        Column("rows", "Rows of the last", "number"),
        Column("dead_letters", "Dead letters of it", "number"),
        Column("size_bytes", "Size of it", "size"),
        Column("format", "Format"),
        Column("table", "Table", sort=True),
        Column("node", "Node"),
    ),
    "exports",
    "No export has told of itself. One does after its first commit:",
    "lakemq export --topic TOPIC --to delta --path FOLDER",
    searched="Export or topic contains",
)  # fmt: skip
_LEDGER: Final = Table(
    "ledger/partitions",
    (
        Column("topic", "Topic", sort=True,
               link=lambda row: f"/ledger-devices?topic={quote(row['topic'], safe='')}"),
        Column("partition", "Partition", "number"),
        Column("rule", "Counts"),
        Column("devices", "Devices", "number", sort=True),
        Column("records", "Records", "number"),
        Column("lag", "Lag (records)", "number"),
        Column("unread", "Unread", "number"),
        Column("deleted", "Deleted before", "number"),
        Column("evicted", "Devices forgotten", "number"),
        Column("node", "Node"),
    ),
    "ledgers",
    "No topic asks for a ledger. One does by its setting:",
    "lakemq topic alter TOPIC --config 'ledger=device=key; sequence=$.seq'",
    searched="Topic contains",
)  # fmt: skip
_DEVICES: Final = Table(
    "ledger/devices",
    (
        Column("device", "Device", sort=True),
        Column("topic", "Topic",
               link=lambda row: f"/explain?topic={quote(row['topic'], safe='')}"
                                f"&partition={row['partition']}&offset={row['offset']}"),
        Column("partition", "Partition", "number"),
        Column("records", "Records", "number", sort=True),
        Column("missing", "Missing", "number", sort=True),
        Column("gaps", "Gaps", "number"),
        Column("late", "Late", "number", sort=True),
        Column("duplicates", "Duplicates", "number", sort=True),
        Column("strays", "Strays", "number"),
        Column("restarts", "Restarts", "number"),
        Column("last_number", "Last number", "number"),
        Column("overdue", "Overdue", "number"),
        Column("last_ms", "Last record (UTC)", "time", sort=True),
        Column("delay_max_ms", "Longest delay", "duration",
               value=lambda row: "" if row["delay_max_ms"] is None else row["delay_max_ms"]),
        Column("node", "Node"),
    ),
    "devices",
    "No device was counted yet.",
    texts=(Text("topic", "Topic"), Text("device", "Device")),
    searched="",
    query={"sort": "-missing"},
)  # fmt: skip
_LEDGERS: Final = (("/ledger", "By partition"), ("/ledger-devices", "By device"))


class ListPages:
    """One list each."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages."""
        route = self._site.get_route
        return [
            route("/bridges", self._list(_BRIDGES, "Bridges", MQTT_VIEWS)),
            route("/exports", self._list(_EXPORTS, "Exports")),
            route("/ledger", self._list(_LEDGER, "Ledger", _LEDGERS)),
            route("/ledger-devices", self._list(_DEVICES, "Ledger: devices", _LEDGERS)),
            route("/plugins", self._list(_PLUGINS, "Plugins")),
            route("/audit", self._list(_AUDIT, "Audit")),
        ]

    def _list(self, table: Table, title: str, views: Sequence[tuple[str, str]] = ()) -> Page:
        async def shown(request: Request) -> Response:
            return await self._site.table(request, table, "list.html", title, views=views)

        return shown
