"""Nodes: list, drain, undrain, decommission, remove."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.operations import NodeReport
from lakemq.broker_core.api.administration.routes import (
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    NoQuery,
    expect,
)
from lakemq.broker_core.api.errors import UnknownEntry, UnknownNode
from lakemq.plugins.admin.resources.cluster import (
    Moves,
    Quarantine,
    moves_of,
    quarantines_of,
)


class NodeRow(Answer):
    """A registered node."""

    node: str
    state: str
    """`active`, `draining` or `fenced`."""
    rack: str
    roles: list[str]
    """Empty: all."""
    leads: int
    """Partitions."""
    replicas: int
    figures: dict[str, float]
    """Of its last heartbeat, such as `disk_used_ratio`."""
    silent_s: float | None
    """Since that heartbeat; null: the MetaService's leader has heard of none."""
    version: str
    broker_epoch: int
    addresses: dict[str, str]
    """Listener -> `host:port`."""


class NodeState(Answer):
    """A node behind a change, or before one that was only tried."""

    node: str
    state: str


class MetricsText(Answer):
    """What `/metrics` of a node says."""

    text: str
    """In Prometheus' text format."""


class PluginResumed(Answer):
    """A plugin that is called again, or would be."""

    node: str
    plugin: str
    ended: list[Quarantine]


class DecommissionBody(Body):
    """How a node is emptied."""

    at_once: int = Field(default=20, ge=1, le=1000)
    """Partitions that move at a time."""


class NodeRoutes:
    """Below `/api/v1/nodes`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "nodes/{node}"
        return [
            AdminListing(
                "nodes", NodeRow, self._all, self._rows, lambda each: each.node,
                {
                    "node": lambda each: each.node,
                    "state": lambda each: each.state,
                    "rack": lambda each: each.rack,
                    "leads": lambda each: each.leads,
                    "replicas": lambda each: each.replicas,
                    "silent_s": lambda each: each.silent_s,
                },
                summary="List the nodes of the cluster.",
            ),
            AdminRoute("GET", one, self.describe, NodeRow, NoQuery),
            AdminRoute("GET", f"{one}/metrics", self.metrics, MetricsText, NoQuery,
                       owner=lambda request: request.path["node"]),
            AdminRoute("POST", f"{one}/drain", self.drain, NodeState, ChangeQuery),
            AdminRoute("POST", f"{one}/undrain", self.undrain, NodeState, ChangeQuery),
            AdminRoute("POST", f"{one}/decommission", self.decommission, Moves, ChangeQuery,
                       DecommissionBody, status=202),
            AdminRoute("POST", f"{one}/plugins/{{plugin}}/resume", self.resume_plugin,
                       PluginResumed, ChangeQuery, owner=lambda request: request.path["node"]),
            AdminRoute("DELETE", one, self.remove, NodeState, ChangeQuery),
        ]  # fmt: skip

    async def _all(self, request: AdminRequest) -> Sequence[NodeReport]:
        return await self._node.operations.nodes()

    async def _rows(self, nodes: Sequence[NodeReport], request: AdminRequest) -> Sequence[NodeRow]:
        return [_row(each) for each in nodes]

    async def _find(self, request: AdminRequest) -> NodeReport:
        name = request.path["node"]
        for each in await self._node.operations.nodes():
            if each.node == name:
                request.notes["before"] = {"state": each.state}
                return each
        raise UnknownNode(f"node {name!r} is not registered")

    async def describe(self, request: AdminRequest) -> NodeRow:
        """Describe a node. Raises UnknownNode."""
        return _row(await self._find(request))

    async def metrics(self, request: AdminRequest) -> MetricsText:
        """Metrics of one node, or one process of a node, in Prometheus' text format."""
        return MetricsText(text=self._node.metrics()[0].decode())

    async def drain(self, request: AdminRequest) -> NodeState:
        """Move leadership away from a node, and place nothing new there."""
        found = await self._find(request)
        if not _is_dry(request):
            await self._node.operations.drain(found.node)
            return NodeState(node=found.node, state="draining")
        return NodeState(node=found.node, state=found.state)

    async def undrain(self, request: AdminRequest) -> NodeState:
        """Let a node that drains take leaderships and replicas again."""
        found = await self._find(request)
        if not _is_dry(request):
            await self._node.operations.undrain(found.node)
            return NodeState(node=found.node, state="active")
        return NodeState(node=found.node, state=found.state)

    async def decommission(self, request: AdminRequest) -> Moves:
        """Drain a node and move all replicas off it, in the background. When it holds none it may
        be stopped and removed. The MetaService's group and internal topics of the node are left:
        `lakemq node decommission` takes care of those, too."""
        found, given = await self._find(request), expect(request.given, DecommissionBody)
        operations = self._node.operations
        if _is_dry(request):
            return moves_of(await operations.rebalance("plan", leaving=[found.node]))
        moves = await operations.rebalance("start", leaving=[found.node], at_once=given.at_once)
        await operations.drain(found.node)
        return moves_of(moves)

    async def resume_plugin(self, request: AdminRequest) -> PluginResumed:
        """Call a plugin's interceptors on a node again: its quarantines end now. Raises
        UnknownEntry."""
        name = request.path["plugin"]
        for each in self._node.plugins():
            if each.name == name:
                break
        else:
            raise UnknownEntry(f"no plugin {name[:100]!r} on node {self._node.node_id}")
        ended = quarantines_of(each)
        request.notes["before"] = {"quarantines": [one.model_dump() for one in ended]}
        if not _is_dry(request):
            self._node.resume_plugin(name)
        return PluginResumed(node=self._node.node_id, plugin=name, ended=ended)

    async def remove(self, request: AdminRequest) -> NodeState:
        """Remove a node that is gone for good; refused while it is alive or holds replicas."""
        found = await self._find(request)
        if not _is_dry(request):
            await self._node.operations.remove(found.node)
        return NodeState(node=found.node, state="removed" if not _is_dry(request) else found.state)


def _is_dry(request: AdminRequest) -> bool:
    return expect(request.asked, ChangeQuery).dry_run


def _row(found: NodeReport) -> NodeRow:
    return NodeRow(
        node=found.node,
        state=found.state,
        rack=found.rack,
        roles=list(found.roles),
        leads=found.leads,
        replicas=found.replicas,
        figures=dict(found.figures),
        silent_s=found.silent_s,
        version=found.version,
        broker_epoch=found.broker_epoch,
        addresses=dict(found.addresses),
    )
