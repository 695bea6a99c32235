"""One bridge to one remote broker: connects, forwards, persists its state, reconnects."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import CorruptLog, LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.inbox import Answer, Inbox
from lakemq.plugins.mqtt.bridge.link import (
    FlagRefused,
    Link,
    LinkError,
    puback_packet,
    pubcomp_packet,
    publish_packet,
    pubrec_packet,
    pubrel_packet,
)
from lakemq.plugins.mqtt.bridge.outbox import Outbox
from lakemq.plugins.mqtt.bridge.receiver import Receiver
from lakemq.plugins.mqtt.bridge.records import BROKERS_OWN
from lakemq.plugins.mqtt.bridge.rules import Rules
from lakemq.plugins.mqtt.bridge.source import Source
from lakemq.plugins.mqtt.bridge.state_log import StateLog

_log = logging.getLogger(__name__)

_STEADY_MS = 10_000
"""A connection that lasted this long resets the backoff (ms)."""
_MAINTAIN_S = 0.5


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Bridge:
    """One link of the configuration. Implements `Peer` for its connection."""

    def __init__(
        self,
        settings: LinkSettings,
        broker: Broker,
        states: StateLog,
        *,
        password: str,
        tls: ssl.SSLContext | None,
        rng: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.client_id = settings.client_id or f"lakemq-{broker.node_id}-{settings.name}"
        self.rules = Rules([each.rule() for each in settings.rules])
        count_max = settings.inflight_max
        if self.rules.sends_exactly_once:
            count_max = min(count_max, settings.inflight_qos2_max)
        self.outbox = Outbox(count_max, settings.inflight_max_bytes)
        self.inbox = Inbox(settings.inflight_max_bytes)
        self.source = Source(broker, settings, self.rules, self.outbox)
        self.receiver = Receiver(broker, self.rules, self.inbox, settings.name, self.client_id)
        self.receiver.answer = self._answer
        self.receiver.failed = self._not_stored
        self.connected = False
        self.connects = 0
        self.failures = 0
        """Connection attempts that failed, and connections that ended."""
        self._broker = broker
        self._states = states
        self._password = password
        self._tls = tls
        self._backoff = Backoff(settings.retry_min_ms, settings.retry_max_ms, rng)
        self._flag = settings.bridge_flag
        self._flag_is_unknown = False
        self._link: Link | None = None
        self._wake = asyncio.Event()
        self._releases: list[int] = []
        """Packet identifiers whose PUBREL is due once the state is durable."""
        self._completions: list[int] = []
        """The same of PUBCOMP."""
        self._writing = asyncio.Lock()
        self._taps: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._warned = ""

    # -- life

    async def start(self, state: dict[str, Any] | None) -> None:
        """Continue from the persisted state (None: the link is new) and start connecting. Raises
        CorruptLog when the state is malformed."""
        for topic in dict.fromkeys([*self.rules.topics_out, *self.rules.topics_in]):
            await self._broker.ensure_topic(topic)
        for topic in self.rules.topics_in:
            self._taps.append(self._broker.reserve_headers(topic, BROKERS_OWN))
        if state is not None:
            try:
                self.outbox.load(state["outgoing"])
                self.inbox.load(state["incoming"])
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptLog(f"state of link {self.settings.name!r}: {error!r}") from None
            await self.receiver.recover()
        self.source.open_cursors(first=state is None)
        self.receiver.advance()
        # A new link keeps where it begins before anything goes out: a crash does not move it.
        await self._persist()
        for topic in self.rules.topics_out:
            self._taps.append(self._broker.tap(topic, lambda _: self._wake.set()))
        for out, back in self.rules.echoes():
            _log.warning(
                "bridge %s: what goes out as %s may be sent back for %s; unless the remote broker "
                "knows the bridge flag, it comes back once",
                self.settings.name,
                out.remote_filter,
                back.remote_filter,
            )
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Disconnect, and persist the offsets."""
        for remove in self._taps:
            remove()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._persist()
        except LakeMQError as error:
            _log.error("bridge %s: could not persist its state: %s", self.settings.name, error)

    async def _run(self) -> None:
        while True:
            since_ms = _now_ms()
            try:
                await self._connect()
            except FlagRefused as error:
                self._flag = False
                if error.sure:  # at once, and never again with the flag
                    self._flag_is_unknown = True
                    continue
                # It may have had another reason: the next attempt goes without the flag, and if
                # that fails too, the one after it has the flag again.
                self._warn(f"{self.settings.url}: {error}")
            except LakeMQError as error:
                self._flag = self.settings.bridge_flag and not self._flag_is_unknown
                self._warn(str(error))
            except Exception:  # a fault of ours must not end the bridge for good
                _log.exception("bridge %s: unexpected error, reconnecting", self.settings.name)
            self.failures += 1
            if self.connected and _now_ms() - since_ms >= _STEADY_MS:
                self._backoff.reset()
            self.connected = False
            await asyncio.sleep(self._backoff.next_ms() / 1000)

    def _warn(self, why: str) -> None:
        if why != self._warned:
            _log.warning("bridge %s: %s", self.settings.name, why)
            self._warned = why

    async def _connect(self) -> None:
        """One connection; it always ends with an error."""
        await self.receiver.settled()  # so that no answer of the last link goes to this one
        link = Link(self.settings, self.client_id, self._password, self)
        cancelled = True
        try:
            present = await link.open(self._tls, bridge_flag=self._flag)
            await self._begin(link, present)
            await self._serve(link)
        except LakeMQError:
            cancelled = False
            raise
        finally:
            self._link = None
            self.inbox.link_lost()
            self.receiver.wake()
            await link.close(politely=cancelled)

    async def _begin(self, link: Link, present: bool) -> None:
        """Agree with the remote broker on the session, then subscribe."""
        # They were due on the last connection: `_again` sends PUBREL for what was received, and the
        # remote broker sends its own PUBRELs again [MQTT-4.4.0-1].
        self._releases.clear()
        self._completions.clear()
        if not present:
            self.inbox.new_session()
        if self.outbox.restart(present):
            await self.source.restore()
        # Before the first packet: identifiers may have started over (`new_session`, `restart`).
        await self._persist()
        self._link = link
        await link.start()
        if self.rules.subscriptions:
            await link.subscribe(self.rules.subscriptions)
        self.connected, self._warned = True, ""
        self.connects += 1
        _log.info("bridge %s: connected to %s", self.settings.name, self.settings.url)

    async def _serve(self, link: Link) -> None:
        """Until the link ends or something fails."""
        tasks = [
            asyncio.create_task(self._pump(link)),
            asyncio.create_task(self._maintain(link)),
            asyncio.create_task(self._end_of(link)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_of(self, link: Link) -> None:
        raise LinkError(f"{self.settings.url}: {await link.closed()}")

    # -- what goes out

    async def _pump(self, link: Link) -> None:
        """Send in order; what must be durable first is persisted before."""
        await self._send(link, self._again())
        while True:
            self._wake.clear()
            taken = await self.source.take(_now_ms())
            releases, self._releases = self._releases, []
            completions, self._completions = self._completions, []
            # QoS 1 alone needs no write: its offsets are kept now and then, and what lies between
            # is sent again after a crash.
            if releases or completions or any(one.exactly_once for one in taken):
                await self._persist()
            packets = [publish_packet(one) for one in taken]
            packets += map(pubrel_packet, releases)
            packets += map(pubcomp_packet, completions)
            await self._send(link, packets)
            if not taken and not self.source.more:
                await self._wake.wait()

    def _again(self) -> list[bytes]:
        """What the last connection left unfinished."""
        packets, now_ms = [], _now_ms()
        for one in self.outbox.all_unfinished():
            one.since_ms = now_ms
            packets.append(pubrel_packet(one.packet_id) if one.received else publish_packet(one))
        return packets

    async def _send(self, link: Link, packets: list[bytes]) -> None:
        if packets:
            try:
                await link.send(packets)
            except OSError as error:
                raise LinkError(f"{self.settings.url}: {error}") from None

    async def _maintain(self, link: Link) -> None:
        """Persist the state, find new partitions, and time out acknowledgements."""
        settings = self.settings
        kept_ms = _now_ms()
        while True:
            await asyncio.sleep(min(_MAINTAIN_S, settings.commit_ms / 1000))
            now_ms = _now_ms()
            self.source.open_cursors(first=False)
            # Records may be there already of a partition that is new, or that has a leader again.
            self._wake.set()
            if now_ms - kept_ms >= settings.commit_ms and self.outbox.changed:
                kept_ms = now_ms
                self.receiver.advance()
                await self._persist()
            late_ms = now_ms - settings.ack_timeout_ms
            oldest_ms = self.outbox.oldest_ms()
            if oldest_ms is not None and oldest_ms < late_ms:
                await (
                    link.ping()
                )  # TCP keeps order: what is not acknowledged before PINGRESP never will be
                self.outbox.give_up_releases(late_ms)
                oldest_ms = self.outbox.oldest_ms()
                if oldest_ms is not None and oldest_ms < late_ms:
                    link.drop(f"a publish was not answered within {settings.ack_timeout_ms} ms")
                self._wake.set()

    async def _persist(self) -> None:
        """Persist the state."""
        async with self._writing:
            await self._states.write(self.settings.name, self._state)

    def _state(self) -> dict[str, Any]:
        return {"outgoing": self.outbox.state(), "incoming": self.inbox.state()}

    # -- what the remote broker says

    async def publish_came(
        self, name: str, payload: bytes, qos: int, packet_id: int, *, again: bool, retain: bool
    ) -> None:
        """See `Peer`."""
        await self.receiver.publish_came(name, payload, qos, packet_id, again=again, retain=retain)

    def puback_came(self, packet_id: int) -> None:
        """See `Peer`."""
        if self.outbox.acked(packet_id):
            self._wake.set()

    def pubrec_came(self, packet_id: int) -> None:
        """See `Peer`."""
        if self.outbox.received(packet_id, _now_ms()):
            self._releases.append(packet_id)
            self._wake.set()

    def pubcomp_came(self, packet_id: int) -> None:
        """See `Peer`."""
        if self.outbox.completed(packet_id):
            self._wake.set()

    def pubrel_came(self, packet_id: int) -> None:
        """See `Peer`."""
        self.inbox.released(packet_id)
        self._completions.append(packet_id)
        self._wake.set()

    def _answer(self, answer: Answer) -> None:
        if self._link is not None:
            packet = puback_packet if answer.qos == 1 else pubrec_packet
            self._link.answer(packet(answer.packet_id))

    def _not_stored(self, why: str) -> None:
        if self._link is not None:
            self._link.drop(why)
