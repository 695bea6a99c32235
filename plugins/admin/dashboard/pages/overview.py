"""Is it well? What first?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.metrics import PLOTS, Sample
from lakemq.plugins.admin.dashboard.site import Site, session_of

_DISK_WARNING: Final = 0.85
_DISK_FAILING: Final = 0.95
_NUMBERS: Final = 12
"""Samples in the table behind a plot: the last minute."""


class Finding(NamedTuple):
    """A line of "Needs attention"."""

    harm: int
    """0: the worst."""
    state: str
    what: str
    path: str
    step: str


_LACKS: Final = {
    "leaderless": (0, "failing", "partitions have no leader: they can be neither read nor written"),
    "under-min-in-sync": (1, "failing", "partitions have too few in-sync replicas: acks=all fails"),
    "under-replicated": (3, "warning", "partitions have fewer in-sync replicas than they should"),
    "moving": (5, "moving", "partitions move to other nodes"),
}  # fmt: skip


class OverviewPages:
    """The first page, and what its plots ask for."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and data of plots."""
        site = self._site
        return [
            site.get_route("/", self._overview),
            site.get_route("/attention", self._attention),
            site.get_route("/history", self._history),
            site.get_route("/events", self._events),
        ]

    async def _overview(self, request: Request) -> Response:
        values = await self._looked(request)
        sees_plots = "describe" in session_of(request).may
        samples = self._site.poller.history.samples if sees_plots else ()
        return self._site.page(
            request, "overview.html", "Overview", plots=PLOTS if sees_plots else (),
            lacking=self._site.poller.failed if sees_plots else "",
            numbers=[_read(sample) for sample in list(samples)[-_NUMBERS:]][::-1], **values,
        )  # fmt: skip

    async def _attention(self, request: Request) -> Response:
        """The tiles and findings again, for a page that stays open."""
        template = self._site.templates.get_template("attention.html")
        return Response(template.render(**await self._looked(request)), media_type="text/html")

    async def _looked(self, request: Request) -> dict[str, Any]:
        site = self._site
        cluster = await site.get(request, "cluster")
        nodes = (await site.get(request, "nodes", {"limit": "500"}))["data"]
        advice = await site.try_get(request, "cluster/advice")
        plugins = await site.try_get(request, "plugins", {"limit": "500"})
        slow = await site.try_get(request, "mqtt/slow", {"limit": "1"})
        clients = await site.try_get(request, "mqtt/clients", {"limit": "1", "connected": "true"})
        found = [
            *_of_partitions(cluster["lacks"]), *_of_meta(cluster["meta"]), *_of_nodes(nodes),
            *_of_plugins((plugins or {}).get("data", ())),
            *(Finding(6, "warning", text, "/cluster", "Look at the cluster")
              for text in (advice or {}).get("advice", ())),
        ]  # fmt: skip
        if slow and slow["meta"]["total"]:
            what = f"{slow['meta']['total']} MQTT clients are slow to take messages"
            found.append(Finding(4, "warning", what, "/clients-slow", "See who"))
        last = self._site.poller.history.last
        return {
            "cluster": cluster,
            "findings": sorted(found),
            "clients": None if clients is None else clients["meta"]["total"],
            "last": None if last is None else _read(last),
            "as_of": datetime.now(UTC).strftime("%H:%M:%S"),
        }

    async def _history(self, request: Request) -> Response:
        if "describe" not in session_of(request).may:
            return PlainTextResponse("You may not describe the cluster.", 403)
        return JSONResponse(self._site.poller.history.columns())

    async def _events(self, request: Request) -> Response:
        if "describe" not in session_of(request).may:
            return PlainTextResponse("You may not describe the cluster.", 403)
        if not self._site.poller.has_room(session_of(request).name):
            return PlainTextResponse("Too many pages are open.", 503)
        return StreamingResponse(
            self._lines(request), media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )  # fmt: skip

    async def _lines(self, request: Request) -> AsyncIterator[str]:
        """Ends with the session."""
        token = session_of(request).token
        async for line in self._site.poller.stream(session_of(request).name):
            if self._site.sessions.find(token) is None:
                return
            yield line


def _read(sample: Sample) -> dict[str, Any]:
    at_s = sample["t"] or 0.0
    return {**sample, "at": datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")}


def _of_partitions(lacks: Mapping[str, int]) -> list[Finding]:
    return [
        Finding(harm, state, f"{lacks[name]} {what}", f"/partitions?lacks={name}", "See which")
        for name, (harm, state, what) in _LACKS.items()
        if lacks.get(name)
    ]


def _of_meta(meta: Mapping[str, Any]) -> list[Finding]:
    if meta["leader"] is None:
        what = "the MetaService has no leader: nothing can be changed, and no failed node replaced"
        return [Finding(0, "failing", what, "/cluster", "See its members")]
    return []


def _of_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for each in nodes:
        node, disk = each["node"], each["figures"].get("disk_used_ratio")
        path = f"/cluster#{node}"
        if each["state"] == "fenced":
            found.append(Finding(1, "fenced", f"{node} sends no heartbeats", path, "See the node"))
        elif each["state"] == "draining":
            found.append(Finding(5, "draining", f"{node} is drained", path, "See the node"))
        if disk is not None and disk >= _DISK_WARNING:
            state = "failing" if disk >= _DISK_FAILING else "warning"
            what = f"the disk of {node} is {disk:.0%} full"
            found.append(Finding(2, state, what, path, "Shorten retention, or add a node"))
    return found


def _of_plugins(plugins: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for each in plugins:
        name = f"plugin {each['name']} of {each['node']}"
        if each["error"] and each["enabled"]:
            what = f"{name}: {each['error']}"
            found.append(Finding(2, "failed", what, "/plugins", "See plugins"))
        # A node of an older version tells of none.
        for one in each.get("quarantines", ()):
            where = f"for topic {one['topic']}" if one["topic"] else "for all topics"
            what = f"{name} is quarantined {where}, records are {one['records']}: {one['reason']}"
            found.append(Finding(1, "quarantined", what, "/plugins", "See plugins"))
    return found
