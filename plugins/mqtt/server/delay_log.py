"""Delayed publishes in their topic: read at start, removed when published."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.routing.delaying import POSITIONS_KEY, DelayRecovery, release_removed
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.snapshots import positions_bytes

log = logging.getLogger(__name__)


class DelayLog:
    """Topic `__mqtt_delayed`: one record for each publish that waits."""

    def __init__(
        self, hub: Hub, topic: StateTopic, now_ms: Callable[[], int], salvage: Salvage
    ) -> None:
        self._salvage = salvage
        self._hub = hub
        self._topic = topic
        self._now_ms = now_ms
        self._written_at = 0
        self._writing = False
        self._failed = False
        """The last append failed: the next one waits for a checkpoint."""

    async def read(self) -> None:
        """Know all publishes that wait. Sessions must be there already: they learn which of their
        QoS 2 publishes are in this topic."""
        recovery = DelayRecovery(self._hub)
        async for _, batch in self._topic.batches():
            recovery.batch(batch)
        for place, problem in recovery.finish():
            self._salvage.refused(place, problem)

    @property
    def due(self) -> bool:
        """Whether an append can and should begin."""
        return bool(self._hub.delays.removed) and not self._writing and not self._failed

    def write(self, after: Callable[[], None]) -> None:
        """Remove what was published, if anything was and no removal is under way."""
        if self.due:
            self._write(after)

    def begin(self) -> None:
        """Everything was read: keep from where on publishes of this life may lie."""
        self._hub.delays.ready = False
        self._write(lambda: None)

    def checkpoint(self, records_max: int) -> None:
        """Keep how far the bound topics need not be read again, when that has grown much."""
        self._failed = False
        behind = self._hub.delivered - self._written_at
        delays = self._hub.delays
        old = bool(delays) and behind > records_max
        if not self._writing and (old or not delays.ready):
            self._write(lambda: None)

    def _write(self, after: Callable[[], None]) -> None:
        """All removals in one append with the positions, so that these are never kept without the
        removals below them."""
        hub, delivered = self._hub, self._hub.delivered
        removed, hub.delays.removed = hub.delays.removed, []
        leaving = hub.delays.take_leaving()  # their removals are among these
        positions = dict(hub.positions)  # a copy: the hub goes on while this is appended

        def written(error: LakeMQError | None) -> None:
            self._writing = False
            if error is None:
                self._written_at = delivered
                hub.delays.kept_positions, hub.delays.ready = positions, True
                release_removed(hub, leaving, self._now_ms())
            else:
                self._failed = True
                log.error("delayed publishes could not be removed yet: %s", error)
                # Back in front of what was removed since.
                hub.delays.removed = removed + hub.delays.removed
                hub.delays.leaving = leaving + hub.delays.leaving
            after()

        self._writing = True
        entries: dict[bytes, bytes | None] = {key.encode(): None for key in removed}
        entries[POSITIONS_KEY] = positions_bytes(positions)
        self._topic.write_all(entries, written)
