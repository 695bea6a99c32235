"""What a consumer hands out next, and whether it still may."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic, time_ns
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.plugins.native.sdk.consumer.assigned import AssignedPartitions
from lakemq.plugins.native.sdk.consumer.chunks import Chunk, decoded
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.fetching import Arrived
from lakemq.plugins.native.sdk.consumer.positions import Span
from lakemq.plugins.native.sdk.group.group_stream import now_ms
from lakemq.plugins.native.sdk.serializing import Deserialized, RecordDeserializer
from lakemq.plugins.native.sdk.types import ConsumerRecord
from lakemq.plugins.native.wire.filtering import RecordFilter

_WAIT_S: Final = 0.5


class RecordReader:
    """Chunks of records, which all ways to read share: the next one goes on with what is left
    of the last chunk."""

    def __init__(
        self,
        assigned: AssignedPartitions,
        counters: ConsumerCounters,
        wanted: RecordFilter | None,
        corrupt: CorruptPolicy,
        deserializer: RecordDeserializer | None,
        group: str,
    ) -> None:
        self.stopped = False
        self.wanted, self.corrupt, self.counters = wanted, corrupt, counters
        self._assigned, self._fetch = assigned, assigned.fetch
        self._membership, self._positions = assigned.membership, assigned.positions
        self._deserializer = deserializer
        self._telemetry, self._group = assigned.telemetry, group
        self._chunk: Chunk | None = None
        """Partly handed out."""
        self._lost_some = False
        """Whether some of what arrived was dropped on its way to the application."""
        self._held_over: Arrived | None = None
        """Taken from the queue and not looked at."""

    def stop(self) -> None:
        """Hand out nothing more. On the event loop."""
        self.stopped = True
        self._membership.version += 1
        self._assigned.changed.set()

    async def chunk_within(self, wait_s: float) -> Chunk | None:
        """Records to hand out, one after the other, each after `may_hand_out` or `between`; None
        when nothing came for about `wait_s`, or when stopped.

        Raises what makes going on impossible: NotAuthorized, CorruptLog; with
        `on_corrupt="raise"` CorruptBatch. A topic that is not there is waited for, and a warning
        is logged.
        """
        until = monotonic() + wait_s
        while not self.stopped:
            self._positions.came_back()
            await self._assigned.settle()
            if self._chunk is not None and not self._chunk.is_empty:
                return self._chunk
            self._chunk = None
            arrived = await self.arrived(until - monotonic())
            if arrived is not None and (chunk := await self._prepared(arrived)):
                self._chunk = chunk
                return chunk
            if monotonic() >= until:
                break
        return None

    def put_back(self) -> None:
        """The application did not get a record that was taken from a chunk: fetch it again."""
        self._chunk, self._lost_some = None, True

    def all_handed_out(self) -> None:
        """Nothing of what was put back is missing."""
        self._lost_some = False

    def drop(self, chunk: Chunk) -> None:
        """What is left of a chunk may not be handed out any more."""
        if self._chunk is chunk:
            self._chunk = None

    async def arrived(self, wait_s: float = _WAIT_S) -> Arrived | None:
        """The next batches of a partition that is still ours; None: look what has changed."""
        # What was left of its chunk is neither handled nor queued any more, so it is fetched again.
        if self._lost_some or self._chunk is not None:
            self._chunk, self._lost_some = None, False
            self._assigned.read_again()
        arrived = await self._next_arrived(max(0.0, min(wait_s, _WAIT_S)))
        if arrived is None or not self._is_current(arrived):
            return None
        if arrived.error is not None:
            await self._assigned.failed(arrived.place, arrived.error)
            return None
        self._count(arrived)
        return arrived

    def _is_current(self, arrived: Arrived) -> bool:
        # Identity, not equality: a restart from the same offset makes another `Reading`, and what
        # was asked for before it would come twice.
        if self._fetch.places.get(arrived.place) is not arrived.reading:
            return False
        return arrived.error is not None or arrived.place in self._membership.held

    def _count(self, arrived: Arrived) -> None:
        self.counters.batches += len(arrived.batches)
        self.counters.bytes += sum(each.header.total_bytes for each in arrived.batches)

    def may_hand_out(self, chunk: Chunk) -> bool:
        """Whether nothing has changed since `chunk` was made. Cheap, and safe in any thread."""
        return self._membership.version == chunk.version and now_ms() < chunk.check_ms

    async def between(self, chunk: Chunk) -> bool:
        """Do what is due between two records; whether the rest of `chunk` may be handed out."""
        while not self.stopped:
            self._positions.came_back()
            await self._assigned.settle()
            if not self._is_ours(chunk):
                return False
            # Read after `settle`, whose awaits may have let the membership change.
            self._note_version(chunk)
            if self._membership.may_hand_out(chunk.place, now_ms()):
                return True
            await self._wait_for_change()
        return False

    def _is_ours(self, chunk: Chunk) -> bool:
        held = self._membership.held.get(chunk.place)
        if held is None or held.epoch != chunk.grant.epoch:
            return False
        return self._fetch.places.get(chunk.place) is chunk.reading

    def _note_version(self, chunk: Chunk) -> None:
        chunk.version, chunk.check_ms = self._membership.version, self._assigned.check_ms()

    # -- for one call

    def handed_out(self, record: ConsumerRecord) -> None:
        """The application has `record` in hand."""
        self._positions.in_hand = record

    def take_one(self) -> ConsumerRecord | None:
        """The next record, in hand from now on, if nothing has to be waited for; else None. Safe in
        the application's thread."""
        chunk = self._chunk
        if chunk is None or not self.may_hand_out(chunk):
            return None
        record = next(chunk.rest, None)
        if record is not None:
            self._positions.came_back()
            self._positions.in_hand = record
        return record

    async def poll(self, timeout_s: float) -> ConsumerRecord | None:
        """As `Consumer.poll`."""
        until = monotonic() + timeout_s
        while (record := self.take_one()) is None:
            chunk = await self.chunk_within(until - monotonic())
            if chunk is None:
                return None
            if not await self.between(chunk):
                self.drop(chunk)
        return record

    async def get_many(self, max_records: int, timeout_s: float) -> list[ConsumerRecord]:
        """As `Consumer.get_many`."""
        until = monotonic() + timeout_s
        while (chunk := await self.chunk_within(until - monotonic())) is not None:
            if self.may_hand_out(chunk) or await self.between(chunk):
                return self._gathered(chunk, max_records)
            self.drop(chunk)
        return []

    def _gathered(self, chunk: Chunk | None, max_records: int) -> list[ConsumerRecord]:
        """Without an await, so that nothing can change in between: what is there, from `chunk`
        on."""
        found: list[ConsumerRecord] = []
        spans: tuple[Span, ...] = ()
        while chunk is not None:
            records = chunk.take(max_records - len(found))
            found += records
            spans += (chunk.span(records),)
            self._positions.in_hand = spans
            if len(found) >= max_records:
                break
            chunk = self._chunk_now()
        return found

    def _chunk_now(self) -> Chunk | None:
        """The next chunk, if it has arrived and may be handed out."""
        asks = self._deserializer is not None and self._deserializer.asks
        if asks or self._held_over is not None:
            return None
        while not self._fetch.arrived.empty():
            arrived = self._fetch.arrived.get_nowait()
            if not self._is_current(arrived):
                continue
            mine = self._membership.may_hand_out(arrived.place, now_ms())
            if arrived.error is not None or not mine:
                self._held_over = arrived
                return None
            self._count(arrived)
            chunk = self._chunk = self._opened(arrived)
            if chunk is not None:
                self._note_version(chunk)
                return chunk
        return None

    # -- what has arrived

    async def _next_arrived(self, wait_s: float) -> Arrived | None:
        """None: something has changed meanwhile."""
        if self._held_over is not None:
            arrived, self._held_over = self._held_over, None
            return arrived
        if not self._fetch.arrived.empty():
            return self._fetch.arrived.get_nowait()
        # A cancelled `Queue.get` loses nothing: it takes its item only when it returns.
        arrival = asyncio.ensure_future(self._fetch.arrived.get())
        change = asyncio.ensure_future(self._assigned.changed.wait())
        try:
            await asyncio.wait(
                (arrival, change), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            return arrival.result() if arrival.done() else None
        except asyncio.CancelledError:  # what has arrived meanwhile is fetched again
            self._lost_some |= arrival.done()
            raise
        finally:
            arrival.cancel()
            change.cancel()

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await self._assigned.changed.wait()

    async def _prepared(self, arrived: Arrived) -> Chunk | None:
        chunk = self._opened(arrived)
        if chunk is not None and isinstance(chunk.rest, Deserialized):
            try:
                await chunk.rest.prepare()
            except BaseException:  # cancelled, or the registry does not answer
                self.put_back()
                raise
        return chunk

    def _opened(self, arrived: Arrived) -> Chunk | None:
        place, positions = arrived.place, self._positions
        started_ns = 0 if self._telemetry is None else time_ns()
        first = positions.next_of(place)
        records: list[ConsumerRecord] = []
        for batch in arrived.batches:
            try:
                records += decoded(place, batch, first, self.wanted)
            except CorruptBatch as error:
                self.corrupt.note(*place, batch.header.base_offset, error)
        end = max(first, arrived.next_offset)
        # Nothing to hand out, yet the offsets were looked at: a commit may pass them, or the lag
        # would never shrink.
        if not records:
            positions.at[place] = end
            return None
        self.counters.records += len(records)
        if self._telemetry is not None:
            heads = [each.headers for each in records]
            self._telemetry.received(*place, self._group, heads, started_ns)
        rest = (
            iter(records)
            if self._deserializer is None
            else Deserialized(records, self._deserializer)
        )
        positions.last = Span(place, records[-1].offset, end)
        grant = self._membership.held[place]
        return Chunk(place, grant, arrived.reading, rest, end)
