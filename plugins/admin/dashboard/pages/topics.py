"""Topics, one topic, and partitions that lack something."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site
from lakemq.plugins.admin.dashboard.tables import Choice, Column, Row, Table

LACKS: Final = (
    ("", "any"), ("leaderless", "leaderless"), ("under-min-in-sync", "under min in-sync"),
    ("under-replicated", "under-replicated"), ("moving", "moving"),
)  # fmt: skip
_INTERNAL: Final = Choice("internal", "Internal topics", (("", "hidden"), ("true", "shown")))


def topic_link(row: Row) -> str:
    """Page of a row's topic."""
    return f"/topics/{quote(row.get('topic') or row['name'], safe='')}"


def _state(row: Row) -> str:
    if row["leaderless"]:
        return "leaderless"
    return "under-replicated" if row["under_replicated"] else "ok"


_TOPICS: Final = Table(
    "topics",
    (
        Column("name", "Topic", sort=True, link=topic_link),
        Column("state", "State", "state", value=_state),
        Column("partitions", "Partitions", "number", sort=True),
        Column("replication", "Copies", "number", sort=True),
        Column("cleanup", "Cleanup"),
        Column("retention_ms", "Kept for", "duration", sort=True),
        Column("retention_bytes", "Kept at most", "size"),
        Column("schema_subject", "Schema"),
    ),
    "topics",
    "No topic yet. Create one above, or:",
    "lakemq topic create NAME",
    (Choice("lacks", "Lacks", LACKS), _INTERNAL),
)  # fmt: skip
_PARTITIONS: Final = Table(
    "partitions",
    (
        Column("topic", "Topic", sort=True, link=topic_link),
        Column("partition", "Partition", "number"),
        Column("leader", "Leader", sort=True),
        Column("leader_epoch", "Epoch", "number"),
        Column("replicas", "Replicas", "list"),
        Column("in_sync", "In sync", "list"),
        Column("eligible", "Eligible", "list"),
        Column("target", "Moves to", "list"),
        Column("lacks", "Lacks", "list"),
    ),
    "partitions",
    "No partition lacks this.",
    choices=(Choice("lacks", "Lacks", LACKS), _INTERNAL),
    searched="Topic contains",
)
_SETTINGS: Final = {
    "retention_ms": int, "retention_bytes": int, "segment_max_bytes": int,
    "segment_age_max_ms": int, "tombstone_retention_ms": int, "batch_max_bytes": int,
    "timestamp_ahead_max_ms": int, "retention_by": str, "cleanup": str, "compression": str,
    "schema": str, "acks_min": str,
}  # fmt: skip
_PARTITIONS_SHOWN: Final = 500


class TopicPages:
    """What there is, and how it is set."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/topics", self._topics),
            site.post_route("/topics", self._create),
            site.get_route("/partitions", self._partitions),
            site.get_route("/topics/{topic:path}", self._topic),
            site.post_route("/topic-settings/{topic:path}", self._alter),
            site.post_route("/topic-delete/{topic:path}", self._delete),
            site.post_route("/topic-elect/{topic:path}", self._elect),
        ]

    async def _topics(self, request: Request) -> Response:
        return await self._site.table(request, _TOPICS, "topics.html", "Topics")

    async def _partitions(self, request: Request) -> Response:
        return await self._site.table(request, _PARTITIONS, "list.html", "Partitions", views=())

    async def _create(self, request: Request, form: Form) -> Response:
        body: dict[str, object] = {"name": form.get("name", "")}
        for field in ("partitions", "replication"):
            if form.get(field):
                body[field] = _whole(field, form[field])
        made = await self._site.change(request, "POST", "topics", body)
        name = made["name"]
        return self._site.done(request, topic_link({"name": name}), f"Topic {name} is created.")

    async def _topic(self, request: Request) -> Response:
        site, name = self._site, request.path_params["topic"]
        one = f"topics/{segment(name)}"
        limit = {"limit": str(_PARTITIONS_SHOWN)}
        topic, placed, logs, groups = await asyncio.gather(
            site.get(request, one),
            site.get(request, "partitions", {**limit, "topic": name, "internal": "true"}),
            site.try_get(request, f"{one}/partitions", limit),
            site.try_get(request, "groups", {"limit": "100"}),
        )
        rows = _joined(placed["data"], (logs or {}).get("data", ()))
        readers = [each for each in (groups or {}).get("data", ()) if name in each["topics"]]
        may = {"delete": await site.may(request, "delete", "topic", name)}
        return site.page(
            request, "topic.html", f"Topic {name}", topic=topic, partitions=rows, groups=readers,
            left_out=max(0, placed["meta"]["total"] - len(rows)), may=may,
            records=_sum(rows, "records"), size=_sum(rows, "size_bytes"),
            missing=(logs or {}).get("meta", {}).get("missing", ()),
        )  # fmt: skip

    async def _alter(self, request: Request, form: Form) -> Response:
        """Fields that are empty go back to their default."""
        name = request.path_params["topic"]
        changed: dict[str, object] = {}
        reset = []
        for field, kind in _SETTINGS.items():
            if field not in form or form[field] == form.get(f"was_{field}", ""):
                continue
            if form[field] == "":
                reset.append(field)
            elif form[field] == "none":
                changed[field] = None
            else:
                changed[field] = _whole(field, form[field]) if kind is int else form[field]
        body = {"config": changed, "reset": reset}
        if not changed and not reset:
            return self._site.done(request, topic_link({"name": name}), "Nothing was changed.")
        await self._site.change(request, "PATCH", f"topics/{segment(name)}", body)
        fields = ", ".join([*changed, *reset])
        return self._site.done(request, topic_link({"name": name}), f"Changed: {fields}.")

    async def _delete(self, request: Request, form: Form) -> Response:
        name = request.path_params["topic"]
        if form.get("confirm") != name:
            raise ApiProblem(400, "INVALID_REQUEST", f"type the name, {name}, to delete the topic")
        await self._site.change(request, "DELETE", f"topics/{segment(name)}")
        return self._site.done(request, "/topics", f"Topic {name} is deleted.")

    async def _elect(self, request: Request, form: Form) -> Response:
        name, to = request.path_params["topic"], form.get("to", "")
        partition = _whole("partition", form.get("partition", ""))
        path = f"topics/{segment(name)}/partitions/{partition}/elect"
        done = await self._site.change(request, "POST", path, {"to": to} if to else {})
        text = f"Partition {partition} is led by {done['leader'] or 'no node yet'}."
        return self._site.done(request, topic_link({"name": name}), text)


def _whole(field: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ApiProblem(
            400, "INVALID_REQUEST", f"{field} is {text[:50]!r}; it takes a whole number"
        ) from None


def _joined(placed: Sequence[Row], logs: Sequence[Row]) -> list[dict[str, Any]]:
    """Partitions of the catalog, each with the log of its leader where that answered."""
    by_number = {each["partition"]: each for each in logs}
    return [{**by_number.get(each["partition"], {}), **each} for each in placed]


def _sum(rows: Sequence[Row], field: str) -> int | None:
    """None: not known of all."""
    values = [row.get(field) for row in rows]
    return None if None in values else sum(value for value in values if value is not None)
