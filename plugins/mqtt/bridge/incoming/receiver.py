"""Stores what comes from the remote broker, in its order, and tells when it is durable. Edge:
awaits the broker's futures.

One append is under way at a time; what comes meanwhile is gathered for the next. So nothing is
stored before an earlier publish that was refused for now, and comes again on the next connection.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    NotAuthorized,
    OffsetOutOfRange,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.outcomes import outcome_of
from lakemq.broker_core.api.records.reader import FETCH_BYTES
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Columns, Offset, Placed
from lakemq.plugins.mqtt.bridge.incoming.inbox import Answer, Arrival, Inbox
from lakemq.plugins.mqtt.bridge.records import BridgeRecordReader, incoming_headers, packet_id_of
from lakemq.plugins.mqtt.bridge.rules import Rules
from lakemq.plugins.mqtt.bridge.state_log import US

_log = logging.getLogger(__name__)

_ROW_BYTES: Final = 256
"""What a record costs beside its payload, about."""
_APPEND_BYTES: Final = 256 * 1024
"""Of one append, about: it makes one batch a partition, which is stored or refused as a whole."""


class _Row(NamedTuple):
    arrival: Arrival
    key: bytes
    value: bytes
    headers: bytes


class Receiver:
    """What comes in by one link."""

    def __init__(
        self, broker: Broker, rules: Rules, inbox: Inbox, link_name: str, client_id: str
    ) -> None:
        self._broker = broker
        self._rules = rules
        self._inbox = inbox
        self._link_name = link_name
        self._client_id = client_id
        self._gathered: dict[str, list[_Row]] = {}
        """By topic: what the next append stores."""
        self._appends = 0
        """Topics of the append that is under way."""
        self._takes = True
        """Whether publishes of the present connection are stored."""
        self._room = asyncio.Event()
        self._stored = asyncio.Event()
        self.answer: Callable[[Answer], None] = lambda _: None
        """Called with every answer that is due."""
        self.failed: Callable[[str], None] = lambda _: None
        """Called when a publish could not be stored now: the link must reconnect."""
        self.refused = 0
        """Publishes that can never be stored: too large, not authorized."""
        self.unasked = 0
        """Publishes that no rule takes: left of an earlier configuration."""

    # -- storing

    async def publish_came(
        self, name: str, payload: bytes, qos: int, packet_id: int, *, again: bool, retain: bool
    ) -> None:
        """A PUBLISH of the remote broker: store it unless it was seen. Waits while too much is
        being stored, which stops reading from the socket."""
        if not self._takes:
            return
        inbox, answer = self._inbox, Answer(qos, packet_id)
        if inbox.seen(answer, again=again):
            # One that is still being stored is answered when it is durable.
            if packet_id in inbox.unreleased:
                self.answer(answer)
            return
        arrival = inbox.arrived(answer, len(payload) + _ROW_BYTES)
        target = self._rules.local(name)
        if target is None:
            self.unasked += 1
            self._settle(arrival, None)
            return
        headers = incoming_headers(self._link_name, self._client_id, qos, packet_id, retain=retain)
        # One append a topic and turn of the loop at least, however many publishes came.
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._append)
        row = _Row(arrival, target.name.encode(), payload, headers)
        self._gathered.setdefault(target.topic, []).append(row)
        while inbox.full:
            self._room.clear()
            await self._room.wait()

    def take(self) -> None:
        """Store what comes from now on: a connection begins."""
        self._takes = True

    def take_no_more(self) -> None:
        """Of this connection, as a publish of it was not taken: those behind it, which are in a
        buffer perhaps, must not be stored before it. It comes again, and so do they."""
        self._takes = False
        gathered, self._gathered = self._gathered, {}
        for rows in gathered.values():
            for row in rows:
                self._inbox.failed(row.arrival)

    def _append(self) -> None:
        if self._appends:
            return
        rows_of = {topic: self._first_of(topic) for topic in list(self._gathered)}
        self._appends = len(rows_of)
        for topic, rows in rows_of.items():
            columns = Columns(
                [row.value for row in rows],
                [row.key for row in rows],
                [row.headers for row in rows],
            )
            try:
                future = self._broker.publish(topic, columns, principal=US)
            except LakeMQError as error:
                self._outcomes(topic, rows, [error] * len(rows))
            else:
                future.add_done_callback(functools.partial(self._appended, topic, rows))

    def _first_of(self, topic: str) -> list[_Row]:
        """Gathered rows that make one append; the others wait for the next."""
        rows, size = self._gathered.pop(topic), 0
        for number, row in enumerate(rows):
            size += row.arrival.size_bytes + len(row.key)
            if number and size > _APPEND_BYTES:
                self._gathered[topic] = rows[number:]
                return rows[:number]
        return rows

    def _appended(
        self, topic: str, rows: list[_Row], future: asyncio.Future[list[Placed | LakeMQError]]
    ) -> None:
        outcome = outcome_of(future)
        if isinstance(outcome, LakeMQError):
            self._outcomes(topic, rows, [outcome] * len(rows))
        else:
            self._outcomes(topic, rows, outcome)

    def _outcomes(self, topic: str, rows: list[_Row], outcomes: list[Placed | LakeMQError]) -> None:
        why = ""
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Placed):
                self._settle(row.arrival, (topic, outcome.partition, outcome.offset))
            elif isinstance(outcome, (InvalidRequest, NotAuthorized)):
                # Answered all the same: the remote broker would send it again for ever.
                self.refused += 1
                _log.error(
                    "bridge %s: a publish to %r cannot be stored: %s",
                    self._link_name,
                    row.key,
                    outcome,
                )
                self._settle(row.arrival, None)
            else:
                self._inbox.failed(row.arrival)
                why = why or f"a publish could not be stored: {outcome}"
        if why:
            self.take_no_more()
            self.failed(why)
        self._appends -= 1
        if self._gathered and not self._appends:
            asyncio.get_running_loop().call_soon(self._append)
        self._stored.set()
        if not self._inbox.full:
            self._room.set()

    def _settle(self, arrival: Arrival, place: tuple[str, int, int] | None) -> None:
        for answer in self._inbox.settled(arrival, place):
            self.answer(answer)

    def wake(self) -> None:
        """Let no publish wait for room any more: the connection ended."""
        self._room.set()

    async def settled(self) -> None:
        """Wait until nothing is being stored."""
        while not self._inbox.idle:
            self._stored.clear()
            await self._stored.wait()

    # -- after a crash

    async def recover(self) -> None:
        """Find the QoS 2 publishes that were stored after the kept state was written. Raises
        Unavailable where a leader does not answer."""
        if not self._rules.exactly_once:
            return
        reader = BridgeRecordReader()
        for topic, number in self._partitions_in():
            start = self._inbox.positions.get((topic, number), 0)
            async for batch in self._batches(topic, number, start):
                for row in reader.rows([batch], start):
                    packet_id = packet_id_of(row.qos_2_id, self._link_name)
                    if packet_id is not None:
                        self._inbox.unreleased.add(packet_id)

    async def _batches(self, topic: str, number: int, start: int) -> AsyncIterator[RecordBatch]:
        """What is committed now, from offset `start` on; `positions` is behind it afterwards."""
        source = self._broker.reader(topic, number)
        _, end = await source.bounds()
        offset = start
        while offset < end:
            try:
                got = await source.fetch(Offset(offset), bytes_max=FETCH_BYTES)
            except OffsetOutOfRange:
                log_start, _ = await source.bounds()
                if log_start <= offset:
                    raise
                offset = log_start  # retention was quicker
                continue
            for batch in readable_batches(got.data, topic, number, start=offset):
                yield batch
            if got.next_offset <= offset:
                break
            offset = got.next_offset
        self._inbox.positions[topic, number] = max(start, offset)

    async def advance(self) -> None:
        """Move `positions` forward: of records that are there now, and of no others, it must be
        known what became of them. So nothing may be being stored after it was asked what there is.
        """
        if not self._rules.exactly_once:
            return
        for topic, number in self._partitions_in():
            with suppress(LakeMQError):  # that is done again
                _, end = await self._broker.reader(topic, number).bounds()
                if self._inbox.idle:
                    before = self._inbox.positions.get((topic, number), 0)
                    self._inbox.positions[topic, number] = max(before, end)

    def _partitions_in(self) -> list[tuple[str, int]]:
        """Partitions that what comes may be stored in, whichever nodes lead them."""
        return [
            (topic, number)
            for topic in self._rules.topics_in
            for number in range(self._broker.topic(topic).partitions)
        ]
