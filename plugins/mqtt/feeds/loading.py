"""Loads what waits in bound topics for clients that are back. Edge: awaits the broker.

Clients that were away at the same time have missed the same records, and after a restart they come
back together: what was loaded for one of them a moment ago is shared by the others.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import (
    LakeMQError,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.partition_ports import PartitionReader
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import HEADER_BYTES, BatchHeader, split
from lakemq.broker_core.api.types import CommittedBatch, Offset
from lakemq.plugins.mqtt.feeds.reading import Salvage
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.delivery import ENTRY_BYTES, Delivery
from lakemq.plugins.mqtt.state.records import RecordReader
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.wire.messages import Message

log = logging.getLogger(__name__)

_LOADS_AT_ONCE: Final = 64
_LOAD_BYTES: Final = 64 * 1024
_COMMIT_WAIT_MS: Final = 100
SHARED_MAX_BYTES: Final = 4 * 1024 * 1024
"""Messages that are held for others who may want them, counted like entries of queues."""


class SharedMessages:
    """Messages of the batches that were loaded last."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._batches: dict[tuple[str, int, bytes], dict[int, Message]] = {}
        """Topic, partition and header of a batch -> messages by offset."""

    def clear(self) -> None:
        """Let go of all of them."""
        self._batches.clear()
        self.size_bytes = 0

    def of(
        self,
        batch: CommittedBatch,
        offsets: Sequence[int],
        read: Callable[[CommittedBatch, set[int]], Iterable[Message]],
    ) -> dict[int, Message]:
        """The batch's messages at these offsets, as far as they can be read, and maybe others.
        `read`: reads those that are not here yet."""
        # The header holds offsets, times and the checksum of all else: another batch of that place,
        # after a compaction or in a topic of the same name, has another one.
        key = (batch.topic, batch.partition, bytes(batch.data[:HEADER_BYTES]))
        known = self._batches.get(key, {})
        missing = set(offsets).difference(known)
        if missing:
            for message in read(batch, missing):
                assert message.place is not None
                known[message.place.offset] = message
                self.size_bytes += ENTRY_BYTES + message.size_bytes
            if known:
                self._batches[key] = known
            while self.size_bytes > SHARED_MAX_BYTES:
                oldest = self._batches.pop(next(iter(self._batches)))
                self.size_bytes -= sum(ENTRY_BYTES + one.size_bytes for one in oldest.values())
        return known


class MessageLoader:
    """Loads messages that sessions wait for."""

    def __init__(
        self,
        hub: Hub,
        broker: Broker,
        reader: RecordReader,
        now_ms: Callable[[], int],
        salvage: Salvage,
    ) -> None:
        self._hub = hub
        self._broker = broker
        self._reader = reader
        self._now_ms = now_ms
        self._salvage = salvage
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self.shared = SharedMessages()

    async def load(self, session: Session) -> None:
        """Fetch the next messages that a session waits for."""
        outbound = session.outbound
        wanted = outbound.missing()
        try:
            async with self._loads:
                found = await self._fetch(wanted)
        except LakeMQError as error:
            name = session.client_id
            text = "messages for %r could not be loaded: %s"
            log.warning(text, name, error, extra={"client": name})
            # The client connects again, and they are asked for then.
            outbound.loading = False
            if session.connection is not None:
                self._hub.not_kept([session.connection], str(error), self._now_ms())
            return
        outbound.loaded(found, self._now_ms())

    async def _fetch(self, wanted: list[Delivery]) -> list[tuple[Delivery, Message | None]]:
        """Each with its message; None: the journal no longer has it."""
        logs: dict[tuple[str, int], tuple[list[Delivery], list[int]]] = {}
        found: list[tuple[Delivery, Message | None]] = []
        for delivery in wanted:
            place = delivery.place
            if place is None:
                found.append((delivery, None))
                continue
            deliveries, offsets = logs.setdefault(place[:2], ([], []))
            deliveries.append(delivery)
            offsets.append(place.offset)
        for (topic, partition), (deliveries, offsets) in logs.items():
            messages: dict[int, Message | None] = {}
            with suppress(UnknownTopic, UnknownPartition):  # it was deleted
                await self._read(topic, partition, sorted(set(offsets)), messages)
            found += zip(deliveries, map(messages.get, offsets), strict=True)
        return found

    async def _read(
        self, topic: str, partition: int, offsets: list[int], found: dict[int, Message | None]
    ) -> None:
        """Put the messages at these offsets, which ascend, into `found`."""
        source, at = self._broker.reader(topic, partition), 0
        while at < len(offsets):
            data, behind = await self._fetch_some(source, offsets[at])
            for position, header in split(data):
                here = _within(header, offsets)
                if here:
                    part = data[position : position + header.total_bytes]
                    batch = CommittedBatch(topic, partition, Offset(header.base_offset), part)
                    messages = self.shared.of(batch, here, self._messages)
                    found.update(zip(here, map(messages.get, here), strict=True))
            at = bisect_left(offsets, behind)

    def _messages(self, batch: CommittedBatch, offsets: set[int]) -> Iterator[Message]:
        for message, _ in self._salvage.messages(self._reader, batch, at=offsets):
            yield message

    async def _fetch_some(self, source: PartitionReader, offset: int) -> tuple[bytes, int]:
        """Batches from an offset on, and the offset behind them: what was deleted or compacted away
        counts as read."""
        try:
            got = await source.fetch(Offset(offset), bytes_max=_LOAD_BYTES, wait_ms=_COMMIT_WAIT_MS)
        except OffsetOutOfRange:
            start, end = await source.bounds()
            if offset < start or offset >= end:
                return b"", max(start, offset + 1)
            # Another node had delivered it before this one's replica knew that it is committed.
            await asyncio.sleep(_COMMIT_WAIT_MS / 1000)
            return b"", offset
        return got.data, max(offset + 1, got.next_offset)


def _within(header: BatchHeader, offsets: list[int]) -> list[int]:
    """Those of the offsets, which ascend, that a batch may hold."""
    return offsets[
        bisect_left(offsets, header.base_offset) : bisect_right(offsets, header.last_offset)
    ]
