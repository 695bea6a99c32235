"""A node that is being drained sends its clients to the other server. Edge: asks the MetaService.

It is done where `server_reference` names one: those who come are sent there at once, those who are
connected a bounded number a second, so that the other server is not stormed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.limits import Limits
from lakemq.plugins.mqtt.routing.hub import Hub

LOOK_EVERY_TICKS: Final = 5
SENT_AWAY_PER_TICK: Final = 1_000


class Draining:
    """Whether this node is drained, and what follows from it."""

    def __init__(self, hub: Hub, broker: Broker) -> None:
        self._hub = hub
        self._broker = broker
        self._usual = hub.limits
        self._ticks = 0
        self.active = False

    def due(self) -> bool:
        """Whether it is time to `look`; call once a tick."""
        self._ticks += 1
        return bool(self._usual.server_reference) and self._ticks % LOOK_EVERY_TICKS == 0

    async def look(self) -> None:
        """Ask how this node stands."""
        try:
            cluster = await self._broker.describe_cluster()
        except LakeMQError:  # who is asked may be away; it stays as it is
            return
        self.active = any(
            node.node_id == cluster.node_id and node.state == "draining" for node in cluster.nodes
        )
        self.limit(self._usual)

    def limit(self, usual: Limits) -> None:
        """The hub's limits from now on, but for what follows from draining."""
        self._usual = usual
        redirects = usual.redirect != "on_stop" or not self.active
        self._hub.limits = usual if redirects else replace(usual, redirect="temporary")

    def send_away(self, now_ms: int) -> None:
        """Send some of those who are connected elsewhere; older versions are disconnected."""
        if self.active:
            for connection in list(islice(self._hub.connections, SENT_AWAY_PER_TICK)):
                connection.redirect(self._usual.redirect == "permanent", now_ms)
