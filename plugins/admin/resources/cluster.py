"""The cluster as a whole, the node that answers, its plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode, PluginState
from lakemq.broker_core.api.administration.operations import Rebalance
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    NoQuery,
    OwnPageQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.leadership import LACKS, lacks
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import Operation
from lakemq.plugins.admin.resources.rights import may

_STRIDE = 250
"""Topics that are counted before others have their turn."""
_MOVES_SHOWN = 500


class MetaState(Answer):
    """The MetaService, as the member that answers sees it."""

    leader: str | None
    term: int
    members: list[str]
    revision: int
    """Of the catalog."""
    applied_index: int
    commit_index: int
    detail: dict[str, str | int]


class ClusterAnswer(Answer):
    """The cluster."""

    cluster_id: str
    node: str
    """Who answers."""
    version: str
    """Of that node."""
    nodes: dict[str, int]
    """State -> how many nodes are in it."""
    topics: int
    """Without those that the broker keeps for itself."""
    partitions: int
    replicas: int
    lacks: dict[str, int]
    """What partitions lack, and how many do."""
    meta: MetaState


class NodeAnswer(Answer):
    """The node that answers."""

    node_id: str
    cluster_id: str
    version: str
    ready: bool
    broker: bool
    """False: it is a member of the MetaService alone."""
    addresses: dict[str, str]
    meta: dict[str, Any]


class Advice(Answer):
    """Whether the cluster needs more nodes, or fewer."""

    nodes_wanted: int
    """More than there are; negative: fewer."""
    advice: list[str]


class MoveRow(Answer):
    """A partition that would move."""

    topic: str
    partition: int
    replicas: list[str]
    target: list[str]


class Moves(Answer):
    """A rebalance."""

    running: bool
    moving: int
    """Partitions that move now."""
    waiting: int
    """Partitions that have not begun."""
    copies: int
    """Replicas that these take."""
    moves: list[MoveRow]
    """The first of them."""


class RebalanceBody(Body):
    """What to do."""

    action: Literal["start", "stop"] = "start"
    at_once: int = Field(default=20, ge=1, le=1000)
    """Partitions that move at a time."""


class WhoAmI(Answer):
    """Who the caller is taken for, and what it may do to the cluster."""

    name: str
    kind: str
    roles: list[str]
    expires_ms: int | None
    may: list[str]
    """Operations on the cluster."""


class Quarantine(Answer):
    """The plugin's interceptor is not called, because it failed or took too long."""

    topic: str
    """For which it is not called; empty: for none."""
    reason: str
    retry_s: float
    """Until it is tried again; 0: with the next records."""
    records: str
    """What happens to them meanwhile: `refused`, or `stored` unseen."""


class PluginRow(Answer):
    """A plugin of a node."""

    node: str
    name: str
    version: str
    distribution: str
    enabled: bool
    hooks: list[str]
    error: str
    """Why it failed; empty: it did not."""
    settings: dict[str, Any]
    """Its section, secrets as `***`."""
    quarantines: list[Quarantine]


class PluginReload(Answer):
    """What a plugin's reload did, or would do."""

    node: str
    plugin: str
    before: str
    """Version that was in use."""
    version: str
    """The new one; the same where only files have changed."""
    hooks: list[str]
    """That the new code implements."""


class ClusterRoutes:
    """`/api/v1/cluster`, `/node`, `/plugins`, `/whoami`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        return [
            AdminRoute("GET", "cluster", self.cluster, ClusterAnswer, NoQuery),
            AdminRoute("GET", "cluster/advice", self.advice, Advice, NoQuery),
            AdminRoute("GET", "cluster/rebalance", self.plan, Moves, NoQuery),
            AdminRoute("POST", "cluster/rebalance", self.rebalance, Moves, ChangeQuery,
                       RebalanceBody, status=202),
            AdminRoute("GET", "node", self.node, NodeAnswer, OwnQuery, own=True),
            AdminRoute("GET", "whoami", self.who_am_i, WhoAmI, NoQuery, need=EACH),
            AdminListing(
                "plugins", PluginRow, self._plugins, self._plugin_rows, lambda each: each.name,
                {"name": lambda each: each.name}, query=OwnPageQuery, own=True,
                summary="List plugins, their settings and errors.",
            ),
            AdminRoute(
                "POST", "nodes/{node}/plugins/{plugin}/reload", self.reload_plugin, PluginReload,
                ChangeQuery, owner=lambda request: request.path["node"],
            ),
        ]  # fmt: skip

    async def cluster(self, request: AdminRequest) -> ClusterAnswer:
        """Tell how the cluster is."""
        node = self._node
        status, nodes = await node.operations.status(), await node.operations.nodes()
        topics = partitions = replicas = 0
        lacking = dict.fromkeys(LACKS, 0)
        for number, topic in enumerate(node.catalog.topics()):
            if number % _STRIDE == _STRIDE - 1:
                await node.give_way()
            if is_internal(topic.name):
                continue
            topics += 1
            partitions += topic.partitions
            for held in topic.leaders:
                replicas += len(held.replicas)
                for name in lacks(topic, held):
                    lacking[name] += 1
        states = [each.state for each in nodes]
        return ClusterAnswer(
            cluster_id=node.cluster_id,
            node=node.node_id,
            version=node.version,
            nodes={state: states.count(state) for state in ("active", "draining", "fenced")},
            topics=topics,
            partitions=partitions,
            replicas=replicas,
            lacks=lacking,
            meta=MetaState(
                leader=status.leader_id,
                term=status.term,
                members=list(status.members),
                revision=status.revision,
                applied_index=status.applied_index,
                commit_index=status.commit_index,
                detail=dict(status.detail),
            ),
        )

    async def advice(self, request: AdminRequest) -> Advice:
        """Say whether the cluster needs more nodes, or fewer."""
        found = await self._node.operations.loads()
        return Advice(nodes_wanted=found.nodes_wanted, advice=list(found.advice))

    async def plan(self, request: AdminRequest) -> Moves:
        """Show what a rebalance would move, or what one that runs has left."""
        return moves_of(await self._node.operations.rebalance("plan"))

    async def rebalance(self, request: AdminRequest) -> Moves:
        """Move as few replicas as needed to balance nodes and racks, or stop."""
        given = expect(request.given, RebalanceBody)
        if expect(request.asked, ChangeQuery).dry_run:
            return await self.plan(request)
        return moves_of(await self._node.operations.rebalance(given.action, at_once=given.at_once))

    async def node(self, request: AdminRequest) -> NodeAnswer:
        """Describe the node that answers."""
        node = self._node
        status = await node.operations.status()
        return NodeAnswer(
            node_id=node.node_id,
            cluster_id=node.cluster_id,
            version=node.version,
            ready=node.ready,
            broker=node.broker is not None,
            addresses=dict(node.addresses()),
            meta={
                "cluster_id": status.cluster_id,
                "member_id": status.member_id,
                "leader_id": status.leader_id,
                "term": status.term,
                "revision": status.revision,
                "members": list(status.members),
            },
        )

    async def who_am_i(self, request: AdminRequest) -> WhoAmI:
        """Tell who the caller is taken for."""
        who, catalog = request.principal, self._node.catalog
        return WhoAmI(
            name=who.name,
            kind=who.kind,
            roles=list(who.roles),
            expires_ms=who.expires_ms,
            may=[
                each.value
                for each in (Operation.DESCRIBE, Operation.ALTER)
                if may(catalog, request, each, "cluster", "cluster")
            ],
        )

    async def _plugins(self, request: AdminRequest) -> Sequence[PluginState]:
        return self._node.plugins()

    async def _plugin_rows(
        self, plugins: Sequence[PluginState], request: AdminRequest
    ) -> Sequence[PluginRow]:
        return [
            PluginRow(
                node=self._node.node_id,
                name=each.name,
                version=each.version,
                distribution=each.distribution,
                enabled=each.enabled,
                hooks=list(each.hooks),
                error=each.error,
                settings=dict(each.settings),
                quarantines=quarantines_of(each),
            )
            for each in plugins
        ]

    async def reload_plugin(self, request: AdminRequest) -> PluginReload:
        """Have a node import a plugin's code again and go on with it. Code that fails changes
        nothing. Plugins with listeners that have clients, or with a storage engine, need a
        restart."""
        name, dry_run = request.path["plugin"], expect(request.asked, ChangeQuery).dry_run
        done = await self._node.reload_plugin(name, dry_run=dry_run)
        request.notes["before"], request.notes["after"] = done.before, done.version
        return PluginReload(
            node=self._node.node_id, plugin=done.name, before=done.before, version=done.version,
            hooks=list(done.hooks),
        )  # fmt: skip


def quarantines_of(plugin: PluginState) -> list[Quarantine]:
    """As they are answered."""
    return [
        Quarantine(topic=each.topic, reason=each.reason, retry_s=each.retry_s, records=each.records)
        for each in plugin.quarantines
    ]


def moves_of(found: Rebalance) -> Moves:
    """A rebalance as it is answered."""
    return Moves(
        running=found.running,
        moving=found.moving,
        waiting=len(found.moves),
        copies=sum(len(set(move.target) - set(move.replicas)) for move in found.moves),
        moves=[
            MoveRow(
                topic=move.topic, partition=move.partition, replicas=list(move.replicas),
                target=list(move.target),
            )
            for move in found.moves[:_MOVES_SHOWN]
        ],
    )  # fmt: skip
