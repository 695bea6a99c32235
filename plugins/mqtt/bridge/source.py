"""Reads the topics that go out, cursor by cursor, as far as there is room."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.ports import Broker, PartitionLog
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Offset
from lakemq.plugins.mqtt.bridge.config import LinkSettings
from lakemq.plugins.mqtt.bridge.outbox import Forward, Outbox, PartitionCursor, Sent
from lakemq.plugins.mqtt.bridge.records import BridgeRecord, BridgeRecordReader, is_echo
from lakemq.plugins.mqtt.bridge.rules import Rules

_log = logging.getLogger(__name__)

_FETCH_BYTES: Final = 256 * 1024
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
        self._rows: dict[PartitionCursor, tuple[Iterator[BridgeRecord], int]] = {}
        """Records fetched and not looked at yet, and the offset behind them."""
        self._turn: deque[PartitionCursor] = deque()
        self.more = False
        """Whether the last `take` left records that are there already."""
        self.lost = 0
        """Records that were gone before they went out: retention or deletion was quicker."""

    @property
    def unreadable(self) -> int:
        """Records that could not be decoded."""
        return self._reader.unreadable

    def open_cursors(self, *, first: bool) -> None:
        """Read every partition of the topics. `first`: the link is new, so `start` says from
        where; a partition or topic that is new is read from its beginning."""
        wanted = set(self._rules.topics_out)
        for topic in self._broker.topics():
            if topic.name not in wanted:
                continue
            for number in range(topic.partitions):
                cursor = self._outbox.cursors.get((topic.name, number))
                # Deleted and created again: its offsets are those of other records.
                if cursor is not None and cursor.topic_id != topic.topic_id:
                    self._forget(cursor)
                    cursor = None
                if cursor is None and self._broker.serves(topic.name, number):
                    latest = first and self._settings.start == "latest"
                    source = self._broker.partition(topic.name, number)
                    begin = source.high_watermark if latest else source.log_start_offset
                    cursor = PartitionCursor(topic.name, topic.topic_id, number, begin)
                    self._outbox.cursors[topic.name, number] = cursor
                    self._outbox.changed = True
        for cursor in [one for one in self._outbox.cursors.values() if one.topic not in wanted]:
            self._forget(cursor)
        self._turn = deque(self._outbox.cursors.values())

    def _forget(self, cursor: PartitionCursor) -> None:
        given_up = self._outbox.drop(cursor)
        self._rows.pop(cursor, None)
        self.lost += given_up
        if given_up:
            _log.error(
                "bridge %s: %s-%d is gone with %d records that had not gone out",
                self._settings.name,
                cursor.topic,
                cursor.partition,
                given_up,
            )

    @property
    def lag(self) -> int:
        """Records that the remote broker may still have to get."""
        behind = 0
        for cursor in self._outbox.cursors.values():
            source = self._log_of(cursor)
            if source is not None:
                behind += max(0, source.high_watermark - cursor.begin_offset)
        return behind

    def _log_of(self, cursor: PartitionCursor) -> PartitionLog | None:
        try:
            return self._broker.partition(cursor.topic, cursor.partition)
        except (UnknownTopic, UnknownPartition, NotLeader):
            return None

    async def take(self, now_ms: int) -> list[Sent]:
        """The next records that go out, as many as there is room for."""
        taken: list[Sent] = []
        self.more = False
        # Another partition first each time: where room is short, none starves the others.
        self._turn.rotate(-1)
        budget = _ROWS_PER_TURN
        for cursor in list(self._turn):
            while self._outbox.room and budget:
                row = await self._next(cursor)
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

    def _forward(self, cursor: PartitionCursor, row: BridgeRecord) -> Forward | None:
        target = self._rules.remote(cursor.topic, row.name)
        if target is None or is_echo(row, self._settings.name, self._settings.no_echo_clients):
            return None
        return Forward(target.name, row.payload, target.qos, row.retain)

    async def _next(self, cursor: PartitionCursor) -> BridgeRecord | None:
        """The next record of a cursor; None: there are none now."""
        while True:
            fetched = self._rows.get(cursor)
            if fetched is not None:
                row = next(fetched[0], None)
                if row is not None:
                    return row
                del self._rows[cursor]
                self._outbox.skip(cursor, fetched[1])
            if not await self._fetch(cursor):
                return None

    async def _fetch(self, cursor: PartitionCursor) -> bool:
        source = self._log_of(cursor)
        if source is None or cursor.next_offset >= source.high_watermark:
            return False
        if cursor.next_offset < source.log_start_offset:
            gone = source.log_start_offset - cursor.next_offset
            self.lost += gone
            _log.error(
                "bridge %s: %d records of %s-%d were deleted by retention before they went out",
                self._settings.name,
                gone,
                cursor.topic,
                cursor.partition,
            )
            self._outbox.skip(cursor, source.log_start_offset)
        try:
            got = await source.fetch(Offset(cursor.next_offset), bytes_max=_FETCH_BYTES)
        except OffsetOutOfRange:
            return cursor.next_offset < source.log_start_offset  # retention was quicker
        if not got.data:
            return False
        self._rows[cursor] = (self._rows_of(cursor, got.data, cursor.next_offset), got.next_offset)
        return True

    def _rows_of(self, cursor: PartitionCursor, data: bytes, start: int) -> Iterator[BridgeRecord]:
        return self._reader.rows(
            readable_batches(data, cursor.topic, cursor.partition, start=start), start
        )

    async def restore(self) -> None:
        """Read again what was under way when the process ended."""
        for one in [each for each in self._outbox.all_unfinished() if each.forward is None]:
            if one.received:
                continue
            forward = await self._read_again(one)
            if forward is None:
                self.lost += 1
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
        source = self._log_of(one.cursor)
        if source is None:
            return None
        try:
            got = await source.fetch(Offset(one.offset), bytes_max=1)  # one batch, of any size
            row = next(self._rows_of(one.cursor, got.data, one.offset), None)
        except LakeMQError:
            return None
        if row is None or row.offset != one.offset:
            return None
        return self._forward(one.cursor, row)
