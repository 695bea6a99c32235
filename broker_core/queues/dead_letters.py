"""Writes dead letters: each record exactly once, at whatever moment the broker stops.

A record is finished only when its copy is on disk in the topic of dead letters. To write it once,
the copies have a producer id of their own that is persisted in the queue's state first: after a
crash the same batch is written again under the same id, and the journal recognizes the duplicate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, OutOfOrderSequence, UnknownTopic
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Acks, Columns, TopicInfo
from lakemq.broker_core.queues.partition_runtime import QueuePartitionRuntime
from lakemq.broker_core.queues.snapshot import DeadLetterBatch, DeadLetterReason, DeliveryState
from lakemq.broker_core.queues.source import SourceRecord

_log = logging.getLogger(__name__)
_RECORDS_MAX: Final = 100
_BYTES_MAX: Final = 1024 * 1024
_RETRY_FIRST_MS: Final = 500
_RETRY_MAX_MS: Final = 30_000
_rng: Final = random.Random()


class DeadLetterWriter:
    """Copies exhausted records of one partition to the topic of dead letters.

    `written`: how many since it was made. `on_change`: called when records were finished.
    """

    def __init__(
        self,
        broker: Broker,
        partition: QueuePartitionRuntime,
        group: str,
        topic: str,
        on_change: Callable[[], None],
    ) -> None:
        self.written = 0
        self._on_change = on_change
        self._broker = broker
        self._partition = partition
        self._group = group
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    def start_if_needed(self) -> None:
        """Start writing unless that runs already or there is nothing to write."""
        state = self._partition.state
        if (
            self._task is None
            and state.is_restored
            and (state.dead_letter_batch or state.exhausted(1))
        ):
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop writing; what was begun is finished by the next writer of the partition."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """As `stop`, without waiting: another node goes on."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        try:
            while self._partition.state.dead_letter_batch or self._partition.state.exhausted(1):
                try:
                    await self._write_some()
                    backoff.reset()
                except LakeMQError as error:
                    _log.warning(
                        "queue %s/%s: could not write dead letters, retrying: %s",
                        self._group,
                        self._topic,
                        error,
                    )
                    await asyncio.sleep(backoff.next_s())
        finally:
            self._task = None

    async def _write_some(self) -> None:
        partition, state = self._partition, self._partition.state
        states = dict(
            state.exhausted(_RECORDS_MAX if state.dead_letter_batch is None else 1_000_000)
        )
        if state.dead_letter_batch is None:
            rows = _some(await partition.source.rows(sorted(states)))
            # Where retention has taken all of them there is nothing to copy, and they are finished.
            dead_letter_batch = await self._planned([row.offset for row in rows] or sorted(states))
            state.begin_dead_letters(dead_letter_batch)
            # The id and the offsets are on disk before the first copy is written.
            await partition.persisted()
        else:
            dead_letter_batch = state.dead_letter_batch
            # Begun before, perhaps by another process: the same records again, not those that are
            # exhausted now.
            rows = await partition.source.rows(dead_letter_batch.offsets)
        if rows:
            await self._write(dead_letter_batch, rows, states)
        state.finish_dead_letters()
        self.written += len(rows)
        self._on_change()
        await partition.persisted()

    async def _planned(self, offsets: Sequence[int]) -> DeadLetterBatch:
        topic = await self._broker.ensure_topic(self._partition.state.settings.dead_letter)
        producer_id = await self._broker.allocate_producer_id()
        return DeadLetterBatch(producer_id, topic.name, self._partition_of(topic), tuple(offsets))

    def _partition_of(self, topic: TopicInfo) -> int:
        """The partition that takes them: one that this node leads, if there is one."""
        count = topic.partitions
        led = [each for each in range(count) if self._broker.serves(topic.name, each)]
        return led[self._partition.number % len(led)] if led else self._partition.number % count

    async def _write(
        self,
        dead_letter_batch: DeadLetterBatch,
        rows: Sequence[SourceRecord],
        states: Mapping[int, DeliveryState],
    ) -> None:
        columns = Columns(
            [row.value for row in rows],
            [row.key for row in rows],
            [
                row.headers + self._note(row, states.get(row.offset, DeliveryState()))
                for row in rows
            ],
            [row.timestamp_ms for row in rows],
        )
        batch = encode(columns, producer=ProducerStamp(dead_letter_batch.producer_id, 0, 0))
        try:
            target = self._broker.route(dead_letter_batch.topic, dead_letter_batch.partition)
        except UnknownTopic:  # deleted meanwhile: no duplicate is possible
            topic = await self._broker.ensure_topic(dead_letter_batch.topic)
            target = self._broker.route(dead_letter_batch.topic, self._partition_of(topic))
        try:
            await target.append(batch, read_header(batch), Acks.LEADER)
        # The id is used for one batch only, so that batch is there, with other records than now:
        # retention has taken some of them since.
        except OutOfOrderSequence:
            _log.info("queue %s/%s: dead letters had been written before", self._group, self._topic)

    def _note(self, row: SourceRecord, delivery: DeliveryState) -> bytes:
        """Headers that say where a dead letter comes from, after its own."""
        reason = "attempts" if delivery.reason == DeadLetterReason.ATTEMPTS else "rejected"
        return encode_headers(
            (
                ("lakemq-dead-group", self._group.encode()),
                ("lakemq-dead-topic", self._topic.encode()),
                ("lakemq-dead-partition", b"%d" % self._partition.number),
                ("lakemq-dead-offset", b"%d" % row.offset),
                ("lakemq-dead-attempts", b"%d" % delivery.attempts),
                ("lakemq-dead-reason", reason.encode()),
            )
        )


def _some(rows: list[SourceRecord]) -> list[SourceRecord]:
    """As many as fit a batch of moderate size, at least one."""
    size = 0
    for at, row in enumerate(rows):
        size += row.size
        if at and size > _BYTES_MAX:
            return rows[:at]
    return rows
