"""One link while this node runs it: begins where the state says, connects, reconnects."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.bridge.exchange import MAINTAIN_S, Exchange, now_ms
from lakemq.plugins.mqtt.bridge.link import FlagRefused
from lakemq.plugins.mqtt.bridge.link_state import LinkState

_log = logging.getLogger(__name__)

_STEADY_MS: Final = 10_000
"""A connection that lasted this long resets the backoff (ms)."""
_LOOK_S: Final = 5.0
_SETTLE_S: Final = 0.5
"""What the node that ran the link before had sent to be stored is readable by then, as a rule: QoS
2 publishes among it must be known before they come again."""


class Bridge:
    """One link of the configuration."""

    def __init__(
        self,
        state: LinkState,
        broker: Broker,
        *,
        password: str,
        tls: ssl.SSLContext | None,
        rng: Callable[[], float],
        owns: Callable[[], bool],
        shared: bool,
    ) -> None:
        """`owns`: whether this node may run the link now. `shared`: whether other nodes may have
        run it before."""
        self.state = state
        self.connected = False
        self.connects = 0
        self.failures = 0
        """Connection attempts that failed, and connections that ended."""
        self._broker = broker
        self._owns = owns
        self._shared = shared
        self._exchange = Exchange(
            state, password=password, tls=tls, owns=lambda: self._owns(), connected=self._connected
        )
        settings = state.settings
        self._backoff = Backoff(settings.retry_min_ms, settings.retry_max_ms, rng)
        self._flag = settings.bridge_flag
        self._flag_is_unknown = False
        self._owned = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._prepared = False
        self._warned = ""

    # -- life

    def start(self, after: asyncio.Task[None] | None) -> None:
        """Continue from the persisted state and connect, when `after` is done: the link's former
        end on this node."""
        if self.state.corrupt is not None:
            _log.error("bridge %s does not run: %s", self.state.name, self.state.corrupt)
            return
        self._task = asyncio.create_task(self._live(after))

    async def stop(self, *, keep: bool) -> None:
        """Disconnect. `keep`: persist the offsets, which this node can while it leads."""
        keep = keep and self._prepared and self._owns()
        self._owns = _no
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if keep:
            try:
                await self.state.persist()
            except LakeMQError as error:
                _log.warning("bridge %s: could not persist its state: %s", self.state.name, error)

    def look(self) -> None:
        """Whether this node may run the link may have changed."""
        if self._owns():
            self._owned.set()
        self._exchange.look()

    async def _live(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        while not self._prepared:
            try:
                await self._prepare()
            except LakeMQError as error:
                self._warn(f"it can't begin yet: {error}")
                await asyncio.sleep(self._backoff.next_s())
        self._backoff.reset()
        looking = asyncio.create_task(self._look_around())
        try:
            await self._run()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _prepare(self) -> None:
        """Find out where this node goes on. May be done again when it has failed."""
        state = self.state
        for topic in dict.fromkeys([*state.rules.topics_out, *state.rules.topics_in]):
            await self._broker.ensure_topic(topic)
        await state.receiver.recover()
        if self._shared and state.rules.exactly_once:
            await asyncio.sleep(_SETTLE_S)
            await state.receiver.recover()
        await state.source.open_cursors(first=state.is_new)
        # A new link keeps where it begins before anything goes out: a crash does not move it.
        await state.persist()
        self._prepared = True
        for out, back in state.rules.echoes():
            _log.warning(
                "bridge %s: what goes out as %s may be sent back for %s; unless the remote broker "
                "knows the bridge flag, it comes back once",
                state.name,
                out.remote_filter,
                back.remote_filter,
            )

    async def _look_around(self) -> None:
        """Find new partitions, and how far those of other nodes reach."""
        looked_ms = now_ms()
        while True:
            await asyncio.sleep(MAINTAIN_S)
            try:
                await self.state.source.open_cursors(first=False)
                if now_ms() - looked_ms >= _LOOK_S * 1000:
                    looked_ms = now_ms()
                    await self.state.source.look_ahead()
                    await self.state.receiver.advance()
            except LakeMQError as error:
                _log.debug("bridge %s: %s", self.state.name, error)

    # -- connections

    async def _run(self) -> None:
        while True:
            await self._until_owned()
            since_ms = now_ms()
            try:
                await self._exchange.connect(bridge_flag=self._flag)
            except FlagRefused as error:
                self._flag = False
                if error.sure:  # at once, and never again with the flag
                    self._flag_is_unknown = True
                    continue
                # It may have had another reason: the next attempt goes without the flag, and if
                # that fails too, the one after it has the flag again.
                self._warn(f"{self.state.settings.url}: {error}")
            except LakeMQError as error:
                self._flag = self.state.settings.bridge_flag and not self._flag_is_unknown
                self._warn(str(error))
            except Exception:  # a fault of ours must not end the bridge for good
                _log.exception("bridge %s: unexpected error, reconnecting", self.state.name)
            self.failures += 1
            if self.connected and now_ms() - since_ms >= _STEADY_MS:
                self._backoff.reset()
            self.connected = False
            await asyncio.sleep(self._backoff.next_s())

    async def _until_owned(self) -> None:
        """Wait while this node's lease to lead the link's partition has ended: another node may run
        the link by then."""
        while not self._owns():
            self._owned.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._owned.wait(), MAINTAIN_S)

    def _connected(self) -> None:
        self.connected, self._warned = True, ""
        self.connects += 1

    def _warn(self, why: str) -> None:
        if why != self._warned:
            _log.warning("bridge %s: %s", self.state.name, why)
            self._warned = why


def _no() -> bool:
    return False
