"""What a link and the remote broker say to each other over one connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.mqtt.bridge.incoming.inbox import Answer
from lakemq.plugins.mqtt.bridge.link import (
    Link,
    LinkError,
    puback_packet,
    pubcomp_packet,
    publish_packet,
    pubrec_packet,
    pubrel_packet,
)
from lakemq.plugins.mqtt.bridge.link_state import LinkState

_log = logging.getLogger(__name__)

MAINTAIN_S: Final = 0.5
_NOT_OURS: Final = "this node leads the link's partition no more, or is not sure to"


def now_ms() -> int:
    """Of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class Exchange:
    """Connects again and again, one connection at a time. Implements `Peer` for it."""

    def __init__(
        self,
        state: LinkState,
        *,
        password: str,
        tls: ssl.SSLContext | None,
        owns: Callable[[], bool],
        connected: Callable[[], None],
    ) -> None:
        """`owns`: whether this node may run the link now. `connected`: called when records may
        cross."""
        self._state = state
        self._outbox, self._inbox = state.outbox, state.inbox
        self._source, self._receiver = state.source, state.receiver
        self._password = password
        self._tls = tls
        self._owns = owns
        self._connected = connected
        self._link: Link | None = None
        self._wake = asyncio.Event()
        self._releases: list[int] = []
        """Packet identifiers whose PUBREL is due once the state is durable."""
        self._completions: list[int] = []
        """The same of PUBCOMP."""
        state.source.fetched = self._wake.set
        state.receiver.answer = self._answer
        state.receiver.failed = self._drop

    def look(self) -> None:
        """Whether this node may run the link may have changed."""
        if not self._owns():
            self._drop(_NOT_OURS)

    async def connect(self, *, bridge_flag: bool) -> None:
        """One connection; it always ends with an error. Raises LakeMQError, FlagRefused."""
        await self._receiver.settled()  # so that no answer of the last link goes to this one
        self._receiver.take()
        state = self._state
        link = Link(state.settings, state.client_id, self._password, self)
        cancelled = True
        try:
            present = await link.open(self._tls, bridge_flag=bridge_flag)
            await self._begin(link, present)
            await self._serve(link)
        except LakeMQError:
            cancelled = False
            raise
        finally:
            self._link = None
            self._inbox.link_lost()
            self._receiver.wake()
            await link.close(politely=cancelled)

    async def _begin(self, link: Link, present: bool) -> None:
        """Agree with the remote broker on the session, then subscribe."""
        # They were due on the last connection: `_again` sends PUBREL for what was received, and the
        # remote broker sends its own PUBRELs again [MQTT-4.4.0-1].
        self._releases.clear()
        self._completions.clear()
        if not present:
            self._inbox.new_session()
        if self._outbox.restart(present):
            await self._source.restore()
        # Before the first packet: identifiers may have started over (`new_session`, `restart`).
        await self._state.persist()
        self._link = link
        self.look()
        await link.start()
        if subscriptions := self._state.rules.subscriptions:
            await link.subscribe(subscriptions)
        self._connected()
        _log.info("bridge %s: connected to %s", self._state.name, self._state.settings.url)

    async def _serve(self, link: Link) -> None:
        """Until the link ends or something fails."""
        self._source.start()
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
            await self._source.stop()

    async def _end_of(self, link: Link) -> None:
        raise LinkError(f"{self._state.settings.url}: {await link.closed()}")

    # -- what goes out

    async def _pump(self, link: Link) -> None:
        """Send in order; what must be durable first is persisted before."""
        await self._send(link, self._again())
        while True:
            self._wake.clear()
            taken = self._source.take(now_ms())
            releases, self._releases = self._releases, []
            completions, self._completions = self._completions, []
            # QoS 1 alone needs no write: its offsets are kept now and then, and what lies between
            # is sent again after a crash.
            if releases or completions or any(one.exactly_once for one in taken):
                await self._state.persist()
            packets = [publish_packet(one) for one in taken]
            packets += map(pubrel_packet, releases)
            packets += map(pubcomp_packet, completions)
            await self._send(link, packets)
            if self._source.more:
                await asyncio.sleep(0)
            elif not taken:
                await self._wake.wait()

    def _again(self) -> list[bytes]:
        """What the last connection left unfinished."""
        packets, since_ms = [], now_ms()
        for one in self._outbox.all_unfinished():
            one.since_ms = since_ms
            packets.append(pubrel_packet(one.packet_id) if one.received else publish_packet(one))
        return packets

    async def _send(self, link: Link, packets: list[bytes]) -> None:
        if packets:
            try:
                await link.send(packets)
            except OSError as error:
                raise LinkError(f"{self._state.settings.url}: {error}") from None

    async def _maintain(self, link: Link) -> None:
        """Persist the state, and time out acknowledgements."""
        settings = self._state.settings
        kept_ms = now_ms()
        while True:
            await asyncio.sleep(min(MAINTAIN_S, settings.commit_ms / 1000))
            self.look()
            at_ms = now_ms()
            if at_ms - kept_ms >= settings.commit_ms and self._outbox.changed:
                kept_ms = at_ms
                await self._state.persist()
            late_ms = at_ms - settings.ack_timeout_ms
            oldest_ms = self._outbox.oldest_ms()
            if oldest_ms is not None and oldest_ms < late_ms:
                # TCP keeps order: what is not acknowledged before PINGRESP never will be.
                await link.ping()
                self._outbox.give_up_releases(late_ms)
                oldest_ms = self._outbox.oldest_ms()
                if oldest_ms is not None and oldest_ms < late_ms:
                    link.drop(f"a publish was not answered within {settings.ack_timeout_ms} ms")
                self._wake.set()

    # -- what the remote broker says

    async def publish_came(
        self, name: str, payload: bytes, qos: int, packet_id: int, *, again: bool, retain: bool
    ) -> None:
        """See `Peer`."""
        # What a process that stood still finds in its socket was sent to its successor again.
        if not self._owns():
            self._receiver.take_no_more()
            self._drop(_NOT_OURS)
            return
        await self._receiver.publish_came(name, payload, qos, packet_id, again=again, retain=retain)

    def puback_came(self, packet_id: int) -> None:
        """See `Peer`."""
        if self._outbox.acked(packet_id):
            self._wake.set()

    def pubrec_came(self, packet_id: int) -> None:
        """See `Peer`."""
        if self._outbox.received(packet_id, now_ms()):
            self._releases.append(packet_id)
            self._wake.set()

    def pubcomp_came(self, packet_id: int) -> None:
        """See `Peer`."""
        if self._outbox.completed(packet_id):
            self._wake.set()

    def pubrel_came(self, packet_id: int) -> None:
        """See `Peer`."""
        self._inbox.released(packet_id)
        self._completions.append(packet_id)
        self._wake.set()

    def _answer(self, answer: Answer) -> None:
        if self._link is not None:
            packet = puback_packet if answer.qos == 1 else pubrec_packet
            self._link.answer(packet(answer.packet_id))

    def _drop(self, why: str) -> None:
        """End the connection, if there is one."""
        if self._link is not None:
            self._link.drop(why)
