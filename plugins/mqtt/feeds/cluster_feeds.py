"""Where records of bound partitions come from: a tap on this node's replica, or, where it has
none, a feed that reads them from the partition's leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.ports import Broker, Wanted
from lakemq.broker_core.api.types import TopicInfo
from lakemq.plugins.mqtt.feeds.arrivals import Arrivals
from lakemq.plugins.mqtt.feeds.partition_feed import PartitionFeed
from lakemq.plugins.mqtt.routing import history
from lakemq.plugins.mqtt.routing.hub import Hub

HEARD_MAX_S: Final = 1.0
"""How long a SUBACK waits for feeds that do not know yet where they begin."""


class ClusterFeeds:
    """Keeps `Hub.positions` in step with the catalog: every bound partition has one, behind which
    all records come here, wherever they are."""

    def __init__(self, hub: Hub, broker: Broker, arrivals: Arrivals) -> None:
        self._hub = hub
        self._broker = broker
        self._arrivals = arrivals
        self.wanted: Callable[[], Wanted | None] = lambda: None
        """As `PartitionFeed.wanted`."""
        self.still: Callable[[Wanted], bool] = lambda wanted: True
        self._topics = frozenset(binding.topic for binding in hub.bindings)
        self._topic_ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        """Topic -> partitions that it had."""
        self._unplaced: set[tuple[str, int]] = set()
        """Partitions that have been on no node so far."""
        self._feeds: dict[tuple[str, int], PartitionFeed] = {}
        self._begun = False
        self._heard = asyncio.Event()

    def start(self) -> list[Callable[[], None]]:
        """Follow topics from now on; returns the removals."""
        return [self._broker.watch_topics(self._changed), self._stop]

    def begin(self) -> None:
        """Read from leaders from now on: what was kept is restored."""
        self._begun = True
        for feed in self._feeds.values():
            feed.begin()

    def _stop(self) -> None:
        for feed in self._feeds.values():
            feed.stop()
        self._feeds.clear()

    async def heard(self, topics: Collection[str]) -> None:
        """Wait until all feeds of these topics know where they are; not longer than
        `HEARD_MAX_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_MAX_S):
                while not self._hub.unheard.isdisjoint(topics):
                    self._heard.clear()
                    await self._heard.wait()

    def read_whole(self, keys: Iterable[tuple[str, int]]) -> None:
        """Something waits until this node is further in these partitions: what leaders left out
        so far is read."""
        for key in keys:
            if key in self._feeds:
                self._feeds[key].read_whole()

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
        for key in [key for key in self._feeds if key[0] == name]:
            self._end(key)
        self._counts.pop(name, None)
        for key in [key for key in self._hub.positions if key[0] == name]:
            del self._hub.positions[key]

    def note(self, topic: TopicInfo) -> None:
        """Partitions that this node has are delivered from their end on, others from where their
        leader is; those that come later from their begin."""
        self._topic_ids[topic.name] = topic.topic_id
        before = self._counts.get(topic.name, topic.partitions if not self._begun else 0)
        self._counts[topic.name] = topic.partitions
        for number in range(topic.partitions):
            key = (topic.name, number)
            if number >= before:
                self._unplaced.add(key)
            end = self._broker.readable_end(*key)
            if end is not None:
                # A feed goes on until it has met the replica.
                if key not in self._feeds:
                    self._hub.positions.setdefault(key, 0 if key in self._unplaced else end)
                self._unplaced.discard(key)
            elif not leadership(topic, number).replicas:
                self._unplaced.add(key)
            elif key not in self._feeds:
                self._feed(key)

    def _feed(self, key: tuple[str, int]) -> None:
        if key in self._unplaced:  # whatever it has came since
            self._unplaced.discard(key)
            self._hub.positions.setdefault(key, 0)
        feed = PartitionFeed(key, self._hub.positions, self._broker, self._arrivals)
        feed.on_begun, feed.on_met = self._begun_at, self._end
        feed.wanted, feed.still = lambda: self.wanted(), lambda wanted: self.still(wanted)
        self._feeds[key] = feed
        self._arrivals.fed.add(key)
        self._look()
        if self._begun:
            feed.begin()

    def _end(self, key: tuple[str, int]) -> None:
        feed = self._feeds.pop(key, None)
        if feed is not None:
            self._arrivals.fed.discard(key)
            feed.stop()
            self._look()
            history.look_again(self._hub)

    def _begun_at(self, key: tuple[str, int]) -> None:
        history.partition_found(self._hub, key)
        self._look()

    def _look(self) -> None:
        self._hub.unheard = {key[0] for key in self._feeds if key not in self._hub.positions}
        self._heard.set()
