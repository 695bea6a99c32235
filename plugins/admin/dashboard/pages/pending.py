"""What waits: transactions that are not committed, records whose time has not come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.details import Action, confirmed, facts_of
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Page, Site
from lakemq.plugins.admin.dashboard.tables import Column, Row, Table


def _owner_link(row: Row) -> str:
    node = quote(row["node"], safe="")
    return f"/transactions/{segment(row['kind'])}/{segment(row['name'])}?node={node}"


def _schedule_link(row: Row) -> str:
    return f"/schedules/{segment(row['schedule_id'])}?node={quote(row['node'], safe='')}"


_TRANSACTIONS: Final = Table(
    "transactions",
    (
        Column("name", "Name", sort=True, link=_owner_link),
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
        Column("schedule_id", "Schedule", link=_schedule_link),
        Column("node", "Node"),
    ),
    "scheduled records",
    "No record waits for its time.",
    searched="Contains",
)
_VIEWS: Final = (("/transactions", "Transactions"), ("/schedules", "Scheduled records"))


class PendingPages:
    """Look at one, and give it up."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/transactions", self._list(_TRANSACTIONS, "Transactions")),
            site.get_route("/transactions/{kind}/{name:path}", self._transaction),
            site.post_route("/transaction-abort/{kind}/{name:path}", self._abort),
            site.post_route("/transaction-delete/{kind}/{name:path}", self._delete),
            site.get_route("/schedules", self._list(_SCHEDULES, "Scheduled records")),
            site.get_route("/schedules/{schedule:path}", self._schedule),
            site.post_route("/schedule-cancel/{schedule:path}", self._cancel),
        ]

    def _list(self, table: Table, title: str) -> Page:
        async def shown(request: Request) -> Response:
            return await self._site.table(request, table, "list.html", title, views=_VIEWS)

        return shown

    async def _one(self, request: Request, table: Table, wanted: str, **fields: str) -> Row:
        """The row with these fields. Raises ApiProblem."""
        query = {"q": wanted[:256], "limit": "500", "node": request.query_params.get("node", "")}
        found = await self._site.get(request, table.path, query)
        for row in found["data"]:
            if all(row[name] == value for name, value in fields.items()):
                one: Row = row
                return one
        raise ApiProblem(404, "UNKNOWN", f"{wanted} is no longer among the {table.noun}")

    async def _transaction(self, request: Request) -> Response:
        site, kind, name = self._site, request.path_params["kind"], request.path_params["name"]
        row = await self._one(request, _TRANSACTIONS, f"{kind} {name}", kind=kind, name=name)
        alter, delete = await asyncio.gather(
            site.may(request, "alter", kind, name), site.may(request, "delete", kind, name)
        )
        path, node = f"{segment(kind)}/{segment(name)}", {"node": row["node"]}
        actions = [
            Action(
                "Abort", f"/transaction-abort/{path}", f"alter {kind}:{name}", alter,
                f"Drops {row['staged_batches']} staged batches, and fences the producer: what it "
                "sends from now on is refused.", fields=node,
            ),
            Action(
                "Delete", f"/transaction-delete/{path}", f"delete {kind}:{name}", delete,
                "Forgets it, and which batch it committed last: a batch that is sent again is "
                "stored twice.", name, node,
            ),
        ]  # fmt: skip
        return site.page(
            request, "detail.html", f"{kind.capitalize()} {name}", text=None, text_title="",
            facts=facts_of(_TRANSACTIONS.columns, row), actions=actions,
        )  # fmt: skip

    async def _abort(self, request: Request, form: Form) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        path = f"transactions/{segment(kind)}/{segment(name)}/abort"
        done = await self._site.change(request, "POST", path, query=_node(form))
        text = f"{name} is aborted; {done['staged_batches']} staged batches are dropped."
        return self._site.done(request, "/transactions", text)

    async def _delete(self, request: Request, form: Form) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        if not confirmed(form, name):
            raise ApiProblem(400, "INVALID_REQUEST", f"type the name, {name}, to delete it")
        path = f"transactions/{segment(kind)}/{segment(name)}"
        await self._site.change(request, "DELETE", path, query=_node(form))
        return self._site.done(request, "/transactions", f"{kind.capitalize()} {name} is deleted.")

    async def _schedule(self, request: Request) -> Response:
        wanted = request.path_params["schedule"]
        row = await self._one(request, _SCHEDULES, wanted, schedule_id=wanted)
        may = await self._site.may(request, "write", "topic", row["topic"])
        action = Action(
            "Cancel", f"/schedule-cancel/{segment(wanted)}", f"write topic:{row['topic']}", may,
            "These records are not delivered.", fields={"node": row["node"]},
        )  # fmt: skip
        return self._site.page(
            request, "detail.html", f"Schedule {wanted}", text=None, text_title="",
            facts=facts_of(_SCHEDULES.columns, row), actions=[action],
        )  # fmt: skip

    async def _cancel(self, request: Request, form: Form) -> Response:
        wanted = request.path_params["schedule"]
        path = f"schedules/{segment(wanted)}"
        done = await self._site.change(request, "DELETE", path, query=_node(form))
        text = f"{done['records']} scheduled records of {done['topic']} are cancelled."
        return self._site.done(request, "/schedules", text)


def _node(form: Form) -> dict[str, str]:
    return {"node": form.get("node", "")}
