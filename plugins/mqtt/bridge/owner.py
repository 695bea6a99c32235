"""Which links this node runs: those whose partition of `__bridge` it leads, and no others.

So a link runs on one node of a cluster, and on another one when that has died. What a node without
a lease still has under way is fenced: its state can't be written, and the remote broker ends a
connection when another one with its client id comes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.residents import Residents
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.link_state import LinkState
from lakemq.plugins.mqtt.bridge.records import BROKERS_OWN
from lakemq.plugins.mqtt.bridge.runner import Bridge
from lakemq.plugins.mqtt.bridge.state_log import STATES, Kept, StateLog

_log = logging.getLogger(__name__)

_RETRY_MIN_MS: Final = 100
_RETRY_MAX_MS: Final = 5_000


class ConfiguredLink(NamedTuple):
    """A link of this node's configuration, and the secrets it needs."""

    settings: LinkSettings
    password: str
    tls: ssl.SSLContext | None


class BridgeOwner:
    """Implements `Resident` of the links' states. Lives on the event loop."""

    def __init__(
        self, broker: Broker, links: Sequence[ConfiguredLink], rng: Callable[[], float]
    ) -> None:
        self._broker = broker
        self._links = {each.settings.name: each for each in links}
        self._rng = rng
        self._states = StateLog(broker)
        self._residents = Residents(broker, self._states.topic, self)
        self._running: dict[str, Bridge] = {}
        self._partitions: dict[str, int] = {}
        """Of those that run: the topic may be gone when they end."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._removals: list[Callable[[], None]] = []

    @property
    def bridges(self) -> list[Bridge]:
        """Links that this node runs now."""
        return list(self._running.values())

    # -- life

    def start(self) -> None:
        """Run what this node leads, as soon as that is known."""
        # Whichever node runs a link: clients append at any.
        for topic in dict.fromkeys(
            rule.topic
            for link in self._links.values()
            for rule in link.settings.rules
            if rule.direction != "out"
        ):
            self._removals.append(self._broker.reserve_headers(topic, BROKERS_OWN))
        self._removals.append(self._broker.watch_serving(self._look))
        self._beginning = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        backoff = Backoff(_RETRY_MIN_MS, _RETRY_MAX_MS, self._rng)
        while True:
            try:
                await self._states.topic.ensure()
                break
            except LakeMQError as error:
                _log.warning("bridges can't begin yet: topic %s: %s", STATES, error)
            await asyncio.sleep(backoff.next_s())
        await self._residents.start()

    async def stop(self) -> None:
        """Disconnect all links; their states are persisted."""
        for remove in self._removals:
            remove()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        await self._residents.stop()
        await asyncio.gather(
            *self._ending.values(), *(each.stop(keep=True) for each in self.bridges)
        )

    def _look(self) -> None:
        for bridge in self._running.values():
            bridge.look()

    # -- what this node leads

    async def load(self, partition: int, end: int) -> Mapping[str, Kept]:
        """As `Resident.load`."""
        return await self._states.load(partition, end)

    def serve(self, partition: int, epoch: int, state: Mapping[str, Kept]) -> None:
        """As `Resident.serve`: run the links of the partition."""
        shared = len(leadership(self._broker.topic(STATES), partition).replicas) > 1
        for name, link in self._links.items():
            if self._states.partition_of(name) == partition:
                self._run(link, partition, state.get(name), shared)
        for name in state.keys() - self._links.keys() if shared else ():
            _log.warning(
                "bridge %s: this node would run it, and has no such link in its configuration: it "
                "does not run until all nodes have it, or forget it if it was removed from all",
                name,
            )

    def _run(self, link: ConfiguredLink, partition: int, kept: Kept | None, shared: bool) -> None:
        name = link.settings.name
        self._partitions[name] = partition
        state = LinkState(link.settings, self._broker, self._states, kept)
        bridge = self._running[name] = Bridge(
            state, self._broker,
            password=link.password, tls=link.tls, rng=self._rng,
            owns=partial(self._residents.serves, partition), shared=shared,
        )  # fmt: skip
        if shared:
            _log.info("bridge %s: this node runs it now", name)
        bridge.start(self._ending.get(name))

    def drop(self, partition: int) -> None:
        """As `Resident.drop`: another node runs the links by now, or soon."""
        for name, bridge in list(self._running.items()):
            if self._partitions[name] == partition:
                del self._running[name]
                _log.info("bridge %s: this node runs it no more", name)
                task = asyncio.create_task(bridge.stop(keep=False))
                self._ending[name] = task
                task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._ending.get(name) is task:
            del self._ending[name]
