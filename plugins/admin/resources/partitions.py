"""Partitions: list, what they lack, their offsets, moves and elections."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple
from urllib.parse import quote

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Flag,
    Need,
    NoQuery,
    OwnPageQuery,
    OwnQuery,
    PageQuery,
    expect,
)
from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    OffsetOutOfRange,
    UnknownPartition,
)
from lakemq.broker_core.api.leadership import LACKS, check_partition, lacks, leadership
from lakemq.broker_core.api.state.internal_topics import is_internal, is_node_own
from lakemq.broker_core.api.types import Leadership, Offset, Operation, TopicInfo
from lakemq.plugins.admin.resources.brokers import broker_of
from lakemq.plugins.admin.resources.rights import may

_MOVE = Need(Operation.ALTER)
_STRIDE = 2_000
"""Topics whose partitions are counted before others have their turn."""


class PartitionRow(Answer):
    """A partition as the catalog has it."""

    topic: str
    partition: int
    leader: str | None
    """Node; null: no node leads it."""
    leader_epoch: int
    replicas: list[str]
    """The preferred leader first."""
    in_sync: list[str]
    eligible: list[str]
    """Out of sync, yet they hold all that was acknowledged."""
    min_in_sync: int
    target: list[str]
    """Where it moves; empty: it does not."""
    lacks: list[str]
    """What is wrong with it; empty: nothing."""


class ReplicaRow(Answer):
    """A partition's log on the node that leads it."""

    topic: str
    partition: int
    node: str
    state: str
    """`online`, `fenced` (a write or fsync failed; reads go on), `full` or `offline`."""
    detail: str
    """Why it is not `online`."""
    log_start_offset: int
    high_watermark: int
    """Readers see offsets below it."""
    log_end_offset: int
    records: int
    """Between the two."""
    size_bytes: int
    segments: int
    lags: dict[str, int]
    """Records that other replicas are behind, by node."""


class PartitionQuery(PageQuery):
    """Parameters of the list of partitions."""

    topic: str = Field(default="", max_length=249)
    """Only of this topic."""
    lacks: str = Field(default="", pattern=f"^({'|'.join(LACKS)})?$")
    """Only those that lack this."""
    internal: Flag = False
    """Also of topics that the broker keeps for itself."""


class OffsetsQuery(OwnQuery):
    """Which offsets of a topic."""

    at: str = Field(default="latest", pattern=r"^(earliest|latest|time:[0-9]{1,15})$")
    """`earliest`: where logs start; `latest`: high watermarks; `time:MS`: the first record that is
    not older than that (ms since 1970, UTC)."""


class Offsets(Answer):
    """Offsets of a topic."""

    topic: str
    at: str
    offsets: dict[int, int]
    """By partition; those that no node leads, or whose leader did not answer, are missing."""


class MoveBody(Body):
    """Where a partition shall be."""

    to: list[str] = Field(min_length=1, max_length=32)
    """Nodes, the preferred leader first."""


class ElectBody(Body):
    """Who shall lead."""

    unclean: bool = False
    """A replica may lead that lacks acknowledged records: what it lacks is lost for good."""
    to: str = Field(default="", max_length=63)
    """With `unclean`: the replica that leads, where several are alive."""
    confirm: str = Field(default="", max_length=300)
    """With `unclean`: the partition's name, like `readings/3`."""


class DeleteRecordsBody(Body):
    """First offset to keep."""

    before: int = Field(ge=-1, le=2**62)
    """-1: delete all."""


class DeletedRecords(Answer):
    """What is left."""

    topic: str
    partition: int
    log_start_offset: int
    """First offset that is still there, or would be."""
    high_watermark: int


class Elected(Answer):
    """Who leads now, or would."""

    topic: str
    partition: int
    leader: str | None
    leader_epoch: int


class _Item(NamedTuple):
    topic: TopicInfo
    number: int
    name: str
    """`topic/0000000003`: sorts as people count."""


def _name(topic: str, number: int) -> str:
    return f"{topic}/{number:010d}"


def leader_of(node: AdministeredNode, request: AdminRequest) -> str:
    """The node that leads the partition that the path names; empty: none does, or it is internal,
    and each node has its own. Raises UnknownTopic, UnknownPartition."""
    topic = node.catalog.topic(request.path["topic"])
    number = number_of(request.path["partition"])
    check_partition(topic, number)
    return "" if is_node_own(topic.name) else leadership(topic, number).leader or ""


class PartitionRoutes:
    """Below `/api/v1/partitions` and `/api/v1/topics/{topic}/partitions`."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        one = "topics/{topic}/partitions/{partition}"
        return [
            AdminListing(
                "partitions", PartitionRow, self._all, self._rows, lambda each: each.name,
                {
                    "topic": lambda each: each.name,
                    "leader": lambda each: leadership(each.topic, each.number).leader,
                },
                keep=self._is_wanted, query=PartitionQuery, need=EACH,
                summary="List partitions and their replicas.",
            ),
            AdminListing(
                "topics/{topic}/partitions", ReplicaRow, self._led, self._logs,
                lambda each: each.name, {"partition": lambda each: each.number},
                query=OwnPageQuery, need=Need(Operation.DESCRIBE, "topic", "topic"),
                own=True, summary="List offsets and sizes of a topic's partitions.",
            ),
            AdminRoute("GET", one, self.describe, PartitionRow, NoQuery,
                       need=Need(Operation.DESCRIBE, "topic", "topic")),
            AdminRoute("GET", "topics/{topic}/offsets", self.offsets, Offsets, OffsetsQuery,
                       need=Need(Operation.DESCRIBE, "topic", "topic"), own=True),
            AdminRoute("POST", f"{one}/move", self.move, PartitionRow, ChangeQuery, MoveBody,
                       need=_MOVE, status=202),
            AdminRoute("POST", f"{one}/elect", self.elect, Elected, ChangeQuery, ElectBody,
                       need=_MOVE),
            AdminRoute("POST", f"{one}/delete-records", self.delete_records, DeletedRecords,
                       ChangeQuery, DeleteRecordsBody,
                       need=Need(Operation.DELETE, "topic", "topic"),
                       owner=partial(leader_of, self._node)),
        ]  # fmt: skip

    # -- lists

    async def _all(self, request: AdminRequest) -> Sequence[_Item]:
        asked = expect(request.asked, PartitionQuery)
        topics = self._node.catalog.topics()
        if asked.topic:
            topics = [self._node.catalog.topic(asked.topic)]
        ends: list[int] = []
        for start in range(0, len(topics), _STRIDE):
            part = [topic.partitions for topic in topics[start : start + _STRIDE]]
            ends += islice(accumulate(part, initial=ends[-1] if ends else 0), 1, None)
            await self._node.give_way()
        return _Items(topics, ends)

    def _is_wanted(self, item: _Item, request: AdminRequest) -> bool:
        asked = expect(request.asked, PartitionQuery)
        if is_internal(item.topic.name) and not asked.internal:
            return False
        if asked.lacks and asked.lacks not in lacks(
            item.topic, leadership(item.topic, item.number)
        ):
            return False
        return may(self._node.catalog, request, Operation.DESCRIBE, "topic", item.topic.name)

    async def _rows(self, items: Sequence[_Item], request: AdminRequest) -> Sequence[PartitionRow]:
        return [_row(each.topic, each.number) for each in items]

    async def _led(self, request: AdminRequest) -> Sequence[_Item]:
        topic, broker = self._node.catalog.topic(request.path["topic"]), broker_of(self._node)
        return [
            _Item(topic, number, _name(topic.name, number))
            for number in range(topic.partitions)
            if broker.serves(topic.name, number)
        ]

    async def _logs(self, items: Sequence[_Item], request: AdminRequest) -> Sequence[ReplicaRow]:
        return [self._log(each) for each in items]

    def _log(self, item: _Item) -> ReplicaRow:
        found = self._node.catalog.partition_status(item.topic.name, item.number)
        return ReplicaRow(
            topic=item.topic.name,
            partition=item.number,
            node=self._node.node_id,
            state=found.state,
            detail=found.detail,
            log_start_offset=found.log_start_offset,
            high_watermark=found.high_watermark,
            log_end_offset=found.log_end_offset,
            records=found.high_watermark - found.log_start_offset,
            size_bytes=found.size_bytes,
            segments=found.segments,
            lags=dict(found.lags),
        )

    # -- offsets

    async def offsets(self, request: AdminRequest) -> Offsets:
        """Tell offsets of all partitions of a topic, or with `node` of those that it leads."""
        asked, broker = expect(request.asked, OffsetsQuery), broker_of(self._node)
        topic = broker.topic(request.path["topic"])
        found = await self._offsets_here(topic, asked.at)
        if not asked.node and not is_node_own(topic.name):
            leaders = {each.leader for each in topic.leaders if each.leader}
            path = f"topics/{quote(topic.name, safe='')}/offsets"
            answers = await asyncio.gather(
                *(
                    request.ask(path, {"at": asked.at, "node": node})
                    for node in sorted(leaders - {self._node.node_id})
                ),
                return_exceptions=True,
            )
            for answer in answers:
                if isinstance(answer, LakeMQError):
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                found |= {int(number): offset for number, offset in answer["offsets"].items()}
        return Offsets(topic=topic.name, at=asked.at, offsets=dict(sorted(found.items())))

    async def _offsets_here(self, topic: TopicInfo, at: str) -> dict[int, int]:
        broker, found = broker_of(self._node), dict[int, int]()
        for number in range(topic.partitions):
            if not broker.serves(topic.name, number):
                continue
            log = broker.partition(topic.name, number)
            if at == "earliest":
                found[number] = log.log_start_offset
            elif at == "latest":
                found[number] = log.high_watermark
            else:
                found[number] = await log.offset_for_timestamp(int(at.removeprefix("time:")))
        return found

    # -- one

    def _place(self, request: AdminRequest) -> tuple[TopicInfo, int]:
        """Raises UnknownTopic, UnknownPartition."""
        topic = self._node.catalog.topic(request.path["topic"])
        number = number_of(request.path["partition"])
        check_partition(topic, number)
        return topic, number

    async def describe(self, request: AdminRequest) -> PartitionRow:
        """Describe a partition and its replicas."""
        return _row(*self._place(request))

    async def move(self, request: AdminRequest) -> PartitionRow:
        """Move a partition to other nodes, in the background; it is answered as it was before."""
        (topic, number), given = self._place(request), expect(request.given, MoveBody)
        dry_run = expect(request.asked, ChangeQuery).dry_run
        before = await self._node.operations.move(topic.name, number, given.to, dry_run=dry_run)
        request.notes["before"] = {"replicas": list(before.replicas)}
        return _described(topic, number, before)

    async def elect(self, request: AdminRequest) -> Elected:
        """Give a partition's leadership to its preferred replica; with `unclean` to one that may
        lack records."""
        (topic, number), given = self._place(request), expect(request.given, ElectBody)
        dry_run = expect(request.asked, ChangeQuery).dry_run
        before = leadership(topic, number)
        request.notes["before"] = {"leader": before.leader, "epoch": before.epoch}
        if not given.unclean:
            if given.to:
                raise InvalidRequest("to goes with unclean; a move changes the preferred replica")
            if dry_run:
                first = before.replicas[0] if before.replicas else None
                leader = first if first in before.in_sync else before.leader
                return Elected(
                    topic=topic.name, partition=number, leader=leader, leader_epoch=before.epoch
                )
            held = await self._node.operations.elect(topic.name, number)
            return Elected(
                topic=topic.name, partition=number, leader=held.leader, leader_epoch=held.epoch
            )
        if not dry_run and given.confirm != f"{topic.name}/{number}":
            raise InvalidRequest(f"confirm takes the partition's name, {topic.name}/{number}")
        node, epoch = await self._node.operations.elect_unclean(
            topic.name, number, given.to, dry_run=dry_run
        )
        return Elected(
            topic=topic.name, partition=number, leader=node, leader_epoch=epoch or before.epoch
        )

    async def delete_records(self, request: AdminRequest) -> DeletedRecords:
        """Delete the oldest records of a partition. Raises OffsetOutOfRange, NotLeader."""
        (topic, number), given = self._place(request), expect(request.given, DeleteRecordsBody)
        log = broker_of(self._node).partition(topic.name, number)
        request.notes["before"] = {"log_start_offset": log.log_start_offset}
        before = log.high_watermark if given.before == -1 else Offset(given.before)
        if expect(request.asked, ChangeQuery).dry_run:
            if before > log.high_watermark:
                raise OffsetOutOfRange(
                    f"offset {before} is above the high watermark {log.high_watermark}"
                )
            start = max(before, log.log_start_offset)
        else:
            start = await log.delete_records(before)
        return DeletedRecords(
            topic=topic.name, partition=number, log_start_offset=start,
            high_watermark=log.high_watermark,
        )  # fmt: skip


class _Items(Sequence[_Item]):
    """All partitions of topics, made as they are looked at: 10,000 topics are no list of all their
    partitions first."""

    def __init__(self, topics: Sequence[TopicInfo], ends: Sequence[int]) -> None:
        """`ends`: partitions of each topic and all before it."""
        self._topics = topics
        self._ends = ends

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> _Item:  # type: ignore[override]  # no slices are taken
        at = bisect_right(self._ends, index)
        topic = self._topics[at]
        number = index - (self._ends[at] - topic.partitions)
        return _Item(topic, number, _name(topic.name, number))


def number_of(text: str) -> int:
    """The number of a partition in a path. Raises UnknownPartition."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise UnknownPartition(f"partition {text[:20]!r} is no number")
    return int(text)


def _row(topic: TopicInfo, number: int) -> PartitionRow:
    return _described(topic, number, leadership(topic, number))


def _described(topic: TopicInfo, number: int, held: Leadership) -> PartitionRow:
    return PartitionRow(
        topic=topic.name,
        partition=number,
        leader=held.leader,
        leader_epoch=held.epoch,
        replicas=list(held.replicas),
        in_sync=list(held.in_sync),
        eligible=list(held.eligible),
        min_in_sync=held.min_in_sync,
        target=list(held.target),
        lacks=list(lacks(topic, held)),
    )
