"""Clears away what has ended: MQTT sessions, manifests of topics that are gone.

On the Raft leader alone. It knows from the rows that change what there is to do, so it costs
nothing where nothing ends.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from meta_service.api.errors import MetaError
from meta_service.catalog.journal import BY_TOPIC, CHANGES_MAX, JOURNAL_PREFIX, CollectTopic
from meta_service.catalog.mqtt import (
    EXPIRED_MAX,
    SESSION_PREFIX,
    ExpireMqttSessions,
    decode_session,
)
from meta_service.catalog.results import value_of
from meta_service.catalog.tables import TOPIC_PREFIX, Row
from meta_service.catalog.topics import decode_topic
from meta_service.core.gateway import Gateway

LOG: Final = logging.getLogger(__name__)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Collector:
    """Part of the controller. Lives in the event loop."""

    def __init__(self, gateway: Gateway, now_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._gateway = gateway
        self._now_ms = now_ms
        self._ends: list[tuple[int, str]] = []
        """A heap of (ms since 1970, client id); some of them have been claimed again since."""
        self._topics_deleted = False
        gateway.listeners.append(self._note)

    def _note(self, rows: Sequence[tuple[bytes, Row | None]]) -> None:
        for key, row in rows:
            if row is None:
                self._topics_deleted |= key.startswith(TOPIC_PREFIX)
            elif key.startswith(SESSION_PREFIX):
                self._note_session(key, row)

    def _note_session(self, key: bytes, row: Row) -> None:
        session = decode_session(key, row.value, row.mod_revision)
        if session.ends_ms:
            heapq.heappush(self._ends, (session.ends_ms, session.client_id))

    def restart(self) -> None:
        """This member has become the leader: look at everything once."""
        self._ends.clear()
        for key, row in self._gateway.cache.scan(SESSION_PREFIX):
            self._note_session(key, row)
        self._topics_deleted = True

    async def step(self) -> None:
        await self._expire()
        if self._topics_deleted:
            self._topics_deleted = await self._collect()

    async def _expire(self) -> None:
        now_ms = self._now_ms()
        over: list[tuple[int, str]] = []
        while self._ends and self._ends[0][0] <= now_ms and len(over) < EXPIRED_MAX:
            over.append(heapq.heappop(self._ends))
        if not over:
            return
        client_ids = dict.fromkeys(client_id for _, client_id in over)
        try:
            command = ExpireMqttSessions(tuple(client_ids), now_ms)
            ended = value_of(await self._gateway.propose(command))
        except MetaError:
            for each in over:
                heapq.heappush(self._ends, each)
            raise
        LOG.info("%d MQTT sessions have expired", ended)

    async def _collect(self) -> bool:
        """Whether there is more to do."""
        cache = self._gateway.cache
        if next(cache.scan(JOURNAL_PREFIX, 1), None) is None:
            return False
        topics = cache.scan(TOPIC_PREFIX)
        known = {bytes.fromhex(decode_topic(k, row.value, 0).topic_id) for k, row in topics}
        gone: dict[bytes, list[bytes]] = {}
        for prefix in BY_TOPIC:
            for key, _ in cache.scan(prefix):
                topic_id = key[len(prefix) : len(prefix) + 16]
                if topic_id not in known:
                    gone.setdefault(topic_id, []).append(key)
        for topic_id, keys in gone.items():
            command = CollectTopic(topic_id.hex(), tuple(keys[:CHANGES_MAX]))
            value_of(await self._gateway.propose(command))
        return bool(gone)
