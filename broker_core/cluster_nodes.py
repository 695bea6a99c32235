"""The nodes of the cluster as the catalog knows them, kept current so that an error can name the
address of a leader, and this node reach it, without asking anybody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.types import NodeInfo
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaClient, NodeRegistration, machine_of

_log: Final = logging.getLogger(__name__)
_POLL_S: Final = 2.0
_PAUSE_S: Final = 0.1
"""Between two polls at the least, however many calls of unknown nodes come."""
_NATIVE: Final = "native"
"""Listener whose address errors name."""
_PEER: Final = "peer"
"""Listener that other brokers connect to."""


class ClusterNodes:
    """Polls the MetaService for the registered nodes."""

    def __init__(self, meta: MetaClient) -> None:
        self.nodes: tuple[NodeInfo, ...] = ()
        """As of the last poll; empty before the first."""
        self._meta = meta
        self._by_id: dict[str, NodeInfo] = {}
        self._wanted = asyncio.Event()
        self._watchers: dict[Callable[[], None], None] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to poll."""
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Stop polling; `nodes` stays as it is."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def address_of(self, node_id: str) -> str:
        """`host:port` of the node's native listener; empty if unknown."""
        return self._address(node_id, _NATIVE)

    def peer_address_of(self, node_id: str) -> str:
        """`host:port` where the node listens for brokers; empty if unknown, and asked for soon."""
        address = self._address(node_id, _PEER)
        if not address:
            self.poll_soon()
        return address

    def _address(self, node_id: str, listener: str) -> str:
        node = self._by_id.get(node_id)
        return node.addresses.get(listener, "") if node is not None else ""

    def broker_epochs(self) -> Mapping[str, int]:
        """Node id -> number of its registration."""
        return {each.node_id: each.broker_epoch for each in self.nodes}

    def poll_soon(self) -> None:
        """Ask the MetaService at once rather than when it is due: a node was named that is not
        known here."""
        self._wanted.set()

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever `nodes` has changed; returns its removal."""
        self._watchers[on_change] = None
        return lambda: self._watchers.pop(on_change, None)

    async def _poll(self) -> None:
        while True:
            try:
                self._update(node_infos(await self._meta.nodes()))
            except MetaError as error:
                _log.debug("cannot read the cluster's nodes now: %s", error)
            await asyncio.sleep(_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S - _PAUSE_S):
                    await self._wanted.wait()
            self._wanted.clear()

    def _update(self, nodes: tuple[NodeInfo, ...]) -> None:
        if nodes == self.nodes:
            return
        self.nodes = nodes
        # Before watchers are called: they may ask for an address.
        self._by_id = {each.node_id: each for each in nodes}
        for watcher in list(self._watchers):
            watcher()


def node_infos(registrations: Iterable[NodeRegistration]) -> tuple[NodeInfo, ...]:
    """Registrations of the catalog as values of the broker's API."""
    return tuple(
        NodeInfo(
            each.node_id,
            each.addresses,
            each.rack,
            each.version,
            each.state,
            each.broker_epoch,
            machine_of(each),
        )
        for each in registrations
    )
