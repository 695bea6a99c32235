"""How many partitions lack something, kept current at the cost of what changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from lakemq.meta_service.api.partition_health import lacks
from lakemq.meta_service.catalog.pages.rows import decode_page
from lakemq.meta_service.catalog.tables import PAGE_PREFIX, TOPIC_PREFIX, Row
from lakemq.meta_service.catalog.topics import decode_topic, topic_key
from lakemq.meta_service.core.gateway import Gateway

ELIGIBLE_USED: Final = "eligible-used"
"""A partition whose in-sync set was short, with replicas that left it and hold what is
acknowledged: one of them may come to lead."""


class PartitionCounts:
    """Of the partitions in pages, so from feature level 4 on. Lives in the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._cache = gateway.cache
        self._changed: set[bytes] | None = None
        """Keys of rows; None: all of them."""
        self._pages: dict[bytes, tuple[str, Counter[str]]] = {}
        self._topics: dict[str, set[bytes]] = {}
        """Pages by the name of their topic: another number of wanted replicas changes them."""
        self._total: Counter[str] = Counter()
        gateway.listeners.append(self._note)

    def _note(self, rows: Sequence[tuple[bytes, Row | None]]) -> None:
        if self._changed is not None:
            keys = (key for key, _ in rows)
            self._changed.update(k for k in keys if k.startswith((TOPIC_PREFIX, PAGE_PREFIX)))

    def counts(self) -> Mapping[str, int]:
        """Partitions by what they lack (`partition_health.LACKS`, `ELIGIBLE_USED`); absent: 0."""
        changed, self._changed = self._changed, set()
        if changed is None:
            changed = {key for key, _ in self._cache.scan(PAGE_PREFIX)}
        pages = {key for key in changed if key.startswith(PAGE_PREFIX)}
        for key in changed - pages:
            pages |= self._topics.pop(key[len(TOPIC_PREFIX) :].decode(), set())
        for key in pages:
            topic, before = self._pages.pop(key, ("", Counter[str]()))
            self._total.subtract(before)
            self._topics.get(topic, set()).discard(key)
            row = self._cache.get(key)
            if row is not None:
                self._add(key, row)
        return self._total

    def _add(self, key: bytes, row: Row) -> None:
        page = decode_page(key[len(PAGE_PREFIX) :], row.value)
        head = self._cache.get(topic_key(page.topic))
        if head is None:
            return  # deleted with its pages: the change of this one comes
        topic = decode_topic(topic_key(page.topic), head.value, head.mod_revision)
        found = Counter(name for each in page.partitions for name in lacks(topic, each))
        found[ELIGIBLE_USED] = sum(bool(each.eligible) for each in page.partitions)
        self._pages[key] = page.topic, found
        self._topics.setdefault(page.topic, set()).add(key)
        self._total.update(found)
