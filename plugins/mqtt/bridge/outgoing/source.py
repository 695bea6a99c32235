"""What goes out: the topics, cursor by cursor, as far as there is room."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import (
    CorruptLog,
    LakeMQError,
    OffsetOutOfRange,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import Offset, TopicInfo
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.outgoing.fetching import (
    LOST_S,
    WAIT_MS,
    CursorFetcher,
    reader_of,
    rows_of,
)
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Forward, Outbox, PartitionCursor, Sent
from lakemq.plugins.mqtt.bridge.records import BridgeRecord, BridgeRecordReader, is_echo
from lakemq.plugins.mqtt.bridge.rules import Rules

_log = logging.getLogger(__name__)

_ROWS_PER_TURN: Final = 1000
"""Records looked at before others get their turn of the loop."""


class Source:
    """What goes out by one link."""

    def __init__(
        self, broker: Broker, settings: LinkSettings, rules: Rules, outbox: Outbox
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._rules = rules
        self._outbox = outbox
        self._reader = BridgeRecordReader()
        self._fetchers: dict[PartitionCursor, CursorFetcher] = {}
        self._tasks: dict[PartitionCursor, asyncio.Task[None]] = {}
        """While records are fetched."""
        self._fetching = False
        self._turn: deque[PartitionCursor] = deque()
        self._unread_since_s: float | None = None
        self.fetched: Callable[[], None] = lambda: None
        """Called when there are records to take."""
        self.more = False
        """Whether the last `take` left records that are there already."""
        self._lost = 0

    @property
    def lost(self) -> int:
        """Records that were gone before they went out: retention or deletion was quicker."""
        return self._lost + sum(each.lost for each in self._fetchers.values())

    @property
    def unreadable(self) -> int:
        """Records that could not be decoded."""
        return self._reader.unreadable

    # -- partitions

    async def open_cursors(self, *, first: bool) -> None:
        """Read every partition of the topics. `first`: the link is new, so `start` says from
        where, and all leaders must answer (raises Unavailable); a partition or topic that is new is
        read from its beginning, once its leader answers."""
        wanted = set(self._rules.topics_out)
        ids = {one.name: one.topic_id for one in self._broker.topics() if one.name in wanted}
        for cursor in list(self._outbox.cursors.values()):
            # Deleted and created again: its offsets are those of other records.
            again = ids.get(cursor.topic, cursor.topic_id) != cursor.topic_id
            if again or cursor.topic not in wanted:
                self._forget(cursor)
        for topic in [one for one in self._broker.topics() if one.name in wanted]:
            for number in range(topic.partitions):
                if (topic.name, number) not in self._outbox.cursors:
                    await self._open(topic, number, first=first)
        self._turn = deque(self._outbox.cursors.values())
        for cursor in self._turn:
            if cursor not in self._fetchers:
                self._fetchers[cursor] = CursorFetcher(
                    self._broker, self._outbox, cursor, self._settings.name, self._reader,
                    lambda: self.fetched(),
                )  # fmt: skip
            if self._fetching and cursor not in self._tasks:
                self._tasks[cursor] = asyncio.create_task(self._fetchers[cursor].run())

    async def _open(self, topic: TopicInfo, partition: int, *, first: bool) -> None:
        try:
            bounds = await self._broker.reader(topic.name, partition).bounds()
        except LakeMQError:
            if first:
                raise
            return
        begin = bounds[first and self._settings.start == "latest"]
        cursor = PartitionCursor(topic.name, topic.topic_id, partition, begin)
        self._outbox.cursors[topic.name, partition] = cursor
        self._outbox.changed = True

    def _forget(self, cursor: PartitionCursor) -> None:
        given_up = self._outbox.drop(cursor)
        with suppress(ValueError):
            self._turn.remove(cursor)
        if (task := self._tasks.pop(cursor, None)) is not None:
            task.cancel()
        if (fetcher := self._fetchers.pop(cursor, None)) is not None:
            self._lost += fetcher.lost
        self._lost += given_up
        if given_up:
            _log.error(
                "bridge %s: %s-%d is gone with %d records that had not gone out",
                self._settings.name,
                cursor.topic,
                cursor.partition,
                given_up,
            )

    def start(self) -> None:
        """Fetch from now on, also what `open_cursors` finds later."""
        self._fetching = True
        for cursor, fetcher in self._fetchers.items():
            self._tasks[cursor] = asyncio.create_task(fetcher.run())

    async def stop(self) -> None:
        """Fetch no more; what was fetched stays."""
        self._fetching = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- how far behind

    @property
    def lag(self) -> int:
        """Records that the remote broker may still have to get, as far as is known here: of
        partitions without a replica on this node, as `look_ahead` or a fetch has last heard."""
        behind = 0
        for cursor, fetcher in self._fetchers.items():
            end = max(fetcher.high_watermark, self._end_here(cursor) or 0)
            behind += max(0, end - cursor.begin_offset)
        return behind

    def _end_here(self, cursor: PartitionCursor) -> int | None:
        try:
            return self._broker.readable_end(cursor.topic, cursor.partition)
        except (UnknownTopic, UnknownPartition):
            return None

    async def look_ahead(self) -> None:
        """Ask leaders how far the partitions reach of which this node has no replica."""
        for cursor, fetcher in list(self._fetchers.items()):
            if self._end_here(cursor) is None:
                with suppress(LakeMQError):
                    _, end = await reader_of(self._broker, cursor).bounds()
                    fetcher.high_watermark = max(fetcher.high_watermark, end)

    # -- records

    def take(self, now_ms: int) -> list[Sent]:
        """The next records that go out, as many as there is room for."""
        taken: list[Sent] = []
        self.more = False
        # Another partition first each time: where room is short, none starves the others.
        self._turn.rotate(-1)
        budget = _ROWS_PER_TURN
        for cursor in list(self._turn):
            while self._outbox.room and budget:
                row = self._next(cursor)
                if row is None:
                    break
                budget -= 1
                forward = self._forward(cursor, row)
                if forward is None:
                    self._outbox.skip(cursor, row.offset + 1)
                else:
                    taken.append(self._outbox.take(cursor, row.offset, forward, now_ms))
        self.more = not budget
        return taken

    def _next(self, cursor: PartitionCursor) -> BridgeRecord | None:
        """The next record of a cursor; None: there are none now."""
        fetcher = self._fetchers[cursor]
        row = fetcher.next()
        if row is None and (end := fetcher.finish()) is not None:
            self._outbox.skip(cursor, end)
        return row

    def _forward(self, cursor: PartitionCursor, row: BridgeRecord) -> Forward | None:
        target = self._rules.remote(cursor.topic, row.name)
        if target is None or is_echo(row, self._settings.name, self._settings.no_echo_clients):
            return None
        return Forward(target.name, row.payload, target.qos, row.retain)

    # -- after a crash

    async def restore(self) -> None:
        """Read again what was under way when the process ended. Raises Unavailable when a leader
        does not answer: nothing may be given up for that."""
        for one in [each for each in self._outbox.all_unfinished() if each.forward is None]:
            if one.received:
                continue
            forward = await self._read_again(one)
            if forward is None:
                self._lost += 1
                _log.error(
                    "bridge %s: record %d of %s-%d cannot be read again; it may not have gone out",
                    self._settings.name,
                    one.offset,
                    one.cursor.topic,
                    one.cursor.partition,
                )
                self._outbox.finish(one, forwarded=False)
            else:
                self._outbox.restore(one, forward)

    async def _read_again(self, one: Sent) -> Forward | None:
        cursor = one.cursor
        try:
            reader = reader_of(self._broker, cursor)
            try:
                # One batch, of any size.
                got = await reader.fetch(Offset(one.offset), bytes_max=1, wait_ms=WAIT_MS)
            except OffsetOutOfRange:
                if (await reader.bounds())[0] <= one.offset:
                    self._not_there(one)
                return None
        except (UnknownTopic, UnknownPartition, CorruptLog):
            return None
        if not got.data:
            self._not_there(one)
            return None
        self._unread_since_s = None
        row = next(rows_of(self._reader, cursor, got.data, one.offset), None)
        if row is None or row.offset != one.offset:
            return None
        return self._forward(cursor, row)

    def _not_there(self, one: Sent) -> None:
        """A new leader may have to find out first that the record is committed. Raises Unavailable,
        but after `LOST_S` returns: the record is lost."""
        now_s = asyncio.get_running_loop().time()
        if self._unread_since_s is None:
            self._unread_since_s = now_s
        if now_s - self._unread_since_s < LOST_S:
            raise Unavailable(
                f"{one.cursor.topic}-{one.cursor.partition} can't be read up to offset "
                f"{one.offset} yet, which has to go out again"
            )
