"""The partitions of a node that have replicas on other nodes too, put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.catalog_view import CatalogView
from lakemq.broker_core.cluster.network import PeerNetwork
from lakemq.broker_core.configuration.settings import ClusterSettings
from lakemq.broker_core.replication.assignments import Assignments
from lakemq.broker_core.replication.catalog_calls import CatalogCalls
from lakemq.broker_core.replication.lease import Lease
from lakemq.broker_core.replication.manager import Replication
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.remote.control_calls import ControlCalls

REFRESH_S: Final = 0.2
"""The whole catalog is read at most so often because a peer knows something newer."""
LET_GO_MAX_S: Final = 20.0
"""How long a stop waits until other nodes lead what this one led."""
_LOOK_S: Final = 0.05
_FENCED: Final = "fenced"


class NodeReplicas:
    """Lives on the event loop. `lease` is fed by who sends the node's heartbeats."""

    def __init__(
        self,
        node_id: str,
        network: PeerNetwork,
        control: ControlCalls,
        settings: ClusterSettings,
        is_full: Callable[[], bool],
    ) -> None:
        """`is_full()`: whether this node's disk takes no more records."""
        self.is_full = is_full
        self.lease = Lease()
        self.refusals = network.refusals
        self._nodes = network.nodes
        self._peers = network.peers
        self._calls = CatalogCalls(network.identity, control)
        self.replication = Replication(
            node_id,
            broker_epoch=network.identity.broker_epoch,
            follow=network.peers.follow,
            change_in_sync=self._calls.change_in_sync,
            registered=self._registered_nodes,
            stale=self._refresh_soon,
            resign=self._calls.resign,
            now_s=time.monotonic,
            holds_lease=self.holds_lease,
            is_full=is_full,
            lag_max_s=settings.replica_lag_max_ms / 1000,
            bytes_per_s=settings.replication_max_bytes_per_s,
        )
        self.assignments = Assignments(node_id, self.replication, self.lease, time.monotonic)
        self._catalog: CatalogView
        self._refreshing: asyncio.Task[None] | None = None
        network.server.serve_followers(self.replication.serve)

    def start(self, catalog: CatalogView) -> None:
        """`catalog`: assigns the partitions."""
        self._catalog = catalog
        self.replication.start()

    async def stop(self) -> None:
        """Let go of all logs and streams."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self.replication.stop()
        await self.refusals.stop()
        await self._calls.stop()

    # -- this node in the catalog

    def registered(self) -> None:
        """The node has registered: what it led before has ended."""
        self._peers.renew()
        self.assignments.registered()

    async def activated(self) -> None:
        """The registration is active: what the catalog says from now on is meant for this process.
        Raises MetaError."""
        await self._catalog.assign_all(self.assignments.activated)

    def holds_lease(self) -> bool:
        """Whether this node may lead now."""
        return self.lease.held(time.monotonic())

    async def let_go(self) -> None:
        """The node is leaving: returns when it leads nothing that another node could lead, after
        `LET_GO_MAX_S` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_MAX_S):
                while self.replication.led():  # noqa: ASYNC110  it falls once in a process's life
                    await asyncio.sleep(_LOOK_S)

    def lag_records(self) -> int:
        """The most records that a partition which this node follows lacks of those that its leader
        has committed."""
        return max(
            (
                each.leader_high_watermark - each.log.log_end_offset
                for each in self.replication.followed()
            ),
            default=0,
        )

    # -- other nodes

    def _registered_nodes(self) -> dict[str, int]:
        return {
            node.node_id: node.broker_epoch for node in self._nodes.nodes if node.state != _FENCED
        }

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        await asyncio.sleep(REFRESH_S)
        with suppress(MetaError):
            await self._catalog.refresh()
