"""Which bound partitions this node hears: those of which it has a replica. Records of the others
do not come here, so that a subscription to their names would be silent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.errors import UnknownTopic
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import TopicInfo
from lakemq.plugins.mqtt.routing.hub import Hub

_log: Final = logging.getLogger(__name__)
_TOLD_AGAIN_MS: Final = 60_000


class ClusterFeeds:
    """Keeps `Hub.positions` and `Hub.unheard` in step with the catalog."""

    def __init__(self, hub: Hub, broker: Broker, now_ms: Callable[[], int]) -> None:
        self._hub = hub
        self._broker = broker
        self._now_ms = now_ms
        self._topics = frozenset(binding.topic for binding in hub.bindings)
        self._topic_ids: dict[str, str] = {}
        self._missing: dict[str, frozenset[int]] = {}
        """Topic -> partitions of which this node has no replica."""
        self._tell_ms: dict[str, int] = {}
        """Topic -> when its next refused subscription is logged."""

    def start(self) -> list[Callable[[], None]]:
        """Follow topics from now on; returns the removals."""
        self._hub.unheard = self._unheard
        return [self._broker.watch_topics(self._changed)]

    def _changed(self, name: str, topic: TopicInfo | None) -> None:
        if name not in self._topics:
            return
        topic_id = topic.topic_id if topic is not None else ""
        if self._topic_ids.get(name, topic_id) != topic_id:
            self._forget(name)
        if topic is not None:
            self.note(topic)

    def _forget(self, name: str) -> None:
        """The topic was deleted: another one of its name begins at offset 0, and whatever lies
        below a position is taken for delivered."""
        self._missing.pop(name, None)
        for key in [key for key in self._hub.positions if key[0] == name]:
            del self._hub.positions[key]

    def note(self, topic: TopicInfo) -> None:
        """Partitions that this node has by now are delivered from their end on."""
        self._topic_ids[topic.name] = topic.topic_id
        missing = []
        for number in range(topic.partitions):
            key = (topic.name, number)
            end = self._broker.readable_end(*key)
            if end is not None:
                self._hub.positions.setdefault(key, end)
                continue
            # Records that come while it is away are not delivered late, when it is back.
            self._hub.positions.pop(key, None)
            # One that is not placed yet has no records either.
            if leadership(topic, number).replicas:
                missing.append(number)
        self._missing[topic.name] = frozenset(missing)

    def _unheard(self, name: str, key: bytes | None) -> bool:
        missing = self._missing.get(name)
        if not missing:
            return False
        try:
            topic = self._broker.topic(name)
        except UnknownTopic:  # nothing is in it
            return False
        if key is not None and partition_of(key, topic.partitions) not in missing:
            return False
        if self._now_ms() >= self._tell_ms.get(name, 0):
            self._tell_ms[name] = self._now_ms() + _TOLD_AGAIN_MS
            leaders = {leadership(topic, each).leader or "no node" for each in missing}
            _log.warning(
                "subscriptions to names that are bound to topic %s are refused: this node has no "
                "replica of %d of its partitions, which %s leads; subscribe there",
                name,
                len(missing),
                ", ".join(sorted(leaders)),
            )
        return True
