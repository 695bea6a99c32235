"""Consumer groups: how far behind they are, and where they go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site
from lakemq.plugins.admin.dashboard.tables import Column, Row, Table


def _group_link(row: Row) -> str:
    return f"/groups/{quote(row['name'], safe='')}?node={quote(row['node'], safe='')}"


_GROUPS: Final = Table(
    "groups",
    (
        Column("name", "Group", sort=True, link=_group_link),
        Column("state", "State", "state"),
        Column("members", "Members", "number"),
        Column("lag", "Lag (records)", "number"),
        Column("topics", "Topics", "list"),
        Column("node", "Coordinator"),
    ),
    "groups",
    "A group appears with its first commit:",
    "lakemq consume TOPIC --group NAME",
)
_STARTS: Final = (
    ("earliest", "the oldest record"), ("latest", "the next new record"),
    ("offset", "an offset"), ("time", "a time (ms since 1970)"),
)  # fmt: skip


class GroupPages:
    """Who is behind."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/groups", self._groups),
            site.get_route("/groups/{group:path}", self._group),
            site.post_route("/group-reset/{group:path}", self._reset),
            site.post_route("/group-delete/{group:path}", self._delete),
        ]

    async def _groups(self, request: Request) -> Response:
        return await self._site.table(request, _GROUPS, "list.html", "Groups", views=())

    async def _group(self, request: Request) -> Response:
        """With `to`: what a reset would do, without doing it."""
        site, name = self._site, request.path_params["group"]
        of_node = _node(request.query_params.get("node", ""))
        group = await site.get(request, f"groups/{segment(name)}", of_node)
        preview, error, asked = None, "", dict(request.query_params)
        if asked.get("to"):
            try:
                path, query = f"groups/{segment(name)}/reset", {**of_node, "dry_run": "true"}
                preview = await site.change(request, "POST", path, _reset_of(asked), query)
            except ApiProblem as problem:
                error = problem.detail
        return site.page(
            request, "group.html", f"Group {name}", group=group, preview=preview, error=error,
            asked=asked, starts=_STARTS,
        )  # fmt: skip

    async def _reset(self, request: Request, form: Form) -> Response:
        name, of_node = request.path_params["group"], _node(form.get("node", ""))
        path = f"groups/{segment(name)}/reset"
        done = await self._site.change(request, "POST", path, _reset_of(form), of_node)
        row = {"name": name, "node": form.get("node", "")}
        text = f"{name} goes on elsewhere in {len(done['offsets'])} partitions of {done['topic']}."
        return self._site.done(request, _group_link(row), text)

    async def _delete(self, request: Request, form: Form) -> Response:
        name = request.path_params["group"]
        if form.get("confirm") != name:
            raise ApiProblem(400, "INVALID_REQUEST", f"type the name, {name}, to delete the group")
        of_node = _node(form.get("node", ""))
        await self._site.change(request, "DELETE", f"groups/{segment(name)}", query=of_node)
        return self._site.done(request, "/groups", f"Group {name} is deleted.")


def _node(name: str) -> dict[str, str]:
    return {"node": name} if name else {}


def _reset_of(form: Form) -> dict[str, object]:
    """For the API, which checks it."""
    to, at = form.get("to", ""), form.get("at", "").strip()
    if to == "offset":
        to = at
    elif to == "time":
        to = f"time:{at}"
    body: dict[str, object] = {"topic": form.get("topic", ""), "to": to}
    if form.get("partition", "").isdigit():
        body["partition"] = int(form["partition"])
    return body
