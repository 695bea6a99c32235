"""Durable state of the broker and its plugins: the newest value of each key of an internal topic.

A `StateTopic` is a map on disk. What is put is a record of a compacted topic, so the newest record
of a key is its value and a tombstone (a record without a value) deletes it, as in Kafka's
`__consumer_offsets`. The owner of a topic keeps the map in memory, reads it once at start and is
the only writer.

Nothing that is read back ends a start: a batch that is corrupt inside is stepped over, counted and
named in the log (`stored_batches`), and so is a record that its owner cannot decode (`skip`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    CorruptLog,
    InvalidRequest,
    LakeMQError,
    TopicExists,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import AppendTarget, Broker, PartitionLog
from lakemq.broker_core.api.records.batch import BODY_MAX_BYTES, RecordBatch, encode, read_header
from lakemq.broker_core.api.records.outcomes import outcome_of
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.records.reader import committed_batches, open_batch
from lakemq.broker_core.api.state.internal_topics import check_state_name
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    CommittedBatch,
    TopicConfig,
    TopicInfo,
)

_log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Small, because compaction rewrites whole segments and leaves the newest one alone."""
LARGE_SEGMENT_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 4 * 1024 * 1024
"""Fetched at a time while a topic is loaded: the memory that loading takes besides the map."""
_COMMIT_WAIT_MS: Final = 100
"""Between two looks at whether this node still leads a partition of which not all is committed."""
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Largest batch that `write_all` makes of many entries."""

Done = Callable[[LakeMQError | None], None]
"""Called once when a write has ended: with None when it is on disk, else with what failed."""


class StateRecord(NamedTuple):
    """One record of a state topic."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    """None: a tombstone, the key is deleted."""


_record: Callable[[tuple[int, int, bytes, bytes | None]], StateRecord] = partial(
    tuple.__new__, StateRecord
)
"""`StateRecord` from a tuple, without a Python call for each of the records of a start."""


class StateTopic:
    """The state of one owner in one internal topic.

    `acks` is what a write waits for. `large_values` is for values of up to a whole batch (16 MiB),
    which the topic then takes whatever `[topics]` sets. `routed`: writes go to the node that leads
    the partition, for a topic that every node writes. `open_stored` opens a stored batch and
    gives None for one that is corrupt inside, after counting it. All methods run on the event loop.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        partitions: int = 1,
        acks: Acks = Acks.LEADER,
        large_values: bool = False,
        compacted: bool = True,
        routed: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        open_stored: Callable[[CommittedBatch], RecordBatch | None] = open_batch,
    ) -> None:
        self.name = check_state_name(name)
        self.skipped = 0
        """Records that their owner could not decode."""
        self.writing: set[asyncio.Future[AppendResult]] = set()
        """Appends of `write_all` that have not ended."""
        self._broker = broker
        self._partitions = partitions
        self._acks = acks
        self._large_values = large_values
        self._compacted = compacted
        self._routed = routed
        self._now_ms = now_ms
        self._open_stored = open_stored
        self._creating = asyncio.Lock()

    # -- the topic

    @property
    def info(self) -> TopicInfo | None:
        """The topic as the catalog has it; None: it was not created yet."""
        try:
            return self._broker.topic(self.name)
        except UnknownTopic:
            return None

    def _exists(self) -> bool:
        return self.info is not None

    async def ensure(self) -> None:
        """Create the topic if it is absent. Raises what `Broker.create_topic` does."""
        if self._exists():
            return
        # Several callers may find it absent at once; one creates it, the others look again.
        async with self._creating:
            if self._exists():
                return
            try:
                await self._broker.create_topic(self.name, self._partitions, self._config())
            except TopicExists:  # another node was quicker
                await self._broker.ensure_topic(self.name)

    def _config(self) -> TopicConfig:
        lasting = replace(
            self._broker.topic_defaults(),
            cleanup="compact" if self._compacted else "delete",
            # Whatever `[topics]` sets: state that retention deleted would be lost, not old.
            retention_ms=None,
            retention_bytes=None,
            segment_max_bytes=LARGE_SEGMENT_BYTES if self._large_values else SEGMENT_BYTES,
        )
        if not self._large_values:
            return lasting
        return replace(lasting, compression="producer", batch_max_bytes=BODY_MAX_BYTES)

    def partition_of(self, text: bytes) -> int:
        """The partition that everything about `text` is in. Raises UnknownTopic."""
        return partition_of(text, self._broker.topic(self.name).partitions)

    def log(self, partition: int = 0) -> PartitionLog:
        """Raises UnknownTopic, UnknownPartition, and NotLeader where another node leads it."""
        return self._broker.partition(self.name, partition)

    # -- reading

    async def records(self) -> AsyncIterator[StateRecord]:
        """Every record, partition by partition, in offset order; none if the topic is absent.

        Raises what `PartitionLog.fetch` does, but for a log start that moved meanwhile.
        """
        async for partition, batch in self.batches():
            for record in _records(partition, batch):
                yield record

    async def restore(self, take: Callable[[bytes, bytes | None], object]) -> None:
        """Call `take(key, value)` for every record, as `records` gives them but without an object
        for each: for topics of very many records. Where `take` raises ValueError, the record is
        skipped (`skip`). Raises as `records` does."""
        await self._restore(self.batches(), take)

    async def restore_partition(
        self, partition: int, end: int, take: Callable[[bytes, bytes | None], object]
    ) -> None:
        """As `restore`, of the records of one partition below offset `end`; waits until they are
        committed. Raises what `log` and `PartitionLog.fetch` do."""
        await self._until_committed(partition, end)
        await self._restore(self._batches_of(partition), take)

    async def records_of(self, partition: int, end: int) -> AsyncIterator[StateRecord]:
        """As `records`, those of one partition; begins when all below offset `end` are committed.
        Raises as `restore_partition`."""
        await self._until_committed(partition, end)
        async for _, batch in self._batches_of(partition):
            for record in _records(partition, batch):
                yield record

    async def _until_committed(self, partition: int, end: int) -> None:
        while self.log(partition).high_watermark < end:
            mark = self.log(partition).high_watermark
            await self.log(partition).fetch(mark, bytes_max=1, wait_ms=_COMMIT_WAIT_MS)

    async def _restore(
        self,
        batches: AsyncIterator[tuple[int, RecordBatch]],
        take: Callable[[bytes, bytes | None], object],
    ) -> None:
        async for partition, batch in batches:
            rows = zip(batch.keys(), batch.values(), strict=True)
            for index, (key, value) in enumerate(rows):
                try:
                    take(key or b"", value)
                except ValueError as error:
                    offset = batch.offsets()[index]
                    self.skip(StateRecord(partition, offset, key or b"", value), error)

    async def load(self) -> dict[bytes, StateRecord]:
        """The newest record of each key that was not deleted. Takes the memory of what it gives
        and of one fetch. Raises as `records` does."""
        newest: dict[bytes, StateRecord] = {}
        async for partition, batch in self.batches():
            for record in _records(partition, batch):
                if record.value is None:
                    newest.pop(record.key, None)
                else:
                    newest[record.key] = record
        return newest

    async def batches(self) -> AsyncIterator[tuple[int, RecordBatch]]:
        """(partition, batch), as `records` gives their records, which are without headers."""
        info = self.info
        for partition in range(info.partitions if info is not None else 0):
            async for each in self._batches_of(partition):
                yield each

    async def _batches_of(self, partition: int) -> AsyncIterator[tuple[int, RecordBatch]]:
        log = self.log(partition)
        stored = committed_batches(
            log, self.name, partition, log.log_start_offset, log.high_watermark, READ_BYTES
        )
        async for batch in stored:
            opened = self._open_stored(batch)
            if opened is not None:
                yield partition, opened

    def skip(self, record: StateRecord, error: Exception) -> None:
        """Count and name a record that its owner cannot decode; its key is left as it was."""
        self.skipped += 1
        _log.error(
            "skipping undecodable record in %s-%d at offset %d: %s",
            self.name,
            record.partition,
            record.offset,
            error,
        )

    async def value_at(self, partition: int, offset: int) -> bytes:
        """The value of one record. CorruptLog, OffsetOutOfRange: it cannot be read."""
        log = self.log(partition)
        async for batch in committed_batches(log, self.name, partition, offset, offset + 1, 1):
            opened = self._open_stored(batch)
            for record in _records(partition, opened) if opened is not None else ():
                if record.offset == offset and record.value is not None:
                    return record.value
        raise CorruptLog(f"{self.name}-{partition} has no value at offset {offset}")

    # -- writing

    def put(self, key: bytes, value: bytes, *, partition: int = 0) -> asyncio.Future[AppendResult]:
        """Done when it is on disk. Raises and fails as `write`."""
        return self.write({key: value}, partition=partition)

    def delete(self, key: bytes, *, partition: int = 0) -> asyncio.Future[AppendResult]:
        """Done when it is on disk. Raises and fails as `write`."""
        return self.write({key: None}, partition=partition)

    def write(
        self,
        entries: Mapping[bytes, bytes | None],
        *,
        partition: int = 0,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Put entries (None deletes) as one batch: after a crash all of them are there or none.
        `headers`: encoded ones, of the keys that have some.

        Writes take effect in the order of calls. Raises as `log`; the future fails as that of
        `PartitionLog.append`, with StorageFull or Unavailable (back-pressure) among others; where
        they are routed, as `Broker.route`.
        """
        encoded = [headers.get(key, b"") for key in entries] if headers else None
        columns = Columns(list(entries.values()), list(entries), encoded)
        batch = encode(columns, now_ms=self._now_ms())
        if self._routed:
            target: AppendTarget = self._broker.route(self.name, partition)
        else:
            target = self.log(partition)
        return target.append(batch, read_header(batch), self._acks)

    async def write_retrying(
        self,
        entries: Mapping[bytes, bytes | None],
        backoff: Backoff,
        *,
        partition: int = 0,
        failed: Callable[[LakeMQError], None] = lambda error: None,
    ) -> None:
        """As `write`, again and again until it is on disk: no longer led elsewhere, the disk no
        longer full. The caller writes nothing else under these keys meanwhile, for a retry comes
        after it. `failed` hears of every failure."""
        while True:
            try:
                await self.write(entries, partition=partition)
                return
            except LakeMQError as error:
                failed(error)
                await asyncio.sleep(backoff.next_s())

    def write_all(
        self,
        entries: Mapping[bytes, bytes | None],
        done: Done,
        *,
        partition: int = 0,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """As `write`, for entries that may take many batches; `done` is called once, whatever
        happens, and may be called before this returns.

        A batch is appended when those before it are on disk, so that what comes last in `entries`
        is never kept without what comes first.
        """
        self._write_next(_pieces(entries), done, partition, headers)

    def _write_next(
        self,
        pieces: Iterator[dict[bytes, bytes | None]],
        done: Done,
        partition: int,
        headers: Mapping[bytes, bytes] | None,
    ) -> None:
        piece = next(pieces, None)
        if piece is None:
            done(None)
            return
        try:
            future = self.write(piece, partition=partition, headers=headers)
        except LakeMQError as error:
            done(error)
            return
        except Exception as error:  # values that no batch holds: the caller must hear of it
            done(InvalidRequest(f"topic {self.name}: {error}"))
            return
        self.writing.add(future)
        future.add_done_callback(partial(self._written, pieces, done, partition, headers))

    def _written(
        self,
        pieces: Iterator[dict[bytes, bytes | None]],
        done: Done,
        partition: int,
        headers: Mapping[bytes, bytes] | None,
        future: asyncio.Future[AppendResult],
    ) -> None:
        self.writing.discard(future)
        outcome = outcome_of(future)
        if isinstance(outcome, LakeMQError):
            done(outcome)
        else:
            self._write_next(pieces, done, partition, headers)


def _records(partition: int, batch: RecordBatch) -> Iterator[StateRecord]:
    keys = [key or b"" for key in batch.keys()]  # noqa: SIM118 - a column, not a dict
    return map(_record, zip(repeat(partition), batch.offsets(), keys, batch.values(), strict=False))


def _pieces(entries: Mapping[bytes, bytes | None]) -> Iterator[dict[bytes, bytes | None]]:
    """The entries in order, cut where a batch would become larger than `PIECE_BYTES`."""
    piece: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in entries.items():
        entry_bytes = len(key) + len(value or b"")
        if piece and size + entry_bytes > PIECE_BYTES:
            yield piece
            piece, size = {}, 0
        piece[key] = value
        size += entry_bytes
    if piece:
        yield piece
