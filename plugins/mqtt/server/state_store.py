"""The MQTT plugin's own topics, and messages in bound ones: reading and writing through the Broker
port.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from lakemq.broker_core.api.errors import (
    LakeMQError,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.reader import committed_batches
from lakemq.broker_core.api.state.state_topic import StateRecord, StateTopic
from lakemq.plugins.mqtt.feeds.loading import MessageLoader
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.retaining.log import RetainedLog
from lakemq.plugins.mqtt.routing.bans import Ban
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.routing.replay import Replay
from lakemq.plugins.mqtt.server.ban_log import BanLog
from lakemq.plugins.mqtt.server.delay_log import DelayLog
from lakemq.plugins.mqtt.state.ledger import Writing
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.state.snapshots import (
    read_session,
    session_bytes,
)
from lakemq.plugins.mqtt.state.stored_values import BadSnapshot
from lakemq.plugins.mqtt.wire.messages import Place

log = logging.getLogger(__name__)

SESSIONS: Final = "__mqtt_sessions"


class MqttJournal:
    """Keeps sessions, and loads what waits in bound topics."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        reader: RecordReader,
        accepts: Callable[[str, str], bool],
        now_ms: Callable[[], int],
        checkpoint_records: int,
        after: Callable[[], None],
    ) -> None:
        """`accepts(topic, topic_name)`: whether records of the topic may come under that name.
        `after`: carries out what the hub wants done."""
        self._hub = hub
        self._broker = broker
        self._reader = reader
        self._accepts = accepts
        self._now_ms = now_ms
        self._checkpoint_records = checkpoint_records
        self.save_shared: Callable[[Writing], None]
        """Has homes keep sessions, where nodes share them."""
        self.shared_writes: AbstractSet[asyncio.Future[None]] = frozenset()
        """Those that have not ended."""
        self._own: set[str] = set()
        """Client ids of sessions of which this node has a record of its own."""
        self._salvage = Salvage(hub.counters)
        self._sessions = StateTopic(
            broker, SESSIONS, now_ms=now_ms, open_stored=self._salvage.opened
        )
        self.retained = RetainedLog(hub, broker, reader, accepts, now_ms, self._salvage)
        self._bans = BanLog(hub, broker, now_ms, self._salvage, after)
        self.delays = DelayLog(hub, broker, reader, now_ms, self._salvage, after)
        self._loader = MessageLoader(hub, broker, reader, now_ms, self._salvage)
        self.load = self._loader.load

    @property
    def writing(self) -> set[asyncio.Future[Any]]:
        """Appends that have not ended."""
        topics = (self._sessions, self.delays.topic, self.retained.topic)
        own = (future for topic in topics for future in topic.writing)
        return {*own, *self.shared_writes}

    # -- recovery

    async def recover(self) -> None:
        """Read what was kept, and match what came behind it again. Bound topics must exist."""
        # Order: sessions before delayed publishes, which tell them of their QoS 2 publishes; both
        # before the records of bound topics, which are matched against all of it.
        await self._sessions.ensure()
        sessions = await self._sessions.load()
        self._own.update(key.decode(errors="replace") for key in sessions)
        read = await self.retained.start()
        hub = self._hub
        replay = Replay(hub, (), self.retained.positions if read else None)
        for key, record in sessions.items():
            try:
                replay.restore(read_session(key.decode(), value_of(record)))
            except (BadSnapshot, UnicodeDecodeError) as error:
                self._salvage.refused(Place(SESSIONS, *record[:2]), error)
        for client_id, what in replay.left_out:
            log.error("session of %r: left out: %s", client_id, what, extra={"client": client_id})
        await self.delays.read()
        await self._bans.start()
        replayed: set[tuple[str, int]] = set()
        for name in dict.fromkeys(binding.topic for binding in hub.bindings):
            for partition in self._led(name):
                source = self._broker.partition(name, partition)
                end = source.high_watermark
                start = replay.start_of(name, partition, end)
                async for batch in committed_batches(source, name, partition, start, end):
                    for message, meta in self._salvage.messages(self._reader, batch):
                        if self._accepts(name, message.topic):
                            replay.record(message, meta, self._now_ms())
                hub.positions[name, partition] = end
                replayed.add((name, partition))
        replay.finish(self._now_ms())
        self.retained.begin(replayed if read else ())
        await self.delays.begin()

    def forget_sessions(self, client_ids: Iterable[str]) -> None:
        """Their homes keep them, or they are other nodes': what this node kept of them for itself,
        before nodes shared sessions, counts no more."""
        gone = self._own.intersection(client_ids)
        if gone:
            self._own -= gone
            entries: dict[bytes, bytes | None] = {one.encode(): None for one in gone}
            self._sessions.write_all(entries, lambda error: self._own.update(gone if error else ()))

    def _led(self, topic: str) -> list[int]:
        """Partitions whose records this node has."""
        count = self._broker.topic(topic).partitions
        return [each for each in range(count) if self._broker.serves(topic, each)]

    async def stop(self) -> None:
        """Follow no more what other nodes write."""
        await self.delays.stop()
        await self._bans.stop()
        await self.retained.stop()

    async def keep_ban(self, kind: str, value: str, ban: Ban | None) -> None:
        """Returns when it is on disk, or at once where nothing is kept. None: it is lifted."""
        if self._hub.ledger is not None:
            await self._bans.keep(kind, value, ban)

    # -- sessions

    def write_sessions(self, after: Callable[[], None]) -> None:
        """Begin the append that is due, if one is; `after` is called when it has ended."""
        hub = self._hub
        if hub.ledger is None or not hub.ledger.due:
            return
        # `begin` and the reading of all state lie in one turn of the loop: what changes later makes
        # the session urgent or lazy again.
        if hub.ended is not None:
            self.save_shared(hub.ledger.begin())
            return
        writing = hub.ledger.begin()
        entries: dict[bytes, bytes | None] = {}
        alive: set[str] = set()
        for client_id in writing.client_ids:
            session = hub.sessions.get(client_id)
            if session is not None and session.durable:
                alive.add(client_id)
                self._own.add(client_id)
                entries[client_id.encode()] = session_bytes(session, hub.positions_of(session))
            else:
                entries[client_id.encode()] = None
        self._sessions.write_all(entries, functools.partial(self._sessions_written, alive, after))

    def _sessions_written(
        self, alive: set[str], after: Callable[[], None], error: LakeMQError | None
    ) -> None:
        ledger, now_ms = self._hub.ledger, self._now_ms()
        assert ledger is not None
        if error is None:
            ledger.done(alive, self._hub.delivered, now_ms)
        else:
            log.error("sessions could not be kept: %s", error)
            self._hub.not_kept(ledger.failed(), str(error), now_ms)
        after()

    def checkpoint(self) -> None:
        """Have written what may be late: changed sessions, old sessions, retained messages."""
        hub = self._hub
        if hub.ledger is not None:
            hub.ledger.checkpoint(hub.delivered, self._checkpoint_records, 10_000)
            self.retained.checkpoint(self._checkpoint_records // 4)
            self.delays.checkpoint(self._checkpoint_records // 4)
        self._loader.shared.clear()

    async def keep_everything(self, after: Callable[[], None], wait_s: float) -> None:
        """Write what was changed and not kept yet, so that the next start finds it. `wait_s`: for
        each append; `after` as in `write_sessions`."""
        for _ in range(2):  # the first may find an append under way
            await self._wait(wait_s)
            self.checkpoint()
            self.write_sessions(after)
            self.delays.write(after)
        await self._wait(wait_s)

    async def _wait(self, wait_s: float) -> None:
        """Until the appends have ended that are under way now."""
        if self.writing:
            await asyncio.wait(self.writing, timeout=wait_s)
            await asyncio.sleep(0)


def value_of(record: StateRecord) -> bytes:
    """Of a record that `StateTopic.load` gave."""
    assert record.value is not None
    return record.value
