"""Bytes of partitions as their leaders tell them with heartbeats: soft state of the Raft leader.

A new leader knows them when nodes have told them again, see `broker_core.partition_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakemq.meta_service.catalog.pages.rows import page_id, page_key, topic_id_of
from lakemq.meta_service.catalog.tables import PAGE_PREFIX, Row
from lakemq.meta_service.control.balance import Sizes
from lakemq.meta_service.core.gateway import Gateway


class PartitionSizes:
    """Of partitions in pages, so from feature level 4 on: as many as the catalog has, whatever
    nodes say. Lives in the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._cache = gateway.cache
        self._pages: dict[bytes, dict[int, int]] = {}
        """Page key -> partition -> bytes."""
        gateway.listeners.append(self._forget)

    def _forget(self, rows: Sequence[tuple[bytes, Row | None]]) -> None:
        for key, row in rows:
            if row is None and key.startswith(PAGE_PREFIX):
                self._pages.pop(key, None)

    def restart(self) -> None:
        """This member has become the leader."""
        self._pages.clear()

    def note(self, told: Iterable[tuple[str, int, int]]) -> None:
        """(topic id, partition, bytes) of some partitions; of those that the catalog lacks nothing
        is kept."""
        for topic_id, partition, size in told:
            key = page_key(page_id(topic_id, partition))
            if self._cache.get(key) is not None:
                self._pages.setdefault(key, {})[partition] = size

    def sizes(self) -> Sizes:
        """(topic id, partition) -> bytes, of those that were told; a copy."""
        prefix = len(PAGE_PREFIX)
        return {
            (topic_id_of(key[prefix:]), partition): size
            for key, page in self._pages.items()
            for partition, size in page.items()
        }
