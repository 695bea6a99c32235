"""Nodes, the MetaService, and moving partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakemq.plugins.admin.dashboard.client import ApiProblem, segment
from lakemq.plugins.admin.dashboard.guard import Form
from lakemq.plugins.admin.dashboard.site import Site


class ClusterPages:
    """Can this node be restarted now?"""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> Sequence[Route]:
        """Pages and forms."""
        site = self._site
        return [
            site.get_route("/cluster", self._cluster),
            site.post_route("/cluster/rebalance", self._rebalance),
            site.post_route("/nodes/{node}/{action}", self._node),
        ]

    async def _cluster(self, request: Request) -> Response:
        site = self._site
        cluster, nodes, moves, advice = await asyncio.gather(
            site.get(request, "cluster"),
            site.get(request, "nodes", {"limit": "500"}),
            site.try_get(request, "cluster/rebalance"),
            site.try_get(request, "cluster/advice"),
        )
        active = [each["node"] for each in nodes["data"] if each["state"] == "active"]
        return site.page(
            request, "cluster.html", "Cluster", cluster=cluster, nodes=nodes["data"], moves=moves,
            advice=(advice or {}).get("advice", ()), active=active,
        )  # fmt: skip

    async def _rebalance(self, request: Request, form: Form) -> Response:
        action = form.get("action", "start")
        done = await self._site.change(request, "POST", "cluster/rebalance", {"action": action})
        if action == "stop":
            return self._site.done(request, "/cluster", "No more partitions begin to move.")
        text = f"{done['moving'] + done['waiting']} partitions are to move."
        return self._site.done(request, "/cluster", text)

    async def _node(self, request: Request, form: Form) -> Response:
        node, action = request.path_params["node"], request.path_params["action"]
        one = f"nodes/{segment(node)}"
        if action in ("decommission", "remove") and form.get("confirm") != node:
            raise ApiProblem(
                400, "INVALID_REQUEST", f"type the node's name, {node}, to {action} it"
            )
        if action == "remove":
            await self._site.change(request, "DELETE", one)
        elif action in ("drain", "undrain", "decommission"):
            await self._site.change(request, "POST", f"{one}/{action}")
        else:
            raise ApiProblem(404, "UNKNOWN_PATH", f"{action[:50]!r} is nothing that a node does")
        said = {
            "drain": f"{node} gives away what it leads.",
            "undrain": f"{node} takes part again.",
            "decommission": f"{node} gives away its replicas.",
            "remove": f"{node} is removed.",
        }
        return self._site.done(request, "/cluster", said[action])
