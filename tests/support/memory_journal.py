"""An in-memory stand-in of the SDK's sync client, for unit tests of spark_plugin."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    RecordBatch,
    encode,
    pack_header,
    read_header,
)
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.native.sdk import (
    OffsetOutOfRange,
    PartitionOffsets,
    RecordFilter,
    TieredSegments,
    TopicOffsets,
    UnknownTopic,
)
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptCallback, CorruptPolicy, OnCorrupt


class StoredBatch(NamedTuple):
    header: BatchHeader
    data: bytes


class MemoryJournal:
    """Topics in memory, with the face of `SyncClient` that Spark uses."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._batches: dict[tuple[str, int], list[StoredBatch]] = {}
        self._log_starts: dict[tuple[str, int], int] = {}
        self._partitions: dict[str, int] = {}
        self.failures: list[Exception] = []
        """Raised by the next fetches, one each, after their first batch."""

    def create_topic(self, name: str, partitions: int = 1) -> str:
        self._ids[name] = uuid.uuid4().hex
        self._partitions[name] = partitions
        for partition in range(partitions):
            self._batches[name, partition] = []
            self._log_starts[name, partition] = 0
        return self._ids[name]

    def delete_topic(self, name: str) -> None:
        del self._ids[name]

    def append(self, name: str, partition: int, columns: Columns, gap: int = 0) -> None:
        """Append a batch, after leaving `gap` offsets out."""
        base = self.high_watermark(name, partition) + gap
        data = encode(columns, base_offset=base, now_ms=1_000 * (base + 1))
        self._batches[name, partition].append(StoredBatch(read_header(data), data))

    def append_poison(self, name: str, partition: int, data: bytes) -> None:
        """Append a batch that is whole outside and corrupt inside."""
        header = read_header(data)._replace(base_offset=self.high_watermark(name, partition))
        stored = StoredBatch(header, pack_header(header) + data[HEADER_BYTES:])
        self._batches[name, partition].append(stored)

    def append_values(self, name: str, partition: int, *values: bytes | None) -> None:
        keys = [b"key-%d" % (index % 3) for index in range(len(values))]
        self.append(name, partition, Columns(values, keys))

    def truncate_front(self, name: str, partition: int, log_start: int) -> None:
        """What retention does."""
        self._log_starts[name, partition] = log_start
        self._batches[name, partition] = [
            batch
            for batch in self._batches[name, partition]
            if batch.header.last_offset >= log_start
        ]

    def high_watermark(self, name: str, partition: int) -> int:
        batches = self._batches[name, partition]
        return batches[-1].header.last_offset + 1 if batches else self._log_starts[name, partition]

    def topics(self) -> list[TopicOffsets]:
        return [self.describe_topic(name) for name in sorted(self._ids)]

    def describe_topic(self, name: str) -> TopicOffsets:
        if name not in self._ids:
            raise UnknownTopic(f"there is no topic {name}")
        return TopicOffsets(
            name,
            self._ids[name],
            tuple(
                PartitionOffsets(
                    partition,
                    self._log_starts[name, partition],
                    self.high_watermark(name, partition),
                    sum(each.header.total_bytes for each in self._batches[name, partition]),
                )
                for partition in range(self._partitions[name])
            ),
        )

    def offsets_for_timestamp(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        found = {}
        for partition in range(self._partitions[topic]):
            found[partition] = self.high_watermark(topic, partition)
            for stored in reversed(self._batches[topic, partition]):
                batch = RecordBatch(stored.data)
                for offset, time_ms in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
                    if time_ms >= timestamp_ms:
                        found[partition] = min(found[partition], offset)
        return found

    def tiered_segments(
        self, topic: str, partition: int, start: int, end: int, *, topic_id: str = ""
    ) -> TieredSegments:
        """There is no object store."""
        log_start = self._log_starts[topic, partition]
        return TieredSegments(log_start, self.high_watermark(topic, partition), (), False)

    def fetch_batches(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: str | None = None,
        bytes_max: int = 0,
        wanted: RecordFilter | None = None,
        on_corrupt: OnCorrupt | CorruptCallback = "raise",
    ) -> Iterator[RecordBatch]:
        if topic_id != self._ids.get(topic):
            raise UnknownTopic(f"topic {topic} has another id")
        if not self._log_starts[topic, partition] <= start <= self.high_watermark(topic, partition):
            raise OffsetOutOfRange(f"{topic}-{partition}: offset {start}")
        policy = CorruptPolicy(on_corrupt)
        for stored in self._batches[topic, partition]:
            if stored.header.last_offset < start or stored.header.base_offset >= end:
                continue
            batch = policy.open(stored.data, 0, topic, partition)
            if batch is not None and (wanted is None or any(wanted.rows(batch))):
                yield batch
                if self.failures:
                    raise self.failures.pop(0)

    def offsets(self, topic: str) -> dict[int, list[int]]:
        """All offsets that there are, by partition."""
        return {
            partition: [
                each
                for stored in self._batches[topic, partition]
                for each in RecordBatch(stored.data).offsets()
            ]
            for partition in range(self._partitions[topic])
        }
