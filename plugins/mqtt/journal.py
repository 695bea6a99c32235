"""The MQTT side's own topics, and messages that lie in bound ones: reading and writing through the
Broker port. Edge: awaits the broker.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker_core.api.errors import LakeMQError, TopicExists, UnknownPartition, UnknownTopic
from broker_core.api.ports import Broker
from broker_core.api.types import Columns, Placed
from plugins.mqtt.appends import PLUGIN
from plugins.mqtt.ban_log import TOPIC as BANS
from plugins.mqtt.ban_log import BanLog
from plugins.mqtt.bans import Ban
from plugins.mqtt.delay_log import DelayLog
from plugins.mqtt.delayed import TOPIC as DELAYED
from plugins.mqtt.delivery import Delivery
from plugins.mqtt.hub import Hub
from plugins.mqtt.kept_values import BadSnapshot
from plugins.mqtt.messages import Message, Place
from plugins.mqtt.reading import Salvage, batches_of
from plugins.mqtt.records import RecordReader
from plugins.mqtt.replay import Replay
from plugins.mqtt.sessions import Session
from plugins.mqtt.snapshots import (
    Positions,
    positions_bytes,
    read_positions,
    read_retained,
    read_session,
    retained_bytes,
    session_bytes,
)

log = logging.getLogger(__name__)

SESSIONS: Final = "__mqtt_sessions"
RETAINED: Final = "__mqtt_retained"
_POSITIONS_KEY: Final = b""
"""Key of the record in `RETAINED` that tells up to where it is complete."""
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_LOADS_AT_ONCE: Final = 64

Outcomes = list[Placed | LakeMQError]


class MqttJournal:
    """Keeps sessions and retained messages, and loads what waits in bound topics."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        reader: RecordReader,
        accepts: Callable[[str, str], bool],
        now_ms: Callable[[], int],
        checkpoint_records: int,
    ) -> None:
        """`accepts(topic, topic_name)`: whether records of the topic may come under that name."""
        self._hub = hub
        self._broker = broker
        self._reader = reader
        self._accepts = accepts
        self._now_ms = now_ms
        self._checkpoint_records = checkpoint_records
        self._retained_written_at = 0
        self._retained_writing = False
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._salvage = Salvage(hub.counters)
        self._bans = BanLog(hub.bans, broker, self._publish, self._salvage)
        self.delays = DelayLog(hub, broker, self._publish, now_ms, self._salvage)
        self.writing: set[asyncio.Future[Outcomes]] = set()
        """Appends under way."""

    # -- recovery

    async def recover(self) -> None:
        """Read what was kept, and match what came behind it again. Bound topics must exist."""
        await self._create_topics()
        sessions = await self._newest(SESSIONS)
        retained_from = await self._read_retained()
        hub = self._hub
        replay = Replay(hub, (), retained_from)
        for key, (place, value) in sessions.items():
            try:
                replay.restore(read_session(key.decode(), value))
            except (BadSnapshot, UnicodeDecodeError) as error:
                self._salvage.refused(place, error)
        for client_id, what in replay.left_out:
            log.error("session of %r: left out: %s", client_id, what)
        await self.delays.read()
        await self._bans.read(self._now_ms())
        for topic in dict.fromkeys(binding.topic for binding in hub.bindings):
            for partition in range(self._broker.topic(topic).partitions):
                end = self._broker.partition(topic, partition).high_watermark
                start = replay.start_of(topic, partition, end)
                async for batch in batches_of(self._broker, topic, partition, start, end):
                    for message, meta in self._salvage.messages(self._reader, batch):
                        if self._accepts(topic, message.topic):
                            replay.record(message, meta, self._now_ms())
                hub.positions[topic, partition] = end
        replay.finish(self._now_ms())
        self.delays.begin()

    async def _create_topics(self) -> None:
        defaults = self._broker.topic_defaults()
        config = replace(
            defaults,
            cleanup="compact",
            retention_ms=None,
            retention_bytes=None,
            segment_bytes_max=_SEGMENT_BYTES,
        )
        known = {topic.name for topic in self._broker.topics()}
        for name in (SESSIONS, RETAINED, DELAYED, BANS):
            if name not in known:
                try:
                    await self._broker.create_topic(name, 1, config)
                except TopicExists:
                    await self._broker.ensure_topic(name)

    async def _newest(self, topic: str) -> dict[bytes, tuple[Place, bytes]]:
        """Key -> newest value of a compacted topic and its place, removed keys left out."""
        found: dict[bytes, tuple[Place, bytes]] = {}
        end = self._broker.partition(topic, 0).high_watermark
        async for batch in batches_of(self._broker, topic, 0, 0, end):
            for place, key, value in self._salvage.rows(batch):
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = (place, value)
        return found

    async def _read_retained(self) -> Positions:
        newest = await self._newest(RETAINED)
        positions = newest.pop(_POSITIONS_KEY, None)
        for place, value in newest.values():
            try:
                self._hub.retained.put(*read_retained(value), let_in=True)
            except BadSnapshot as error:
                self._salvage.refused(place, error)
        self._hub.retained.take_changes()
        if positions is None:
            return {}
        try:
            return read_positions(positions[1])
        except BadSnapshot as error:
            self._salvage.refused(positions[0], error)
            return {}

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
        writing = hub.ledger.begin()
        values: list[bytes | None] = []
        for client_id in writing.client_ids:
            session = hub.sessions.get(client_id)
            keeps = session is not None and session.durable
            values.append(session_bytes(session, hub.positions) if session and keeps else None)
        keys = [client_id.encode() for client_id in writing.client_ids]
        alive = {
            client_id
            for client_id, value in zip(writing.client_ids, values, strict=True)
            if value is not None
        }
        self._publish(
            SESSIONS, Columns(values, keys), functools.partial(self._sessions_written, alive, after)
        )

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
            self._write_retained()
            self.delays.checkpoint(self._checkpoint_records // 4)

    def _write_retained(self) -> None:
        hub = self._hub
        behind = hub.delivered - self._retained_written_at
        changes = hub.retained.changes
        if self._retained_writing or (not changes and behind < self._checkpoint_records // 4):
            return
        self._retained_writing = True
        changes = hub.retained.take_changes()
        keys = [topic.encode() for topic in changes]
        owner_of = hub.retained.owner_of
        values = [
            None if one is None else retained_bytes(one, owner_of(one.topic))
            for one in changes.values()
        ]
        columns = Columns([*values, positions_bytes(hub.positions)], [*keys, _POSITIONS_KEY])
        self._publish(
            RETAINED,
            columns,
            functools.partial(self._retained_written, changes, hub.delivered),
        )

    def _retained_written(
        self, changes: dict[str, Message | None], delivered: int, error: LakeMQError | None
    ) -> None:
        self._retained_writing = False
        if error is None:
            self._retained_written_at = delivered
            return
        log.error("retained messages could not be kept yet: %s", error)
        for topic, message in changes.items():
            self._hub.retained.changes.setdefault(topic, message)

    def _publish(
        self, topic: str, columns: Columns, done: Callable[[LakeMQError | None], None]
    ) -> None:
        """Append; `done` gets the first error, or None."""

        def ended(future: asyncio.Future[Outcomes]) -> None:
            self.writing.discard(future)
            if future.cancelled():
                done(LakeMQError("the append was cancelled"))
            elif (error := future.exception()) is not None:
                done(error if isinstance(error, LakeMQError) else LakeMQError(repr(error)))
            else:
                done(next((one for one in future.result() if isinstance(one, LakeMQError)), None))

        try:
            future = self._broker.publish(topic, columns, principal=PLUGIN)
        except LakeMQError as error:
            done(error)
            return
        self.writing.add(future)
        future.add_done_callback(ended)

    # -- loading

    async def load(self, session: Session) -> None:
        """Fetch the next messages that a session waits for."""
        outbound = session.outbound
        wanted = outbound.missing()
        places = [delivery.place for delivery in wanted]
        try:
            async with self._loads:
                found = await self._fetch([place for place in places if place is not None])
        except LakeMQError as error:
            log.warning("messages for %r could not be loaded: %s", session.client_id, error)
            outbound.loading = False
            if session.connection is not None:
                self._hub.not_kept([session.connection], str(error), self._now_ms())
            return
        pairs: list[tuple[Delivery, Message | None]] = [
            (delivery, found.get(place) if place is not None else None)
            for delivery, place in zip(wanted, places, strict=True)
        ]
        outbound.loaded(pairs, self._now_ms())

    async def _fetch(self, places: list[Place]) -> dict[Place, Message]:
        """Messages by place; what the journal has no more is left out."""
        found: dict[Place, Message] = {}
        logs: dict[tuple[str, int], set[int]] = {}
        for place in places:
            logs.setdefault((place.topic, place.partition), set()).add(place.offset)
        for (topic, partition), offsets in logs.items():
            waiting = sorted(offsets, reverse=True)
            try:
                end = self._broker.partition(topic, partition).high_watermark
            except (UnknownTopic, UnknownPartition):
                continue  # it was deleted
            while waiting:
                reached = waiting[-1]
                async for batch in batches_of(
                    self._broker, topic, partition, waiting[-1], min(end, waiting[-1] + 1)
                ):
                    for message, _ in self._salvage.messages(self._reader, batch):
                        assert message.place is not None
                        reached = max(reached, message.place.offset)
                        if message.place.offset in offsets:
                            found[message.place] = message
                while waiting and waiting[-1] <= reached:
                    waiting.pop()
        return found
