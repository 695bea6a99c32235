"""Retained MQTT messages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import segment
from lakemq.plugins.admin.dashboard.details import Action, facts_of
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import MQTT_VIEWS, Site, session_of
from lakemq.plugins.admin.dashboard.tables import Column, Row, Table, Text


def _retained_link(row: Row) -> str:
    return f"/retained/{segment(row['topic_name'])}?node={quote(row['node'], safe='')}"


_RETAINED: Final = Table(
    "mqtt/retained",
    (
        Column("topic_name", "Topic name", sort=True, link=_retained_link),
        Column("qos", "QoS", "number"),
        Column("size_bytes", "Size", "size", sort=True),
        Column("arrived_ms", "Arrived (UTC)", "time", sort=True),
        Column("expires_ms", "Expires (UTC)", "time"),
        Column("client_id", "Publisher"),
        Column("node", "Node"),
    ),
    "retained messages",
    "Nothing is retained. A publish with the RETAIN flag is:",
    "mosquitto_pub --retain --topic plant/1 --message 21.5",
    texts=(Text("filter", "Topic filter", "plant/+/temperature"),),
    searched="Topic name contains",
)
_SHOWN_MAX: Final = 65_536
"""Characters of a payload."""


class RetainedPages:
    """What new subscribers get at once."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/retained", self._list),
            site.get_route("/retained/{topic_name:path}", self._one),
            site.post_route("/retained-delete/{topic_name:path}", self._delete),
        ]

    async def _list(self, request: Request) -> Response:
        return await self._site.table(
            request, _RETAINED, "list.html", "Retained messages", views=MQTT_VIEWS
        )

    async def _one(self, request: Request) -> Response:
        site, name = self._site, request.path_params["topic_name"]
        node = {"node": request.query_params.get("node", "")}
        found = await site.get(request, f"mqtt/retained/{segment(name)}", node)
        text = found["payload"]
        if found["encoding"] == "base64":
            text = base64.b64decode(text).hex(" ")
        delete = Action(
            "Delete", f"/retained-delete/{segment(name)}", "alter the cluster",
            "alter" in session_of(request).may,
            f"New subscribers at {found['node']} get it no more. An empty retained publish deletes "
            "it from all nodes.", fields={"node": found["node"]},
        )  # fmt: skip
        cut = f" (the first {_SHOWN_MAX:,} characters)" if len(text) > _SHOWN_MAX else ""
        return site.page(
            request, "detail.html", f"Retained {name}", facts=facts_of(_RETAINED.columns, found),
            text=text[:_SHOWN_MAX], text_title=f"Payload{cut}", actions=[delete],
        )  # fmt: skip

    async def _delete(self, request: Request, form: Form) -> Response:
        path = f"mqtt/retained/{segment(request.path_params['topic_name'])}"
        query = {"node": form.get("node", "")}
        done = await self._site.change(request, "DELETE", path, query=query)
        text = f"{done['topic_name']} is no longer retained at {done['node']}."
        return self._site.done(request, "/retained", text)
