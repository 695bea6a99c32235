"""Records that appear later, for asyncio: `client.schedules`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest, NotLeader, Unavailable, UnknownSchedule
from lakemq.broker_core.api.types import Columns, Headers
from lakemq.plugins.native.proto import schedules_pb2 as pb
from lakemq.plugins.native.proto.schedules_pb2_grpc import SchedulesStub
from lakemq.plugins.native.sdk.arguments import delay_ms, moment_ms
from lakemq.plugins.native.sdk.coordinator_calls import ATTEMPT_S, CoordinatorCalls
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.connection import Connection
from lakemq.plugins.native.sdk.net.retrying import now_ms, retrying
from lakemq.plugins.native.sdk.producer.checking import encoded
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner
from lakemq.plugins.native.sdk.serializing import RecordSerializer, Serializing
from lakemq.plugins.native.sdk.types import NewRecord

if TYPE_CHECKING:
    from lakemq.plugins.native.proto.schedules_pb2_grpc import (
        SchedulesAsyncStub,  # in the stub file only
    )


class Scheduled(NamedTuple):
    """Records that wait for their time. `schedule_id` cancels them."""

    schedule_id: str
    topic: str
    partition: int
    deliver_at_ms: int
    """Milliseconds since the epoch, by the broker's clock."""
    records: int


class Schedules:
    """Made by `Client.schedules`. Every method raises `LakeMQError`s; what may pass is tried again
    for the client's `timeout_s`, and doing so never schedules anything twice."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._partitioner = StickyPartitioner()
        self._nodes: dict[tuple[str, int], str] = {}
        """(topic, partition) -> node that took its last schedule; empty: the guide."""

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        key: Any = None,
        headers: Headers = (),
        timestamp_ms: int | datetime | None = None,
        partition: int | None = None,
        schedule_id: str | None = None,
        key_serializer: Serializing | None = None,
        value_serializer: Serializing | None = None,
    ) -> Scheduled:
        """Let one record appear after `delay` (counted by the broker) or at `deliver_at`; returns
        when it is on the broker's disk. Its timestamp is that time unless `timestamp_ms` is given.

        `schedule_id`: your own name for it, 1 to 64 bytes; asking twice under one name schedules
        once. `key_serializer`, `value_serializer`: as of a producer. InvalidRequest: too far ahead.
        StagingFull: too much waits.
        """
        record = NewRecord(value, key, headers, timestamp_ms)
        return await self.send_batch(
            topic,
            [record],
            delay=delay,
            deliver_at=deliver_at,
            partition=partition,
            schedule_id=schedule_id,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )

    async def send_batch(
        self,
        topic: str,
        records: Columns | Sequence[NewRecord],
        *,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        partition: int | None = None,
        schedule_id: str | None = None,
        key_serializer: Serializing | None = None,
        value_serializer: Serializing | None = None,
    ) -> Scheduled:
        """Let records appear together in one partition: that of the first one's key. Columns are
        sent as they are."""
        taken_ms = now_ms()
        given = key_serializer is not None or value_serializer is not None
        if given and not isinstance(records, Columns):
            serializer = RecordSerializer(key_serializer, value_serializer)
            records = [serializer.record(record) for record in wire.rows_given(records)]
        keeps = _keeps_timestamps(records)
        telemetry = self._connection.routes.telemetry
        traced = telemetry is not None and telemetry.traced
        columns = wire.columns_given(records, taken_ms, traced=traced)
        if not columns.values:
            raise InvalidRequest("there is no record to schedule")
        home = await self._home(topic, columns, partition, schedule_id)
        at_ms, wait_ms = _times(delay, deliver_at)
        request = pb.ScheduleRequest(
            schedule_id=secrets.token_hex(16) if schedule_id is None else schedule_id,
            topic=topic,
            partition=home,
            batch=encoded(columns, now_ms=taken_ms),
            deliver_at_ms=at_ms,
            delay_ms=wait_ms,
            keep_timestamps=keeps,
        )
        # Which node keeps the schedules of a partition is told by the one that is asked first.
        calls = self._calls(self._nodes.get((topic, home), ""))
        timeout_s = self._connection.timeout_s
        count = len(columns.values)
        with nullcontext() if telemetry is None else telemetry.scheduling(topic, home, count):
            answer = await calls.patient("Schedule", lambda: request, timeout_s, ATTEMPT_S)
        self._nodes[topic, home] = calls.address
        return Scheduled(request.schedule_id, topic, home, answer.deliver_at_ms, count)

    def _calls(self, address: str = "") -> CoordinatorCalls[SchedulesAsyncStub]:
        return CoordinatorCalls(self._connection.routes, self._stub, address)

    def _stub(self, address: str) -> SchedulesAsyncStub:
        routes = self._connection.routes
        channel: Any = routes.channel(address) if address else routes.guide
        stub: SchedulesAsyncStub = SchedulesStub(channel)
        return stub

    async def _home(
        self, topic: str, columns: Columns, partition: int | None, schedule_id: str | None
    ) -> int:
        connection = self._connection
        found = await retrying(lambda: connection.describe_topic(topic), connection.timeout_s)
        count = len(found.partitions)
        if partition is None:
            self._partitioner.next_batch()
            key = columns.keys[0] if columns.keys else None
            # What is asked again under one id must go to the same partition: it keeps the id.
            if key is None and schedule_id is not None:
                key = schedule_id.encode()
            return self._partitioner.of(key, count)
        if not 0 <= partition < count:
            raise InvalidRequest(f"partition {partition}: topic {topic} has {count}")
        return partition

    async def cancel(self, schedule_id: str) -> None:
        """Cancel records that wait: they never appear. Raises UnknownSchedule if they have
        appeared, or are appearing now."""
        request = pb.CancelScheduledRequest(schedule_id=schedule_id)
        await retrying(lambda: self._cancel(request), self._connection.timeout_s)

    async def _cancel(self, request: pb.CancelScheduledRequest) -> None:
        try:
            await self._ask("", "CancelScheduled", request)
        except UnknownSchedule:
            # Another node may keep it.
            told = await self._ask("", "ListScheduled", pb.ListScheduledRequest(count_max=1))
            answers = await asyncio.gather(
                *(self._ask(address, "CancelScheduled", request) for address in told.others),
                return_exceptions=True,
            )
            errors = [each for each in answers if isinstance(each, BaseException)]
            if len(errors) < len(answers):  # one did
                return
            for error in errors:
                if not isinstance(error, UnknownSchedule):
                    raise error from None
            raise

    async def waiting(self, topic: str = "", *, count_max: int = 1000) -> list[Scheduled]:
        """Records that wait, those that are due next first."""
        request = pb.ListScheduledRequest(topic=topic, count_max=count_max)
        return await retrying(lambda: self._waiting(request), self._connection.timeout_s)

    async def _waiting(self, request: pb.ListScheduledRequest) -> list[Scheduled]:
        first = await self._ask("", "ListScheduled", request)
        others = await asyncio.gather(
            *(self._ask(address, "ListScheduled", request) for address in first.others)
        )
        found = [each for answer in (first, *others) for each in answer.scheduled]
        found.sort(key=lambda each: each.deliver_at_ms)
        return [
            Scheduled(
                each.schedule_id, each.topic, each.partition, each.deliver_at_ms, each.records
            )
            for each in found[: request.count_max]
        ]

    async def _ask(self, address: str, method: str, request: object) -> Any:
        """The answer of a node. What it keeps may move to others meanwhile: Unavailable."""
        timeout_s = self._connection.timeout_s
        if address:
            timeout_s = min(timeout_s, ATTEMPT_S)
        try:
            return await getattr(self._stub(address), method)(request, timeout=timeout_s)
        except NotLeader as error:
            raise Unavailable(str(error)) from None


def _keeps_timestamps(records: Columns | Sequence[NewRecord]) -> bool:
    if isinstance(records, Columns):
        return records.timestamps_ms is not None
    return any(getattr(each, "timestamp_ms", None) is not None for each in records)


def _times(delay: timedelta | None, deliver_at: datetime | None) -> tuple[int, int]:
    """(absolute, relative) in ms, one of them 0. Raises InvalidRequest."""
    if (delay is None) == (deliver_at is None):
        raise InvalidRequest("give either delay or deliver_at")
    if delay is not None:
        return 0, delay_ms(delay)
    if not isinstance(deliver_at, datetime):
        raise InvalidRequest(f"deliver_at is {deliver_at!r:.60}; it takes a datetime")
    return max(1, moment_ms("deliver_at", deliver_at)), 0
