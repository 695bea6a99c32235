"""MQTT clients, their sessions, and who is banned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import MQTT_VIEWS, Page, Site
from lakemq.plugins.admin.dashboard.tables import Choice, Column, Row, Table


def _client_link(row: Row) -> str:
    return f"/clients/{quote(row['node'], safe='')}/{quote(row['client_id'], safe='')}"


_CLIENTS: Final = Table(
    "mqtt/clients",
    (
        Column("client_id", "Client", sort=True, link=_client_link),
        Column("connected", "State", "state",
               value=lambda row: "connected" if row["connected"] else "session only"),
        Column("principal", "User", sort=True),
        Column("peer_host", "Address"),
        Column("protocol", "Protocol"),
        Column("connected_ms", "Since (UTC)", "time"),
        Column("subscriptions", "Subscriptions", "number", sort=True),
        Column("inflight", "In flight", "number", sort=True),
        Column("queued", "Queued", "number", sort=True),
        Column("dropped", "Dropped", "number", sort=True),
        Column("node", "Node"),
    ),
    "clients",
    "No MQTT client has a session.",
    choices=(Choice("connected", "State", (("", "any"), ("true", "connected"),
                                           ("false", "session only"))),),
    searched="Client id contains",
)  # fmt: skip
_SLOW: Final = Table(
    "mqtt/slow",
    (
        Column("client_id", "Client", sort=True, link=_client_link),
        Column("latency_ms", "Took", "duration", sort=True),
        Column("topic", "Topic"),
        Column("at_ms", "Last at (UTC)", "time"),
        Column("count", "Times", "number"),
        Column("node", "Node"),
    ),
    "slow clients",
    "No client was slow to take a message.",
    searched="Client id contains",
)
_BANS: Final = Table(
    "mqtt/bans",
    (
        Column("kind", "Kind", sort=True),
        Column("value", "Banned", sort=True),
        Column("until_ms", "Until (UTC)", "time"),
        Column("why", "Why"),
        Column("node", "Node"),
    ),
    "bans",
    "No one is banned.",
    searched="Contains",
)


class ClientPages:
    """Who is connected, and who is slow or drops."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/clients", self._list(_CLIENTS, "Clients")),
            site.get_route("/clients-slow", self._list(_SLOW, "Slow clients")),
            site.get_route("/bans", self._list(_BANS, "Bans")),
            site.post_route("/bans", self._ban),
            site.post_route("/bans-lift", self._lift),
            site.get_route("/clients/{node}/{client_id:path}", self._client),
            site.post_route("/clients-kick/{node}/{client_id:path}", self._kick),
        ]

    def _list(self, table: Table, title: str) -> Page:
        async def shown(request: Request) -> Response:
            return await self._site.table(request, table, "clients.html", title, views=MQTT_VIEWS)

        return shown

    async def _client(self, request: Request) -> Response:
        node, client_id = request.path_params["node"], request.path_params["client_id"]
        one, of_node = f"mqtt/clients/{segment(client_id)}", {"node": node}
        client, subscriptions = await asyncio.gather(
            self._site.get(request, one, of_node),
            self._site.try_get(request, f"{one}/subscriptions", {**of_node, "limit": "500"}),
        )
        return self._site.page(
            request, "client.html", f"Client {client_id}", client=client,
            subscriptions=(subscriptions or {}).get("data", ()),
            total=(subscriptions or {}).get("meta", {}).get("total", 0),
        )  # fmt: skip

    async def _kick(self, request: Request, form: Form) -> Response:
        node, client_id = request.path_params["node"], request.path_params["client_id"]
        query = {"node": node, "session": "true" if form.get("session") else "false"}
        path = f"mqtt/clients/{segment(client_id)}"
        done = await self._site.change(request, "DELETE", path, query=query)
        what = [
            word for word, was in (
                ("disconnected", done["disconnected"]), ("session ended", done["session_ended"])
            ) if was
        ]  # fmt: skip
        text = f"{client_id}: {', '.join(what) or 'was not connected'}."
        return self._site.done(request, "/clients", text)

    async def _ban(self, request: Request, form: Form) -> Response:
        body: dict[str, object] = {
            "kind": form.get("kind", ""),
            "value": form.get("value", ""),
            "why": form.get("why", ""),
        }
        if form.get("seconds"):
            if not form["seconds"].isdigit():
                raise ApiProblem(400, "INVALID_REQUEST", "seconds takes a whole number")
            body["seconds"] = int(form["seconds"])
        query = {"node": form["node"]} if form.get("node") else {}
        made = await self._site.change(request, "POST", "mqtt/bans", body, query)
        text = f"{made['kind']} {made['value']} is banned; {made['disconnected']} disconnected."
        return self._site.done(request, "/bans", text)

    async def _lift(self, request: Request, form: Form) -> Response:
        kind, value = form.get("kind", ""), form.get("value", "")
        path = f"mqtt/bans/{segment(kind)}/{segment(value)}"
        node = "*" if form.get("everywhere") else form.get("node", "")
        await self._site.change(request, "DELETE", path, query={"node": node})
        return self._site.done(request, "/bans", f"{kind} {value} is no longer banned.")
