"""Queues over the admin API: the same coordinators as the native protocol's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    AnyRoute,
    Need,
    OwnChangeQuery,
    OwnPageQuery,
    OwnQuery,
    expect,
)
from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownPartition,
)
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.queues.ports import QueueCoordinators
from lakemq.broker_core.api.queues.types import QueueDescription, QueueSettings
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Columns, Offset, Operation, Record, Resource
from lakemq.plugins.native.queues.admin_models import (
    DeletedQueue,
    QueueAnswer,
    QueueBody,
    QueueOffsets,
    QueuePart,
    QueueReset,
    QueueRow,
    QueueSettingsAnswer,
    Redriven,
    RedriveQuery,
)

_NOTE = "lakemq-dead-"
"""Headers that a dead letter has beside its own begin so."""
_READ_BYTES = 256 * 1024


class QueueRoutes:
    """Below `/api/v1/queues`. What is asked of one queue goes to its coordinator."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _queues(self) -> QueueCoordinators:
        return self._broker.queues

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "queues/{group}/{topic}"
        alter = Need(Operation.ALTER, "group", "group")
        return [
            AdminListing(
                "queues", QueueRow, self._all, self._rows, lambda each: f"{each[0]} {each[1]}",
                {"group": lambda each: each[0], "topic": lambda each: each[1]},
                keep=self._may_see, query=OwnPageQuery, need=EACH, own=True,
                summary="List queues.",
            ),
            AdminRoute("GET", one, self.describe, QueueAnswer, OwnQuery, owner=self._coordinator,
                       need=Need(Operation.DESCRIBE, "group", "group")),
            AdminRoute("PATCH", one, self.alter, QueueSettingsAnswer, OwnQuery, QueueBody,
                       need=alter, owner=self._coordinator),
            AdminRoute("POST", f"{one}/reset", self.reset, QueueOffsets, OwnChangeQuery, QueueReset,
                       need=alter, owner=self._coordinator),
            AdminRoute("POST", f"{one}/redrive", self.redrive, Redriven, RedriveQuery, need=alter,
                       owner=self._coordinator),
            AdminRoute("DELETE", one, self.delete, DeletedQueue, OwnChangeQuery,
                       need=Need(Operation.DELETE, "group", "group"), owner=self._coordinator),
        ]  # fmt: skip

    def _coordinator(self, request: AdminRequest) -> str:
        named = str(getattr(request.asked, "node", ""))
        return named or self._queues.coordinator_of(request.path["group"], request.path["topic"])

    async def _all(self, request: AdminRequest) -> Sequence[tuple[str, str]]:
        return self._queues.names()

    def _may_see(self, name: tuple[str, str], request: AdminRequest) -> bool:
        try:
            self._broker.authorize(
                request.principal, Operation.DESCRIBE, Resource("group", name[0]), request.context
            )
        except LakeMQError:
            return False
        return True

    async def _rows(
        self, names: Sequence[tuple[str, str]], request: AdminRequest
    ) -> Sequence[QueueRow | None]:
        rows: list[QueueRow | None] = []
        for group, topic in names:
            found = await self._found(group, topic, request)
            rows.append(None if found is None else self._row(found))
        return rows

    async def _found(
        self, group: str, topic: str, request: AdminRequest
    ) -> QueueDescription | None:
        """None: it is gone, or not the caller's to see, or on another node."""
        found = await self._queues.describe(group, topic, principal=request.principal)
        return next(iter(found), None)

    async def _known(self, request: AdminRequest) -> QueueDescription:
        group, topic = request.path["group"], request.path["topic"]
        found = await self._found(group, topic, request)
        if found is None:
            raise UnknownGroup(
                f"{self._broker.node_id} has no queue of group {group[:100]} on topic {topic[:100]}"
            )
        return found

    def _row(self, found: QueueDescription) -> QueueRow:
        return QueueRow(
            node=self._broker.node_id,
            group=found.group,
            topic=found.topic,
            consumers=found.consumers,
            held=sum(each.held for each in found.partitions),
            backlog=sum(each.backlog for each in found.partitions),
            dead_letters=sum(each.dead_letters for each in found.partitions),
            dead_letter_topic=found.settings.dead_letter,
        )

    async def describe(self, request: AdminRequest) -> QueueAnswer:
        """Describe a queue. Raises UnknownGroup."""
        found = await self._known(request)
        return QueueAnswer(
            **self._row(found).model_dump(),
            partitions=[
                QueuePart(
                    partition=each.partition, start_offset=each.start_offset,
                    high_watermark=each.high_watermark, held=each.held, backlog=each.backlog,
                    dead_letters=each.dead_letters,
                )
                for each in found.partitions
            ],
            settings=_settings(found.settings),
        )  # fmt: skip

    async def alter(self, request: AdminRequest) -> QueueSettingsAnswer:
        """Change settings of a queue, which is created if absent."""
        given = expect(request.given, QueueBody).model_dump(exclude_unset=True)
        before = await self._found(request.path["group"], request.path["topic"], request)
        settings: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        request.notes["before"] = (
            None if before is None else _settings(before.settings).model_dump()
        )
        after = await self._queues.alter(
            request.path["group"], request.path["topic"], settings, principal=request.principal
        )
        return QueueSettingsAnswer.model_validate(after, from_attributes=True)

    async def reset(self, request: AdminRequest) -> QueueOffsets:
        """Set the offsets from which a queue without consumers goes on."""
        given, found = expect(request.given, QueueReset), await self._known(request)
        topic = self._broker.topic(found.topic)
        numbers = [each for each in range(topic.partitions) if given.partition in (None, each)]
        if not numbers:
            raise UnknownPartition(f"topic {topic.name} has no partition {given.partition}")
        if given.to.isdecimal():
            offsets = dict.fromkeys(numbers, int(given.to))
        else:
            path = f"topics/{quote(topic.name, safe='')}/offsets"
            told = (await request.ask(path, {"at": given.to}))["offsets"]
            missing = [each for each in numbers if str(each) not in told]
            if missing:
                raise InvalidRequest(f"no leader tells offsets of partition {missing[0]}")
            offsets = {each: int(told[str(each)]) for each in numbers}
        request.notes["before"] = {
            str(each.partition): each.start_offset for each in found.partitions
        }
        request.notes["after"] = {str(number): offset for number, offset in offsets.items()}
        if not expect(request.asked, OwnChangeQuery).dry_run:
            await self._queues.reset(found.group, found.topic, offsets, principal=request.principal)
        return QueueOffsets(group=found.group, topic=found.topic, offsets=offsets)

    async def delete(self, request: AdminRequest) -> DeletedQueue:
        """Delete a queue without consumers. Its topic is not changed."""
        found = await self._known(request)
        if not expect(request.asked, OwnChangeQuery).dry_run:
            await self._queues.delete(found.group, found.topic, principal=request.principal)
        return DeletedQueue(group=found.group, topic=found.topic)

    async def redrive(self, request: AdminRequest) -> Redriven:
        """Publish dead letters of a queue to its topic again, behind all other records."""
        asked, found = expect(request.asked, RedriveQuery), await self._known(request)
        name = found.settings.dead_letter
        if not name:
            raise InvalidRequest(f"queue {found.group} on {found.topic} has no dead_letter topic")
        # What is read becomes visible to the readers of the topic: both rights are needed.
        self._broker.authorize(
            request.principal, Operation.READ, Resource("topic", name), request.context
        )
        reader = self._broker.reader(name, asked.partition)
        start, end = await reader.bounds()
        offset = max(asked.offset, start)
        if offset > end:
            raise OffsetOutOfRange(f"offset {offset} is above {end}")
        got = await reader.fetch(Offset(offset), bytes_max=_READ_BYTES)
        letters, looked_at, at = _letters(
            got.data, name, asked.partition, offset, asked.limit, found
        )
        if letters and not asked.dry_run:
            outcomes = await self._broker.publish(
                found.topic,
                Columns(
                    [each.value for each in letters],
                    [each.key for each in letters],
                    [encode_headers(_own(each.headers)) for each in letters],
                    [each.timestamp_ms for each in letters],
                ),
                principal=request.principal,
            )
            for outcome in outcomes:
                if isinstance(outcome, LakeMQError):
                    raise outcome
        request.notes["after"] = {"published": len(letters), "next_offset": at}
        return Redriven(
            dead_letter_topic=name,
            partition=asked.partition,
            next_offset=at,
            high_watermark=end,
            looked_at=looked_at,
            published=len(letters),
            offsets=[each.offset for each in letters],
        )


def _letters(
    data: bytes, topic: str, partition: int, offset: int, limit: int, queue: QueueDescription
) -> tuple[list[Record], int, int]:
    """(dead letters of the queue, records looked at, offset behind the last)."""
    letters: list[Record] = []
    looked_at, at = 0, offset
    for batch in readable_batches(data, topic, partition, start=offset):
        for record in batch.records():
            if record.offset < offset:
                continue
            if looked_at == limit:
                return letters, looked_at, at
            looked_at, at = looked_at + 1, record.offset + 1
            notes = dict(record.headers)
            if (notes.get(f"{_NOTE}group"), notes.get(f"{_NOTE}topic")) == (
                queue.group.encode(), queue.topic.encode()
            ):  # fmt: skip
                letters.append(record)
    return letters, looked_at, at


def _own(headers: Sequence[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    """Headers that the record had before it was a dead letter."""
    return tuple(each for each in headers if not each[0].startswith(_NOTE))


def _settings(found: QueueSettings) -> QueueSettingsAnswer:
    return QueueSettingsAnswer.model_validate(found, from_attributes=True)
