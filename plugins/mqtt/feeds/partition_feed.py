"""One partition of which this node has no replica: its committed batches, read from whichever node
leads it, and delivered like those of a tap. Edge: awaits the broker.

What counts is the position: it moves with what was delivered, so another leader, or a replica that
comes to this node, goes on there, and no record is left out or delivered twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    LakeMQError,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Broker, PartitionReader, Wanted
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.types import CommittedBatch, FetchResult, Offset
from lakemq.plugins.mqtt.feeds.arrivals import Arrivals
from lakemq.plugins.mqtt.state.sessions import Positions

_log: Final = logging.getLogger(__name__)
FETCH_BYTES: Final = 1024 * 1024
WAIT_MS: Final = 5_000
"""How long a leader waits for a record before it says that there is none."""
_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 2_000
LOST_S: Final = 30.0
"""A position above the end of the log for so long is given up: its records are lost. A new leader
may know less than the old one for a moment."""
_rng: Final = random.Random()

Key = tuple[str, int]


class PartitionFeed:
    """Lives on the event loop."""

    def __init__(self, key: Key, positions: Positions, broker: Broker, arrivals: Arrivals) -> None:
        """`positions`: `Hub.positions`. Without one it begins where the leader is."""
        self.key = key
        self.on_begun: Callable[[Key], None] = lambda key: None
        """Called when the position is known."""
        self.on_met: Callable[[Key], None] = lambda key: None
        """Called when a replica of this node goes on where the feed is."""
        self._positions = positions
        self._broker = broker
        self._arrivals = arrivals
        self.wanted: Callable[[], Wanted | None] = lambda: None
        """Asked before each read: what the leader may leave out; None: nothing."""
        self.still: Callable[[Wanted], bool] = lambda wanted: True
        """Whether what a leader left out by that is not wanted by now, either."""
        self._whole = False
        """Whether the next read leaves nothing out."""
        self._task: asyncio.Task[None] | None = None
        self._leaving_out: asyncio.Task[None] | None = None
        """The task, while it waits for a read that leaves something out."""
        self._lost_since_s: float | None = None

    def begin(self) -> None:
        """Read from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Read no more; what is being delivered is delivered."""
        if self._task is not None:
            self._task.cancel()

    def read_whole(self) -> None:
        """Give up a read that leaves out what has become wanted: its leader answers when there is
        something else, or after `WAIT_MS`."""
        if self._leaving_out is not None:
            self._leaving_out.cancel()
            self._leaving_out = self._task = None
            self.begin()

    async def _run(self) -> None:
        backoff, reported = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random), ""
        while True:
            try:
                if await self._step():
                    self.on_met(self.key)
                    return
                backoff.reset()
                reported = ""
                continue
            except (UnknownTopic, UnknownPartition) as error:
                # It was deleted, as the catalog will say, or the leader does not know it yet.
                _log.debug("%s-%d: %s", *self.key, error)
            except LakeMQError as error:
                # Once for each cause: a leader that is away for an hour is one line.
                if str(error) != reported:
                    reported = str(error)
                    _log.warning("%s-%d can't be followed now: %s", *self.key, error)
            await asyncio.sleep(backoff.next_s())

    async def _step(self) -> bool:
        """Read and deliver once; True: a replica of this node goes on from here. Raises
        LakeMQError."""
        wanted = None if self._whole else self.wanted()
        reader = self._broker.reader(*self.key, wanted)
        position = self._positions.get(self.key)
        if position is None:
            position = self._positions[self.key] = (await reader.bounds())[1]
            self.on_begun(self.key)
        try:
            got = await self._fetch(reader, position, leaves_out=wanted is not None)
        except OffsetOutOfRange:
            await self._find_again(reader, position)
            return False
        self._lost_since_s = None
        # What was subscribed to meanwhile may have been left out: it is read again, and whole, so
        # that subscriptions without end cannot hold it up.
        self._whole = wanted is not None and not self.still(wanted)
        if self._whole:
            return False
        await self._deliver(got, position)
        end = self._broker.readable_end(*self.key)
        return end is not None and end <= self._positions.get(self.key, 0)

    async def _fetch(
        self, reader: PartitionReader, position: int, *, leaves_out: bool
    ) -> FetchResult:
        self._leaving_out = asyncio.current_task() if leaves_out else None
        try:
            return await reader.fetch(Offset(position), bytes_max=FETCH_BYTES, wait_ms=WAIT_MS)
        finally:
            self._leaving_out = None

    async def _deliver(self, got: FetchResult, position: int) -> None:
        topic, partition = self.key
        batches = [
            CommittedBatch(
                topic,
                partition,
                Offset(header.base_offset),
                got.data[place : place + header.total_bytes],
            )
            for place, header in split(got.data)
        ]
        if batches:
            await self._arrivals.feed(topic, batches)
        behind = max(position, got.next_offset)
        if self._positions.get(self.key, behind) < behind:
            self._positions[self.key] = behind

    async def _find_again(self, reader: PartitionReader, position: int) -> None:
        """Go on where the log starts if retention was quicker; or at its end, if what lies before
        the position is lost for good. Raises LakeMQError."""
        start, end = await reader.bounds()
        if position < start:
            self._positions[self.key] = start
            return
        now_s = asyncio.get_running_loop().time()
        if self._lost_since_s is None:
            self._lost_since_s = now_s
        if position <= end or now_s - self._lost_since_s < LOST_S:
            raise OffsetOutOfRange(f"offset {position} is not in [{start}, {end}] of the leader")
        _log.error(
            "%s-%d ends at offset %d, before %d that was delivered: records were lost",
            *self.key, end, position,
        )  # fmt: skip
        self._positions[self.key] = end
        self._lost_since_s = None
