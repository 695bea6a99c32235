"""A broker that makes a span of every append. A node has this one only where traces are on, so that
they cost nothing where they are off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.trace import Span

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import BoundPublish
from lakemq.broker_core.api.records.batch import read_header
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.tracing import Attributes, Contexts, Traces, end, in_batch, in_columns
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, Placed, Principal
from lakemq.broker_core.broker import CoreBroker

Outcomes = list[Placed | LakeMQError]


class TracedBroker(CoreBroker):
    """A span lasts from the call until the records are as durable as was asked for."""

    def __init__(self, *, traces: Traces, **given: Any) -> None:
        """`given`: as `CoreBroker` takes it."""
        super().__init__(**given)
        self._traces = traces

    def publish(
        self,
        topic: str,
        columns: Columns,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        partition: int | None = None,
    ) -> asyncio.Future[Outcomes]:
        """As `CoreBroker.publish`."""
        begun_ns, contexts = time.time_ns(), in_columns(columns)
        count = len(columns.values)
        future = super().publish(
            topic, columns, principal=principal, acks=acks, partition=partition
        )
        span = self._begin(topic, contexts, count, acks, begun_ns)
        if span is not None:

            def ended(done: asyncio.Future[Outcomes]) -> None:
                failed = asyncio.CancelledError() if done.cancelled() else done.exception()
                _placed(span, [] if failed else done.result(), failed)

            future.add_done_callback(ended)
        return future

    def publish_bound(self, publishes: Sequence[BoundPublish]) -> None:
        """As `CoreBroker.publish_bound`."""
        super().publish_bound([self._followed(each) for each in publishes])

    def _followed(self, publish: BoundPublish) -> BoundPublish:
        topic, columns, _, acks, done = publish
        count = len(columns.values)
        span = self._begin(topic, in_columns(columns), count, acks, time.time_ns())
        if span is None:
            return publish
        told: Outcomes = []

        def ended(indexes: Sequence[int], outcome: Placed | LakeMQError) -> None:
            told.extend([outcome] * len(indexes))
            if len(told) == count:
                _placed(span, told)
            done(indexes, outcome)

        return publish._replace(done=ended)

    def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
        acks: Acks = Acks.LEADER,
        leader_epoch: int = 0,
    ) -> asyncio.Future[AppendResult]:
        """As `CoreBroker.append`."""
        begun_ns = time.time_ns()
        future = super().append(
            topic, partition, batch, principal=principal, acks=acks, leader_epoch=leader_epoch
        )
        # Its header was found sound by now.
        count = read_header(batch).record_count
        span = self._begin(topic, in_batch(batch), count, acks, begun_ns)
        if span is not None:

            def ended(done: asyncio.Future[AppendResult]) -> None:
                failed = asyncio.CancelledError() if done.cancelled() else done.exception()
                placed = [] if failed else [Placed(partition, done.result().base_offset)]
                _placed(span, placed, failed)

            future.add_done_callback(ended)
        return future

    def _begin(
        self, topic: str, contexts: Contexts, count: int, acks: Acks, begun_ns: int
    ) -> Span | None:
        if is_internal(topic):
            return None
        attributes: Attributes = {
            "messaging.batch.message_count": count,
            "lakemq.acks": acks.name.lower(),
        }
        return self._traces.begin(
            "append", topic, contexts, start_ns=begun_ns, attributes=attributes
        )


def _placed(
    span: Span, outcomes: Sequence[Placed | LakeMQError], failed: BaseException | None = None
) -> None:
    """End the span of an append, with the first offset of each partition, as far as one is enough
    to say."""
    refused = [each for each in outcomes if isinstance(each, LakeMQError)]
    stored = [each for each in outcomes if isinstance(each, Placed)]
    if stored:
        partition = stored[0].partition
        span.set_attribute("messaging.destination.partition.id", str(partition))
        span.set_attribute("lakemq.offset", stored[0].offset)
    if refused:
        span.set_attribute("lakemq.refused", len(refused))
    end(span, failed or (refused[0] if refused else None))
