"""The nodes of the cluster as the catalog knows them, kept current so that an error can name the
address of a leader without asking anybody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.types import NodeInfo
from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.types import MetaClient, NodeRegistration

_log: Final = logging.getLogger(__name__)
_POLL_S: Final = 2.0
_NATIVE: Final = "native"
"""Listener whose address errors name."""


class ClusterNodes:
    """Polls the MetaService for the registered nodes."""

    def __init__(self, meta: MetaClient) -> None:
        self.nodes: tuple[NodeInfo, ...] = ()
        """As of the last poll; empty before the first."""
        self._meta = meta
        self._addresses: dict[str, str] = {}
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
        return self._addresses.get(node_id, "")

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
            await asyncio.sleep(_POLL_S)

    def _update(self, nodes: tuple[NodeInfo, ...]) -> None:
        if nodes == self.nodes:
            return
        self.nodes = nodes
        # Before watchers are called: they may ask for an address.
        self._addresses = {each.node_id: each.addresses.get(_NATIVE, "") for each in nodes}
        for watcher in list(self._watchers):
            watcher()


def node_infos(registrations: Iterable[NodeRegistration]) -> tuple[NodeInfo, ...]:
    """Registrations of the catalog as values of the broker's API."""
    return tuple(
        NodeInfo(each.node_id, each.addresses, each.rack, each.version, each.state)
        for each in registrations
    )
