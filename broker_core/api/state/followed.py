"""State that every node holds: a state topic of one partition, read by all, wherever it is led.

A node reads what there is once (`restore`), then what comes (`take`), in offset order. It may be
some milliseconds behind what another node has written.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, OffsetOutOfRange
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch, split
from lakemq.broker_core.api.records.reader import open_batch
from lakemq.broker_core.api.types import CommittedBatch, FetchResult, Offset

_log: Final = logging.getLogger(__name__)
READ_BYTES: Final = 1024 * 1024
WAIT_MS: Final = 5_000
"""How long a read waits for a record; each node has one under way."""
_RESTORE_WAIT_MS: Final = 100
"""The same while what there is is read: this node's replica may lag behind the leader's end."""
RETRY_MIN_MS: Final = 100
RETRY_MAX_MS: Final = 5_000
_rng: Final = random.Random()


class FollowedRecord(NamedTuple):
    """One record."""

    offset: int
    key: bytes
    value: bytes | None
    """None: a tombstone, the key is deleted."""
    headers: bytes
    """Encoded."""


class Follower(Protocol):
    """Holds what the topic says. Neither method raises."""

    def restore(self, newest: Sequence[FollowedRecord]) -> None:
        """All there is, in offset order: the newest record of each key, without tombstones. Called
        once the end is reached that the topic had; again where records that were taken are lost, or
        another topic has this one's name: what is not among them is gone then."""

    def take(self, records: Sequence[FollowedRecord]) -> None:
        """What came behind that."""


class FollowedTopic:
    """Follows one topic for one follower. All methods run on the event loop."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        follower: Follower,
        *,
        open_stored: Callable[[CommittedBatch], RecordBatch | None] = open_batch,
    ) -> None:
        """`open_stored`: as of `StateTopic`."""
        self.name = name
        self._broker = broker
        self._follower = follower
        self._open_stored = open_stored
        self._backoff = Backoff(RETRY_MIN_MS, RETRY_MAX_MS, _rng.random)
        self._restored = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._newest: dict[bytes, FollowedRecord] | None = {}
        """While what there is is read; None: it was given to the follower."""
        self._topic_id = ""
        self._offset: Offset | None = None
        """What is read next; None: to be found out."""
        self._end = Offset(0)
        """Where the topic ended when reading began."""

    @property
    def offset(self) -> int:
        """The follower has been given every record below it."""
        return self._offset if self._newest is None and self._offset is not None else 0

    async def start(self, wait_s: float) -> bool:
        """Follow from now on. Returns when the follower has been given what there is, or after
        `wait_s`, where the node that has it can't be reached: whether it has."""
        self._task = asyncio.create_task(self._follow())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._restored.wait(), wait_s)
        return self._restored.is_set()

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def read_again(self) -> None:
        """Give the follower all there is once more, within `WAIT_MS`."""
        self._topic_id = ""

    async def _follow(self) -> None:
        told = ""
        while True:
            try:
                await self._step()
            except LakeMQError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("topic %s can't be read now, trying again: %s", self.name, error)
                await asyncio.sleep(self._backoff.next_s())
            except Exception:  # a fault of ours must not keep this node from all that comes
                _log.exception("topic %s: unexpected error, trying again", self.name)
                await asyncio.sleep(self._backoff.next_s())
            else:
                self._backoff.reset()
                told = ""

    async def _step(self) -> None:
        topic_id = self._broker.topic(self.name).topic_id
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._begin_again()
        reader = self._broker.reader(self.name, 0)
        if self._offset is None:
            self._offset, self._end = await reader.bounds()
        if self._newest is not None and self._offset >= self._end:
            self._follower.restore(sorted(self._newest.values()))
            self._newest = None
            self._restored.set()
        wait_ms = WAIT_MS if self._newest is None else _RESTORE_WAIT_MS
        try:
            got = await reader.fetch(self._offset, bytes_max=READ_BYTES, wait_ms=wait_ms)
        except OffsetOutOfRange:
            self._begin_again()
            raise
        # Not before they were taken: an error there has them read once more.
        records = list(self._records(got))
        if self._newest is None:
            if records:
                self._follower.take(records)
        else:
            self._note(self._newest, records)
        self._offset = got.next_offset

    def _begin_again(self) -> None:
        self._newest, self._offset = {}, None

    def _records(self, got: FetchResult) -> Iterator[FollowedRecord]:
        for position, header in split(got.data):
            if header.attributes & CONTROL:
                continue
            data = got.data[position : position + header.total_bytes]
            opened = self._open_stored(
                CommittedBatch(self.name, 0, Offset(header.base_offset), data)
            )
            if opened is None:
                continue
            rows = zip(
                opened.offsets(), opened.keys(), opened.values(), opened.encoded_headers(),
                strict=True,
            )  # fmt: skip
            for offset, key, value, headers in rows:
                # A batch may begin before the offset that was asked for.
                if self._offset is None or offset >= self._offset:
                    yield FollowedRecord(offset, key or b"", value, headers)

    @staticmethod
    def _note(newest: dict[bytes, FollowedRecord], records: Sequence[FollowedRecord]) -> None:
        for record in records:
            if record.value is None:
                newest.pop(record.key, None)
            else:
                newest[record.key] = record
