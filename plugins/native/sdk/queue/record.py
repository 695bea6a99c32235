"""Messages of a queue, and how they are settled: what one loop turn settles goes out together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any, NamedTuple

from lakemq.broker_core.api.errors import LakeMQError, LockLost, OutcomeUnknown
from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.sdk.net.errors import error_of
from lakemq.plugins.native.sdk.serializing import DeserializationError, RecordDeserializer
from lakemq.plugins.native.sdk.types import ConsumerRecord

_GroupKey = tuple[int, int, int | None]
"""(partition, settlement, delay)"""


class _Lost(NamedTuple):
    """Place of a record that is not ours."""

    partition: int
    offset: int


class QueueRecord:
    """A record that is this consumer's alone until its lock ends. Settle it exactly once."""

    __slots__ = (
        "_life", "_settling", "_until", "attempt", "headers", "key", "offset", "partition",
        "timestamp_ms", "topic", "value",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, offset: int, timestamp_ms: int, key: Any,
        value: Any, headers: Headers, attempt: int, settling: Settling, life: int,
        until: float,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers
        self.attempt = attempt
        """1 for the first delivery."""
        self._settling = settling
        self._life = life
        self._until = until

    def stored(self) -> ConsumerRecord:
        """Internal: what is stored, without how to settle it."""
        return ConsumerRecord(
            self.topic, self.partition, self.offset, self.timestamp_ms, self.key, self.value,
            self.headers,
        )  # fmt: skip

    def make(self, deserializer: RecordDeserializer) -> None:
        """Internal: key and value are what is made of them from now on. Raises
        DeserializationError."""
        try:
            made = deserializer.record(self.stored())
        except DeserializationError as error:
            error.queue_record = self
            raise
        self.key, self.value = made.key, made.value

    def __repr__(self) -> str:
        return (
            f"QueueRecord({self.topic}-{self.partition}:{self.offset}, key={self.key!r}, "
            f"value={self.value!r}, attempt={self.attempt})"
        )

    @property
    def is_held(self) -> bool:
        """Whether it is still ours, as far as we can know."""
        return self._life == self._settling.life and monotonic() < self._until

    @property
    def lock_left_s(self) -> float:
        """How long it is still ours (s)."""
        return self._until - monotonic()

    async def ack(self) -> None:
        """Done with: it never comes again. Returns when that is on the broker's disk.

        Raises LockLost: it was too late, another consumer may have it. OutcomeUnknown: the
        connection broke; it may come again.
        """
        await self._settle(pb.SETTLEMENT_ACCEPT)

    async def nack(self, delay_ms: int | None = None) -> None:
        """Failed: it comes again after a pause (the queue's, that grows, or `delay_ms`), or becomes
        a dead letter when it has failed too often. Raises as `ack`."""
        await self._settle(pb.SETTLEMENT_RETRY, delay_ms)

    async def release(self) -> None:
        """Not tried: another consumer gets it; the attempt does not count. Raises as `ack`."""
        await self._settle(pb.SETTLEMENT_RELEASE)

    async def reject(self) -> None:
        """Never again: it becomes a dead letter, or is gone when the queue has none. Raises as
        `ack`."""
        await self._settle(pb.SETTLEMENT_REJECT)

    async def extend(self) -> None:
        """Still at it: the lock is extended. Raises as `ack`."""
        await self._settle(pb.SETTLEMENT_EXTEND)

    async def _settle(
        self, settlement: pb.Settlement.ValueType, delay_ms: int | None = None
    ) -> None:
        if await self._settling.settle([self], settlement, delay_ms):
            raise LockLost(
                f"record {self.topic}-{self.partition}:{self.offset} is not ours any more"
            )

    def extended(self, until: float) -> None:
        """Internal: its lock now ends at `until`, by the monotonic clock (s)."""
        self._until = until


class _Group:
    """Offsets of one partition that are settled alike, with one request."""

    def __init__(self, future: asyncio.Future[frozenset[int]]) -> None:
        self.offsets: list[int] = []
        self.future = future


class Settling:
    """What one consumer settles."""

    def __init__(self) -> None:
        self.life = 0
        """Grows with every connection: locks do not outlive one."""
        self.is_connected = False
        self.lock_s = 0.0
        self._groups: dict[_GroupKey, _Group] = {}
        self._sent: dict[int, _Group] = {}
        self._next_id = 0
        self._out: asyncio.Queue[pb.SettleRecords | None] = asyncio.Queue()

    def connected(self, lock_s: float) -> None:
        """The stream is open; locks last `lock_s` seconds."""
        self.is_connected = True
        self.lock_s = lock_s

    def disconnected(self) -> None:
        """The stream ended: whatever has no answer fails with OutcomeUnknown."""
        self.is_connected = False
        self.life += 1
        waiting = [*self._groups.values(), *self._sent.values()]
        self._groups.clear()
        self._sent.clear()
        # A new queue: requests of the old connection name locks that have ended.
        self._out = asyncio.Queue()
        for group in waiting:
            if not group.future.done():
                group.future.set_exception(
                    OutcomeUnknown("the connection broke before the broker answered")
                )
                group.future.exception()  # not everybody waits for it

    async def settle(
        self,
        messages: Sequence[QueueRecord],
        settlement: pb.Settlement.ValueType,
        delay_ms: int | None = None,
    ) -> list[_Lost]:
        """Settle messages; those that are not ours any more."""
        # Taken before the request is sent: a lock that is extended never seems longer here than at
        # the broker.
        asked_at = monotonic()
        lost: list[_Lost] = []
        groups: dict[int, _Group] = {}
        for message in messages:
            # It came over an earlier connection: the broker has given it to others since, whose
            # lock must not be settled.
            if message._life != self.life:
                lost.append(_Lost(message.partition, message.offset))
                continue
            group = self._group((message.partition, settlement, delay_ms))
            group.offsets.append(message.offset)
            groups[message.partition] = group
        for partition, group in groups.items():
            # Shielded, for several callers share one group: cancelling one must not cancel the
            # answer of the others.
            gone = await asyncio.shield(group.future)
            if gone:
                mine = {each.offset for each in messages if each.partition == partition}
                lost += [_Lost(partition, offset) for offset in sorted(gone & mine)]
        if settlement == pb.SETTLEMENT_EXTEND and self.lock_s:
            away = set(lost)
            for message in messages:
                if (message.partition, message.offset) not in away:
                    message.extended(asked_at + self.lock_s)
        return lost

    def _group(self, key: _GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            loop = asyncio.get_running_loop()
            if not self._groups:
                # At the end of this loop turn: what many tasks settle in it becomes one request for
                # each partition and kind.
                loop.call_soon(self._flush)
            group = self._groups[key] = _Group(loop.create_future())
        return group

    def _flush(self) -> None:
        groups, self._groups = self._groups, {}
        for (partition, settlement, delay_ms), group in groups.items():
            self._next_id += 1
            self._sent[self._next_id] = group
            self._out.put_nowait(
                pb.SettleRecords(
                    request_id=self._next_id,
                    partition=partition,
                    ranges=_ranges(group.offsets),
                    settlement=pb.Settlement.ValueType(settlement),
                    delay_ms=delay_ms,
                )
            )

    def ping(self) -> None:
        """Have the broker answer, whatever it is: a settlement of no record."""
        self._next_id += 1
        self._out.put_nowait(
            pb.SettleRecords(request_id=self._next_id, settlement=pb.SETTLEMENT_EXTEND)
        )

    async def requests(self) -> AsyncIterator[pb.SettleRecords]:
        """What is to be sent on this connection."""
        out = self._out
        while (settle := await out.get()) is not None:
            yield settle

    def finish(self) -> None:
        """Nothing more is sent on this connection."""
        self._out.put_nowait(None)

    def answered(self, answer: pb.RecordsSettled) -> None:
        """The broker has answered a request to settle records."""
        group = self._sent.pop(answer.request_id, None)
        if group is None or group.future.done():
            return
        if answer.HasField("error"):
            error: LakeMQError = error_of(answer.error)
            if error.retriable:  # the queue has gone to another node, and takes its locks nowhere
                group.future.set_result(frozenset(group.offsets))
                return
            group.future.set_exception(error)
            group.future.exception()
            return
        lost = {at for each in answer.lost for at in range(each.first, each.last + 1)}
        group.future.set_result(frozenset(lost))


def _ranges(offsets: Sequence[int]) -> list[pb.OffsetRange]:
    found: list[pb.OffsetRange] = []
    for offset in sorted(set(offsets)):
        if found and found[-1].last == offset - 1:
            found[-1].last = offset
        else:
            found.append(pb.OffsetRange(first=offset, last=offset))
    return found
