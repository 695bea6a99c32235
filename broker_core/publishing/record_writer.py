"""Writes of clients and plugins: authorized, intercepted, checked, appended.

Single records (`publish`) are gathered into batches, for this node's partitions and those of
others; whole batches (`append`) stay as their producer made them, and are for partitions that this
node leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.ports import AppendTarget, BoundPublish
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    Operation,
    Principal,
    Resource,
    TopicInfo,
)
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.publishing.admission import Admission
from lakemq.broker_core.publishing.interception import Interception, Piece, part_of
from lakemq.broker_core.publishing.producer_ids import ProducerIds
from lakemq.broker_core.publishing.publisher import Outcomes, Publisher, answer_with, refuse
from lakemq.broker_core.schemas import SchemaRegistry

_log = logging.getLogger(__name__)


class RecordWriter:
    """Lives on the event loop. Which partition a record goes to, and on which node, is decided per
    record: the others of a call are not affected by one that is refused."""

    def __init__(
        self,
        partitions: Partitions,
        target: Callable[[str, int], AppendTarget],
        access: Access,
        interception: Interception,
        admission: Admission,
        schemas: SchemaRegistry,
        producer_ids: ProducerIds,
        now_ms: Callable[[], int],
    ) -> None:
        """`target`: where records of a topic's partition go, on this node or another."""
        self._partitions = partitions
        self._access = access
        self._interception = interception
        self._admission = admission
        self._schemas = schemas
        self._producer_ids = producer_ids
        self._publisher = Publisher(target, now_ms, partitions.serves)

    async def stop(self) -> None:
        """Append what is gathered."""
        # The checks first: what they let pass is gathered, and then flushed.
        await self._admission.checks.stop()
        self._publisher.flush()

    def publish(
        self,
        topic: str,
        columns: Columns,
        *,
        principal: Principal,
        acks: Acks,
        partition: int | None,
    ) -> asyncio.Future[Outcomes]:
        """As `Broker.publish`."""
        self._access.authorize(principal, Operation.WRITE, Resource("topic", topic))
        info = self._partitions.topic(topic)
        if partition is not None:
            check_partition(info, partition)
        # Internal topics hold the broker's own state: no plugin may change or refuse it.
        if self._interception and not is_internal(topic):
            pieces = self._interception.run(topic, columns, principal)
            if len(pieces) > 1:
                return self._publish_pieces(info, pieces, acks, partition)
            ((_, piece),) = pieces
            if isinstance(piece, LakeMQError):
                raise piece
            columns = piece
        return self._publish_checked(info, columns, acks, partition)

    def publish_bound(self, publishes: Sequence[BoundPublish]) -> None:
        """As `Broker.publish_bound`."""
        # So that storage may hand all of it to the disk when the block ends.
        with self._partitions.together():
            for each in publishes:
                try:
                    self._publish_bound(each)
                except LakeMQError as error:
                    refuse(each, error)
                except Exception as error:  # ends this one alone, not those behind it
                    _log.exception("publishes to topic %s are refused", each.topic)
                    refuse(each, LakeMQError(f"{type(error).__name__}: {error}"))
            self._publisher.flush()

    def _publish_bound(self, publish: BoundPublish) -> None:
        topic, columns, principals, acks, done = publish
        internal = is_internal(topic)
        if internal:
            for principal, _ in principals:
                self._access.authorize(principal, Operation.WRITE, Resource("topic", topic))
        info = self._partitions.topic(topic)
        if self._interception and not internal:
            pieces = self._intercepted(topic, columns, principals)
            if len(pieces) > 1:
                answer_with(self._publish_pieces(info, pieces, acks, None), publish)
                return
            ((_, piece),) = pieces
            if isinstance(piece, LakeMQError):
                raise piece
            columns = piece
        # Else nothing is left to check, and the outcome comes in the same turn of the loop.
        if columns.timestamps_ms or info.config.schema:
            answer_with(self._publish_checked(info, columns, acks, None), publish)
        else:
            self._publisher.append(info, columns, acks, None, done)

    def _intercepted(
        self, topic: str, columns: Columns, principals: Sequence[tuple[Principal, int]]
    ) -> list[tuple[int, Piece]]:
        """As `Interception.run`, client by client."""
        if len(principals) == 1:
            return self._interception.run(topic, columns, principals[0][0])
        pieces: list[tuple[int, Piece]] = []
        start = 0
        for principal, count in principals:
            part = part_of(columns, slice(start, start + count))
            pieces += self._interception.run(topic, part, principal)
            start += count
        return pieces

    def _publish_checked(
        self, topic: TopicInfo, columns: Columns, acks: Acks, partition: int | None
    ) -> asyncio.Future[Outcomes]:
        if columns.timestamps_ms:
            self._admission.check_times(topic, columns.timestamps_ms)
        if not topic.config.schema:
            return self._publisher.publish(topic, columns, acks, partition)
        publish = partial(self._publisher.publish_without, topic, columns, acks, partition)
        return self._admission.publish(topic, columns.values, self._schemas.mismatches, publish)

    def _publish_pieces(
        self,
        topic: TopicInfo,
        pieces: Sequence[tuple[int, Piece]],
        acks: Acks,
        partition: int | None,
    ) -> asyncio.Future[Outcomes]:
        """What interceptors left of one call: each piece is stored or refused by itself."""
        loop = asyncio.get_running_loop()
        stored: list[asyncio.Future[Outcomes]] = []
        for count, piece in pieces:
            try:
                if isinstance(piece, LakeMQError):
                    raise piece
                stored.append(self._publish_checked(topic, piece, acks, partition))
            except LakeMQError as error:
                refused: asyncio.Future[Outcomes] = loop.create_future()
                refused.set_result([error] * count)
                stored.append(refused)

        async def outcomes() -> Outcomes:
            found: Outcomes = []
            groups = await asyncio.gather(*stored, return_exceptions=True)
            for (count, _), group in zip(pieces, groups, strict=True):
                if isinstance(group, LakeMQError):  # its values do not fit the schema
                    found += [group] * count
                elif isinstance(group, BaseException):
                    raise group
                else:
                    found += group
            return found

        return loop.create_task(outcomes())

    def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        principal: Principal,
        acks: Acks,
        leader_epoch: int,
    ) -> asyncio.Future[AppendResult]:
        """As `Broker.append`."""
        self._access.authorize(principal, Operation.WRITE, Resource("topic", topic))
        self._partitions.log(topic, partition, leader_epoch)
        info = self._partitions.topic(topic)
        header = self._admission.header(info, batch)
        # -1 is a batch without idempotence (KIP-98), which no one can own.
        if header.producer_id >= 0:
            self._producer_ids.check(header.producer_id, principal)

        def append(batch: bytes, header: BatchHeader) -> asyncio.Future[AppendResult]:
            # the leader may have changed while the inside of the batch was checked
            return self._partitions.log(topic, partition, leader_epoch).append(batch, header, acks)

        key = (info.topic_id, partition)
        return self._admission.admit(key, info, batch, header, principal, append)
