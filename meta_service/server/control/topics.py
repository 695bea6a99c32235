"""The gRPC service of topics and their partitions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

from lakemq.meta_service.api.convert import change_message, config_of, topic_message
from lakemq.meta_service.api.errors import NotFound
from lakemq.meta_service.api.types import CLUSTER_LEVEL
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    PlaceTopic,
)
from lakemq.meta_service.catalog.control_commands import ElectLeaders
from lakemq.meta_service.catalog.moves import StartMoves
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ElectUnclean,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.pages.rows import page_id
from lakemq.meta_service.catalog.results import Result
from lakemq.meta_service.catalog.topics import decode_topic, partitions_in, topic_key
from lakemq.meta_service.control.controller import Controller
from lakemq.meta_service.core.topics import all_topics, topic_changes
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.server.allowed import names_of
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.server.service import (
    ANSWER_MAX_BYTES,
    PROGRESS_S,
    Service,
    Shared,
    writes,
)

LOG: Final = logging.getLogger(__name__)


def _described(request: Any, result: Result) -> pb.Topic:
    return topic_message(decode_topic(topic_key(request.name), result.payload, result.revision))


def _in_sync_changes(service: Any, request: pb.ChangeInSyncManyRequest) -> Command:
    changes = (
        (
            change.topic_id,
            change.partition,
            change.leader_epoch,
            change.partition_epoch,
            tuple((member.node_id, member.broker_epoch) for member in change.in_sync),
        )
        for change in request.changes
    )
    return ChangeInSyncMany(request.node_id, request.broker_epoch, tuple(changes))


def _in_sync_answers(request: Any, result: Result) -> pb.ChangeInSyncManyResponse:
    answers = (
        pb.InSyncAnswer(
            code=code,
            partition_epoch=partition_epoch,
            in_sync=in_sync,
            leader=leader,
            leader_epoch=leader_epoch,
        )
        for code, partition_epoch, in_sync, leader, leader_epoch in result.payload
    )
    return pb.ChangeInSyncManyResponse(answers=answers)


class TopicsService(Service, rpc.TopicsServicer):
    """Implements `Topics` of meta.proto."""

    def __init__(self, shared: Shared, controller: Controller) -> None:
        super().__init__(*shared)
        self._controller = controller

    def _resignation(self, request: pb.ResignRequest) -> Command:
        led = ((each.topic_id, each.partition, each.leader_epoch) for each in request.partitions)
        avoid = self._controller.full_nodes()
        return Resign(request.node_id, request.broker_epoch, tuple(led), avoid)

    def _create(self, request: pb.CreateTopicRequest) -> Command:
        fields = (
            request.name,
            request.topic_id,
            request.partitions,
            request.replication or 1,
            config_of(request.config),
        )
        avoid = self._controller.full_nodes()
        if self._controller.feature_level >= CLUSTER_LEVEL or request.min_in_sync > 1:
            return CreateReplicatedTopic(*fields, avoid, request.min_in_sync or 1)
        return PlaceTopic(*fields, avoid) if avoid else CreateTopic(*fields)

    def _alter(self, request: pb.AlterTopicRequest) -> Command:
        fields = (
            request.name,
            request.partitions if request.HasField("partitions") else None,
            config_of(request.config.settings) if request.HasField("config") else None,
        )
        avoid = self._controller.full_nodes() if fields[1] is not None else ()
        replication = request.replication if request.HasField("replication") else None
        minimum = request.min_in_sync if request.HasField("min_in_sync") else None
        if replication is not None or minimum is not None:
            return AlterReplicatedTopic(*fields, avoid, replication, minimum)
        return GrowTopic(*fields, avoid) if avoid else AlterTopic(*fields)

    def _move(self, request: pb.MoveRequest) -> Command:
        moves = (
            (
                move.topic,
                self._counted(move.topic)[0],
                move.partition,
                move.partition_epoch,
                tuple(move.target),
            )
            for move in request.moves
        )
        return StartMoves(tuple(moves))

    def _counted(self, name: str) -> tuple[str, int]:
        """(topic id, number of partitions), without reading those. Raises NotFound."""
        row = self._gateway.cache.get(topic_key(name))
        if row is None:
            raise NotFound(f"topic {name!r} does not exist")
        topic = decode_topic(topic_key(name), row.value, row.mod_revision)
        count = partitions_in(row.value)
        return topic.topic_id, len(topic.partitions) if count is None else count

    def _preferred(self, request: pb.ElectPreferredRequest) -> Command:
        topic_id, partitions = self._counted(request.topic)
        if request.partition >= partitions:
            raise NotFound(f"topic {request.topic!r} has no partition {request.partition}")
        if self._controller.feature_level < CLUSTER_LEVEL:
            return ElectLeaders((request.topic,), preferred=True)
        return SettlePages((page_id(topic_id, request.partition),), preferred=True)

    Create = writes(_create, _described)
    Alter = writes(_alter, _described)
    Delete = writes(lambda _, request: DeleteTopic(request.name))
    ChangeInSyncMany = writes(_in_sync_changes, _in_sync_answers)
    Resign = writes(_resignation)
    Move = writes(
        _move,
        lambda _, result: pb.MoveResponse(
            begun=[pb.BegunMove(topic=topic, partition=number) for topic, number in result.payload]
        ),
    )
    ElectPreferred = writes(_preferred)

    @unary
    async def ElectUnclean(
        self, request: pb.ElectUncleanRequest, context: Context
    ) -> pb.ElectUncleanResponse:
        """Let a replica lead that may lack acknowledged records; who said so is logged."""
        command = ElectUnclean(
            request.topic, request.partition, request.partition_epoch, request.node_id
        )
        result = await self._propose(command, request.once)
        alternative, common = names_of(context) or ([], [])
        LOG.warning(
            "unclean election: %s/%d is led by %s in leader epoch %d; records that it lacks are "
            "lost. Asked for by %s",
            request.topic, request.partition, request.node_id, result.payload,
            ", ".join([*alternative, *common]) or "a caller without a certificate",
        )  # fmt: skip
        return pb.ElectUncleanResponse(leader_epoch=result.payload)

    @unary
    async def List(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        """Topics by name, in pages that fit one answer; linearizable."""
        await self._fresh()
        wanted = set(request.names)
        response = pb.ListTopicsResponse(revision=self._gateway.cache.revision)
        size = 0
        after = topic_key(request.after) if request.after else b""
        for topic, row_bytes in all_topics(self._gateway.cache, after):
            if wanted and topic.name not in wanted:
                continue
            # An estimate on the safe side: a message may be larger than its rows.
            size += 2 * row_bytes + 40
            if response.topics and size > ANSWER_MAX_BYTES:
                response.more = True
                break
            response.topics.append(topic_message(topic))
        return response

    @streaming
    async def WatchPartitions(
        self, request: pb.WatchTopicsRequest, context: Context
    ) -> AsyncGenerator[pb.TopicChange]:
        """Changes of topics, or of some partitions, and the revision of a quiet watch."""
        gateway = self._gateway
        batches = topic_changes(
            gateway.hub, gateway.cache, request.start_revision, progress_s=PROGRESS_S
        )
        async with contextlib.aclosing(batches):
            async for revision, changes in batches:
                for number, change in enumerate(changes, 1):
                    yield change_message(change, last=number == len(changes))
                if not changes:
                    yield pb.TopicChange(revision=revision, last=True)
