"""Brings partitions in line with nodes: on the Raft leader alone, by pages that name those nodes.

Only pages that are amiss go into commands: an idle cluster writes nothing to its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from lakemq.meta_service.api.types import NodeRegistration
from lakemq.meta_service.catalog.nodes import decode_node
from lakemq.meta_service.catalog.pages.cluster import Cluster, Lost, decode_lost
from lakemq.meta_service.catalog.pages.commands import CHANGES_MAX, ForgetLost, SettlePages
from lakemq.meta_service.catalog.pages.rows import decode_page, index_prefix, page_key
from lakemq.meta_service.catalog.partitions import is_unclean
from lakemq.meta_service.catalog.results import value_of
from lakemq.meta_service.catalog.tables import LOST_PREFIX, NODE_PREFIX, PAGE_PREFIX, Row
from lakemq.meta_service.catalog.topics import decode_topic, topic_key
from lakemq.meta_service.core.gateway import Gateway

LOG: Final = logging.getLogger(__name__)
PREFERRED_S: Final = 30.0
"""Time without a change of any node after which leadership goes back to first replicas."""
_PAGES_MAX: Final = 1_000_000
_TURN: Final = 200
"""Pages that are looked at before the event loop turns: heartbeats are taken in it."""

Signature = tuple[str, int, bool, bool, int]
"""What a node's partitions depend on: state, broker epoch, leaving, admitted, what it has lost."""


class Stored(Protocol):
    """The stored catalog, read from the event loop."""

    # The stored value; None: absent.
    def get(self, key: bytes) -> bytes | None: ...

    def first(self, prefix: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first keys with that prefix."""


class Settling:
    """Part of the controller, from feature level 4 on. Lives in the event loop."""

    def __init__(
        self,
        gateway: Gateway,
        stored: Stored,
        full: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`full()`: nodes that get a leadership only where no other can lead, as their disks are
        full."""
        self._full = full
        self._gateway = gateway
        self._stored = stored
        self._settled: dict[str, Signature] = {}
        self._changed: set[bytes] = set()
        self._changed_s = 0.0
        self._preferred_s = 0.0
        gateway.listeners.append(self._note)

    def _note(self, rows: Sequence[tuple[bytes, Row | None]]) -> None:
        self._changed.update(
            key[len(PAGE_PREFIX) :] for key, _ in rows if key.startswith(PAGE_PREFIX)
        )

    def restart(self, now_s: float) -> None:
        """This member has become the leader: nothing is known to be settled."""
        self._settled.clear()
        self._changed_s = self._preferred_s = now_s
        prefix = len(PAGE_PREFIX)
        self._changed = {key[prefix:] for key, _ in self._gateway.cache.scan(PAGE_PREFIX)}

    def is_settled(self, node: NodeRegistration) -> bool:
        """Whether partitions agree with what the node is now."""
        lost = self._gateway.cache.get(LOST_PREFIX + node.node_id.encode())
        return self._settled.get(node.node_id) == _signature(node, lost)

    async def step(self, now_s: float) -> None:
        """Settle what nodes' changes have made amiss. Raises MetaError; the next step goes on."""
        nodes, lost = self._nodes(), self._lost()
        wanted = {
            node.node_id: _signature(node, self._gateway.cache.get(_lost_key(node.node_id)))
            for node in nodes
        }
        amiss = [name for name, signature in wanted.items() if self._settled.get(name) != signature]
        if amiss:
            self._changed_s = now_s
            avoid = tuple(self._full())
            cluster = Cluster(nodes, lost, avoid)
            await self._settle(cluster, self._pages_of(amiss), avoid, preferred=False)
            # Noted behind the commands: if one fails, the next step tries again.
            self._settled = wanted
            await self._forget([name for name in amiss if name in lost])
        # Not at once either when a page changes: a leader that has just resigned would get its
        # partition back.
        elif self._changed and now_s - max(self._changed_s, self._preferred_s) > PREFERRED_S:
            self._preferred_s = now_s
            avoid = tuple(self._full())
            later = self._preferring(avoid)
            pages, self._changed = sorted(self._changed - later), later
            await self._settle(Cluster(nodes, lost, avoid), pages, avoid, preferred=True)

    def _preferring(self, full: Collection[str]) -> set[bytes]:
        """Those of the changed pages with a partition that would go back to one of these nodes."""
        found: set[bytes] = set()
        for page in self._changed if full else ():
            row = self._gateway.cache.get(page_key(page))
            if row is not None and any(
                each.replicas[0] in full and each.leader != each.replicas[0]
                for each in decode_page(page, row.value).partitions
            ):
                found.add(page)
        return found

    def _nodes(self) -> list[NodeRegistration]:
        rows = self._gateway.cache.scan(NODE_PREFIX)
        return [decode_node(key, row.value) for key, row in rows]

    def _lost(self) -> dict[str, Lost]:
        rows = self._gateway.cache.scan(LOST_PREFIX)
        return {key[len(LOST_PREFIX) :].decode(): decode_lost(row.value) for key, row in rows}

    def _pages_of(self, nodes: Iterable[str]) -> list[bytes]:
        """The ids of pages that name one of the nodes, in order."""
        found: set[bytes] = set()
        for name in nodes:
            prefix = index_prefix(name)
            keys = self._stored.first(prefix, _PAGES_MAX)
            found.update(key[len(prefix) :] for key, _ in keys)
        return sorted(found)

    async def _settle(
        self, cluster: Cluster, pages: Sequence[bytes], avoid: tuple[str, ...], *, preferred: bool
    ) -> None:
        """In several commands, so that none keeps the Raft thread for long."""
        unclean: dict[str, bool] = {}
        batch: list[bytes] = []
        partitions = 0
        for number, page in enumerate(pages, 1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            count = self._amiss(cluster, page, unclean, preferred)
            if count and (partitions + count > CHANGES_MAX or len(batch) == CHANGES_MAX):
                await self._propose(batch, preferred, avoid)
                batch, partitions = [], 0
            if count:
                batch.append(page)
                partitions += count
        if batch:
            await self._propose(batch, preferred, avoid)

    def _amiss(
        self, cluster: Cluster, page: bytes, unclean: dict[str, bool], preferred: bool
    ) -> int:
        """Number of the page's partitions if any of them is not as it should be, else 0."""
        row = self._gateway.cache.get(page_key(page))
        if row is None:
            return 0  # deleted, or newer than what is known here: such pages begin settled
        found = decode_page(page, row.value)
        if found.topic not in unclean:
            head = self._gateway.cache.get(topic_key(found.topic))
            config: Mapping[str, str | int | None] = {}
            if head is not None:
                config = decode_topic(topic_key(found.topic), head.value, 0).config
            unclean[found.topic] = is_unclean(config)
        wanted = unclean[found.topic]
        # The command finds out which ones: one that is amiss is enough to know here.
        amiss = cluster.is_amiss(page, found, unclean=wanted, preferred=preferred)
        return len(found.partitions) if amiss else 0

    async def _propose(
        self, pages: Sequence[bytes], preferred: bool, avoid: tuple[str, ...]
    ) -> None:
        value_of(await self._gateway.propose(SettlePages(tuple(pages), preferred, avoid)))

    async def _forget(self, nodes: Sequence[str]) -> None:
        """The disks that they lost, now that nothing rests on them."""
        for name in nodes:
            if (await self._gateway.propose(ForgetLost(name))).code:
                self._settled.pop(name, None)  # something still does: look again
            else:
                LOG.warning("node %s has lost a disk, or replicas on it: it begins to copy", name)


def _lost_key(node_id: str) -> bytes:
    return LOST_PREFIX + node_id.encode()


def _signature(node: NodeRegistration, lost: Row | None) -> Signature:
    revision = lost.mod_revision if lost is not None else 0
    return (node.state, node.broker_epoch, node.leaving, node.admitted, revision)
