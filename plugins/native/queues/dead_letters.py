"""Writing dead letters: each record once, whenever the broker dies.

A record is finished only when its copy is on disk among the dead letters. To make that once, the
copies are written under a producer id of their own that is kept in the queue's state first: after a
crash the same batch is written again under the same id, and the journal knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, OutOfOrderSequence, UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Acks, Columns, TopicInfo
from lakemq.plugins.native.queues.partition_runtime import Part
from lakemq.plugins.native.queues.partition_state import TOO_OFTEN
from lakemq.plugins.native.queues.snapshot import Burial, Fate
from lakemq.plugins.native.queues.source import Row

_log = logging.getLogger("lakemq.native")
_RECORDS_MAX: Final = 100
_BYTES_MAX: Final = 1024 * 1024
_RETRY_S: Final = 0.5
_RETRY_MAX_S: Final = 30.0


class Undertaker:
    """Buries the dead of one partition; `buried` counts."""

    def __init__(
        self, broker: Broker, part: Part, group: str, topic: str, on_change: Callable[[], None]
    ) -> None:
        self.buried = 0
        self._on_change = on_change
        self._broker = broker
        self._part = part
        self._group = group
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Begin if there is something to do."""
        state = self._part.state
        if self._task is None and state.is_restored and (state.burial or state.dying(1)):
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = _RETRY_S
        try:
            while self._part.state.burial or self._part.state.dying(1):
                try:
                    await self._bury_some()
                    pause_s = _RETRY_S
                except LakeMQError as error:
                    _log.warning("dead letters of %s/%s wait: %s", self._group, self._topic, error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(_RETRY_MAX_S, pause_s * 2)
        finally:
            self._task = None

    async def _bury_some(self) -> None:
        part, state = self._part, self._part.state
        fates = dict(state.dying(_RECORDS_MAX if state.burial is None else 1_000_000))
        if state.burial is None:
            rows = _some(await part.source.rows(sorted(fates)))
            burial = await self._planned([row.offset for row in rows] or sorted(fates))
            state.begin_burial(burial)
            await part.kept()
        else:
            burial = state.burial
            rows = await part.source.rows(burial.offsets)
        if rows:
            await self._write(burial, rows, fates)
        state.end_burial()
        self.buried += len(rows)
        self._on_change()
        await part.kept()

    async def _planned(self, offsets: Sequence[int]) -> Burial:
        topic = await self._broker.ensure_topic(self._part.state.settings.dead_letter)
        producer_id = await self._broker.allocate_producer_id()
        return Burial(producer_id, topic.name, self._partition_of(topic), tuple(offsets))

    def _partition_of(self, topic: TopicInfo) -> int:
        """Where dead letters of this partition go: one that this node leads, if there is one."""
        count = topic.partitions
        led = [each for each in range(count) if self._broker.serves(topic.name, each)]
        return led[self._part.number % len(led)] if led else self._part.number % count

    async def _write(self, burial: Burial, rows: Sequence[Row], fates: Mapping[int, Fate]) -> None:
        columns = Columns(
            [row.value for row in rows],
            [row.key for row in rows],
            [row.headers + self._note(row, fates.get(row.offset, Fate())) for row in rows],
            [row.timestamp_ms for row in rows],
        )
        batch = encode(columns, producer=ProducerStamp(burial.producer_id, 0, 0))
        try:
            log = self._broker.partition(burial.topic, burial.partition)
        except UnknownTopic:  # deleted meanwhile: there is nothing it could be twice in
            topic = await self._broker.ensure_topic(burial.topic)
            log = self._broker.partition(burial.topic, self._partition_of(topic))
        try:
            await log.append(batch, read_header(batch), Acks.LEADER)
        except OutOfOrderSequence:
            _log.info("dead letters of %s/%s were there already", self._group, self._topic)

    def _note(self, row: Row, fate: Fate) -> bytes:
        """Headers that tell where a dead letter comes from, behind its own."""
        reason = "attempts" if fate.dying == TOO_OFTEN else "rejected"
        return encode_headers(
            (
                ("lakemq-dead-group", self._group.encode()),
                ("lakemq-dead-topic", self._topic.encode()),
                ("lakemq-dead-partition", b"%d" % self._part.number),
                ("lakemq-dead-offset", b"%d" % row.offset),
                ("lakemq-dead-attempts", b"%d" % fate.attempts),
                ("lakemq-dead-reason", reason.encode()),
            )
        )


def _some(rows: list[Row]) -> list[Row]:
    """As many as make a batch of moderate size, at least one."""
    size = 0
    for at, row in enumerate(rows):
        size += row.size
        if at and size > _BYTES_MAX:
            return rows[:at]
    return rows
