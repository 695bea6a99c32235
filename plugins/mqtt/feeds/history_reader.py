"""Fetches the records that subscriptions to `$replay/...` want next. Edge: awaits the broker."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    LakeMQError,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.types import CommittedBatch, Offset
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.routing.history import Cursor, Reading, read_on
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.wire.messages import Message

log = logging.getLogger(__name__)

_FETCH_BYTES: Final = 256 * 1024
_READS_AT_ONCE: Final = 64
_COMMIT_WAIT_MS: Final = 100
"""The leader may know less than this node has heard, as a new one does for a moment."""
_BEHIND_S: Final = 0.005
_RETRY_FIRST_MS: Final = 500
_RETRY_MAX_MS: Final = 10_000
_rng: Final = random.Random()


class HistoryReader:
    """Reads bound topics for clients that asked for their history."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        reader: RecordReader,
        belongs: Callable[[str, str], bool],
        now_ms: Callable[[], int],
        salvage: Salvage,
    ) -> None:
        """`belongs(topic, topic_name)`: whether records of the topic may come under that name."""
        self._hub = hub
        self._broker = broker
        self._reader = reader
        self._belongs = belongs
        self._now_ms = now_ms
        self._salvage = salvage
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(self, history: Reading, generation: int) -> None:
        """Hand over the next records of one of its partitions, if they are still wanted."""
        if history.generation != generation:
            return
        cursor = history.next_cursor()
        if cursor is None and history.behind:
            await asyncio.sleep(_BEHIND_S)
        if cursor is not None:
            try:
                async with self._reads:
                    await self._step(history, cursor, generation)
                history.backoff = None
            except (UnknownTopic, UnknownPartition):  # deleted
                history.cursors.pop((cursor.topic, cursor.partition), None)
                history.rest, cursor = None, None
            except LakeMQError as error:
                log.warning("%s-%d is not replayed now: %s", cursor.topic, cursor.partition, error)
                if history.backoff is None:
                    history.backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
                await asyncio.sleep(history.backoff.next_s())
        if history.generation == generation:
            read_on(self._hub, history, cursor, self._now_ms())

    async def _step(self, history: Reading, cursor: Cursor, generation: int) -> None:
        key = (cursor.topic, cursor.partition)
        if cursor.offset is None:
            offset = await self._locate(history, cursor)
            if history.generation != generation:
                return
            history.located(cursor, offset, self._hub.positions.get(key, 0))
        if history.rest is not None:
            _, messages, behind = history.rest
        elif history.approach(cursor, self._hub.positions.get(key, 0)):
            messages, behind = await self._fetch(history, cursor)
        else:
            return
        if history.generation == generation:
            end = self._hub.positions.get(key, 0)
            history.fetched(cursor, messages, behind, end, self._now_ms())

    async def _locate(self, history: Reading, cursor: Cursor) -> int:
        source = self._broker.reader(cursor.topic, cursor.partition)
        since_ms = history.start.since_ms
        if since_ms is not None:
            return await source.offset_for_timestamp(since_ms)
        return max(history.start.offset, (await source.bounds())[0])

    async def _fetch(self, history: Reading, cursor: Cursor) -> tuple[Iterator[Message], int]:
        """Messages from the cursor on, and the offset behind them."""
        source = self._broker.reader(cursor.topic, cursor.partition)
        offset = Offset(cursor.offset or 0)
        try:
            got = await source.fetch(offset, bytes_max=_FETCH_BYTES, wait_ms=_COMMIT_WAIT_MS)
        except OffsetOutOfRange:
            start, _ = await source.bounds()
            if start <= offset:
                raise
            return iter(()), start  # retention was quicker
        batches = [
            CommittedBatch(
                cursor.topic,
                cursor.partition,
                Offset(header.base_offset),
                got.data[position : position + header.total_bytes],
            )
            for position, header in split(got.data)
        ]
        # Nothing there below the high watermark: what was there has been compacted away.
        behind = got.next_offset if batches else got.high_watermark
        return self._messages(history, cursor.topic, batches), behind

    def _messages(
        self, history: Reading, topic: str, batches: list[CommittedBatch]
    ) -> Iterator[Message]:
        for batch in batches:
            for message, meta in self._salvage.messages(self._reader, batch):
                if self._belongs(topic, message.topic):
                    if meta.marked:
                        history.note(message, meta)
                    yield message
