"""Queues: what their consumers hold, and what became a dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.details import Action, confirmed
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site, number_of
from lakemq.plugins.admin.dashboard.tables import Column, Row, Table


def _queue_link(row: Row) -> str:
    group, topic = segment(row["group"]), segment(row["topic"])
    return f"/queues/{group}/{topic}?node={quote(row['node'], safe='')}"


_QUEUES: Final = Table(
    "queues",
    (
        Column("group", "Group", sort=True, link=_queue_link),
        Column("topic", "Topic", sort=True),
        Column("consumers", "Consumers", "number"),
        Column("held", "Held", "number"),
        Column("backlog", "Backlog", "number"),
        Column("dead_letters", "On their way to dead letters", "number"),
        Column("dead_letter_topic", "Dead letters"),
        Column("node", "Node"),
    ),
    "queues",
    "A queue appears with its first consumer, or by:",
    "lakemq queue alter GROUP --topic TOPIC --attempts-max 5",
    searched="Group or topic contains",
)
_LETTERS: Final = 100
"""Dead letters that one redrive looks at."""


class QueuePages:
    """A queue, and what to do with its dead letters."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/queues", self._queues),
            site.get_route("/queues/{group:path}/{topic}", self._queue),
            site.post_route("/queue-redrive/{group:path}/{topic}", self._redrive),
            site.post_route("/queue-reset/{group:path}/{topic}", self._reset),
            site.post_route("/queue-delete/{group:path}/{topic}", self._delete),
        ]

    async def _queues(self, request: Request) -> Response:
        return await self._site.table(request, _QUEUES, "list.html", "Queues", views=())

    async def _queue(self, request: Request) -> Response:
        """With `partition` and `offset`: what a redrive of dead letters would publish."""
        site, (group, topic) = self._site, _names(request)
        asked, of_node = request.query_params, _node(request.query_params.get("node", ""))
        queue = await site.get(request, _path(group, topic), of_node)
        preview, error = None, ""
        if asked.get("offset"):
            try:
                preview = await self._redriven(request, asked, dry_run=True)
            except ApiProblem as problem:
                error = problem.detail
        may, may_delete, letters = await asyncio.gather(
            site.may(request, "alter", "group", group),
            site.may(request, "delete", "group", group),
            self._letters(request, queue["dead_letter_topic"]),
        )
        title = f"Queue {group} on {topic}"
        actions = [
            Action(
                "Delete queue", f"/queue-delete/{segment(group)}/{segment(topic)}",
                f"delete group:{group}", may_delete,
                "Takes a queue without consumers. Its topic is not changed.", group, of_node,
            )
        ]  # fmt: skip
        return site.page(
            request, "queue.html", title, queue=queue, preview=preview, error=error, asked=asked,
            may_alter=may, letters=letters, actions=actions, partitions=queue["partitions"],
        )  # fmt: skip

    async def _letters(self, request: Request, topic: str) -> list[dict[str, Any]]:
        """Partitions of the topic of dead letters: where they begin and end, and a link to read
        them. None where there is no such topic, or it can't be seen."""
        if not topic:
            return []
        path = f"topics/{segment(topic)}/offsets"
        low, high = await asyncio.gather(
            self._site.try_get(request, path, {"at": "earliest"}),
            self._site.try_get(request, path, {"at": "latest"}),
        )
        if low is None or high is None:
            return []
        return [
            {
                "partition": number, "low": offset, "high": high["offsets"].get(number, offset),
                "link": f"/messages?{urlencode({'topic': topic, 'partition': number})}",
            }
            for number, offset in low["offsets"].items()
        ]  # fmt: skip

    async def _redriven(self, request: Request, asked: Mapping[str, str], *, dry_run: bool) -> Any:
        group, topic = _names(request)
        query = {
            **_node(asked.get("node", "")),
            "partition": str(number_of(asked.get("partition", ""), 0)),
            "offset": str(number_of(asked.get("offset", ""), 0)),
            "limit": str(_LETTERS),
            "dry_run": "true" if dry_run else "false",
        }
        return await self._site.change(
            request, "POST", f"{_path(group, topic)}/redrive", query=query
        )

    async def _redrive(self, request: Request, form: Form) -> Response:
        group, topic = _names(request)
        done = await self._redriven(request, form, dry_run=False)
        row = {"group": group, "topic": topic, "node": form.get("node", "")}
        text = f"{done['published']} of {done['looked_at']} dead letters were published again."
        to = _queue_link(row)
        if done["next_offset"] < done["high_watermark"]:
            more = {"partition": done["partition"], "offset": done["next_offset"]}
            to = f"{to}&{urlencode(more)}"
        return self._site.done(request, to, text)

    async def _reset(self, request: Request, form: Form) -> Response:
        group, topic = _names(request)
        of_node = _node(form.get("node", ""))
        body: dict[str, object] = {"to": form.get("to", "")}
        done = await self._site.change(
            request, "POST", f"{_path(group, topic)}/reset", body, of_node
        )
        row = {"group": group, "topic": topic, "node": form.get("node", "")}
        text = f"{group} goes on elsewhere in {len(done['offsets'])} partitions of {topic}."
        return self._site.done(request, _queue_link(row), text)

    async def _delete(self, request: Request, form: Form) -> Response:
        group, topic = _names(request)
        if not confirmed(form, group):
            raise ApiProblem(400, "INVALID_REQUEST", f"type the group, {group}, to delete it")
        of_node = _node(form.get("node", ""))
        await self._site.change(request, "DELETE", _path(group, topic), query=of_node)
        return self._site.done(request, "/queues", f"The queue of {group} on {topic} is deleted.")


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["group"], request.path_params["topic"]


def _path(group: str, topic: str) -> str:
    return f"queues/{segment(group)}/{segment(topic)}"


def _node(name: str) -> dict[str, str]:
    return {"node": name} if name else {}
