"""What operators do: `client.admin`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from lakemq.broker_core.api.errors import NotLeader
from lakemq.plugins.native.proto import admin_pb2 as pb
from lakemq.plugins.native.proto import queues_pb2
from lakemq.plugins.native.proto.admin_pb2_grpc import AdminStub
from lakemq.plugins.native.sdk.arguments import Config, config_given, count_given
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.errors import error_of
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.queue.calls import QueueCalls, queues_stub
from lakemq.plugins.native.sdk.queue.queue import QueueOptions, queue_settings
from lakemq.plugins.native.sdk.types import (
    ClusterDescription,
    NodeDescription,
    PluginDescription,
    QueueDescription,
    QueuePartitionDescription,
    TopicOffsets,
)

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.admin_pb2_grpc import AdminAsyncStub


class Admin:
    """Made by `Client.admin`. Every method raises `LakeMQError`s."""

    def __init__(self, routes: Routes, timeout_s: float) -> None:
        self._routes = routes
        # What the whole cluster shares is asked of any node that answers.
        guide: Any = routes.guide
        self._stub: AdminAsyncStub = AdminStub(guide)
        self._timeout_s = timeout_s

    async def alter_topic(
        self,
        name: str,
        config: Config | None = None,
        *,
        reset: Sequence[str] = (),
        partitions: int | None = None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicOffsets:
        """Change some settings of a topic, put others (`reset`) back to the broker's defaults, let
        it have `partitions` partitions, each with `replication` replicas, which come and go in the
        background. Raises UnknownTopic, InvalidRequest."""
        request = pb.AlterTopicRequest(
            name=name,
            config=config_given(config),
            reset=reset,
            partitions=count_given("partitions", partitions),
            replication=count_given("replication", replication),
            min_in_sync=count_given("min_in_sync", min_in_sync),
        )
        answer = await self._stub.AlterTopic(request, timeout=self._timeout_s)
        if partitions is not None:
            self._routes.view.created(name, monotonic())
        return wire.topic_offsets(answer.topic)

    async def add_partitions(self, topic: str, partitions: int) -> TopicOffsets:
        """Let a topic have `partitions` partitions in all. Keys may then go to other ones.

        Raises UnknownTopic, InvalidRequest (it has more already).
        """
        return await self.alter_topic(topic, partitions=partitions)

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete what lies before an offset of each partition; -1: everything that is there now.

        Returns each partition's first offset since. Raises UnknownTopic, UnknownPartition,
        InvalidRequest (nothing is deleted then), OffsetOutOfRange, NotLeader, Unavailable (other
        partitions may have been served).
        """
        give_up_s = monotonic() + self._timeout_s
        starts: dict[int, int] = {}
        # The node that the client is connected to is asked for all of it first: it checks
        # every entry before any record goes, and names the leaders of what it does not lead.
        wanted = {"": dict(before)}
        for pause_s in backoff_s():
            answers = await asyncio.gather(
                *(self._delete_at(address, topic, part) for address, part in wanted.items())
            )
            learned, wanted = False, {}
            for answer in answers:
                starts.update(answer.log_start_offsets)
                for number in sorted(answer.errors):
                    error = error_of(answer.errors[number])
                    if not isinstance(error, NotLeader) or monotonic() > give_up_s:
                        raise error
                    learned = self._routes.learn(topic, number, error) or learned
                    address = self._routes.route(topic, number).address
                    wanted.setdefault(address, {})[number] = before[number]
            if not wanted:
                return starts
            if not learned:  # the leadership is moving
                await asyncio.sleep(pause_s)
        raise AssertionError("backoff never ends")

    async def _delete_at(
        self, address: str, topic: str, before: Mapping[int, int]
    ) -> pb.DeleteRecordsResponse:
        stub: AdminAsyncStub = AdminStub(self._routes.channel(address))
        request = pb.DeleteRecordsRequest(topic=topic, before=before)
        return await stub.DeleteRecords(request, timeout=self._timeout_s)

    async def describe_cluster(self) -> ClusterDescription:
        """Nodes, the MetaService, and the plugins of the node that answers."""
        answer = await self._stub.DescribeCluster(
            pb.DescribeClusterRequest(), timeout=self._timeout_s
        )
        return _cluster(answer)

    # -- queues

    async def queues(self, group: str = "", topic: str = "") -> list[QueueDescription]:
        """All queues, or only those of a group or of a topic."""
        request = queues_pb2.DescribeQueuesRequest(group=group, topic=topic)
        first = await queues_stub(self._routes, "").DescribeQueues(request, timeout=self._timeout_s)
        others = await asyncio.gather(
            *(
                queues_stub(self._routes, address).DescribeQueues(request, timeout=self._timeout_s)
                for address in first.others
            )
        )
        # By name, since a queue may have changed its coordinator meanwhile.
        found = {
            (each.group, each.topic): each for some in [first, *others] for each in some.queues
        }
        return [_queue(found[name]) for name in sorted(found)]

    async def _of_queue(self, method: str, request: Any) -> Any:
        """What the coordinator of a queue answers."""
        return await QueueCalls(self._routes).call(method, request, self._timeout_s)

    async def alter_queue(
        self, group: str, topic: str, **settings: Unpack[QueueOptions]
    ) -> dict[str, str | int]:
        """Change settings of a queue, or make it; all that hold now. Raises InvalidRequest,
        GroupNotEmpty (`order` of a queue in use)."""
        request = _queue_alteration(group, topic, settings)
        answer = await self._of_queue("AlterQueue", request)
        return _queue_settings(answer.settings)

    async def reset_queue(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Let a queue without consumers go on from these offsets; -1: earliest, -2: latest.

        Raises UnknownGroup, GroupNotEmpty, OffsetOutOfRange."""
        request = queues_pb2.ResetQueueRequest(group=group, topic=topic, offsets=offsets)
        await self._of_queue("ResetQueue", request)

    async def delete_queue(self, group: str, topic: str) -> None:
        """Delete a queue without consumers. Raises UnknownGroup, GroupNotEmpty."""
        request = queues_pb2.DeleteQueueRequest(group=group, topic=topic)
        await self._of_queue("DeleteQueue", request)


def _cluster(answer: pb.DescribeClusterResponse) -> ClusterDescription:
    return ClusterDescription(
        answer.cluster_id,
        answer.node_id,
        tuple(
            NodeDescription(each.node_id, dict(each.addresses), each.rack, each.version, each.state)
            for each in answer.nodes
        ),
        answer.meta_leader,
        tuple(answer.meta_members),
        answer.revision,
        tuple(
            PluginDescription(
                each.name, each.version, each.distribution, each.enabled, tuple(each.hooks)
            )
            for each in answer.plugins
        ),
    )


def _queue_alteration(
    group: str, topic: str, settings: QueueOptions
) -> queues_pb2.AlterQueueRequest:
    _, message = queue_settings(settings)
    return queues_pb2.AlterQueueRequest(group=group, topic=topic, settings=message)


def _queue_settings(message: queues_pb2.QueueSettings) -> dict[str, str | int]:
    return {field.name: value for field, value in message.ListFields()}


def _queue(message: queues_pb2.Queue) -> QueueDescription:
    return QueueDescription(
        message.group,
        message.topic,
        _queue_settings(message.settings),
        message.consumers,
        tuple(
            QueuePartitionDescription(
                each.partition, each.start_offset, each.high_watermark, each.held, each.backlog,
                each.dead_letters,
            )
            for each in message.partitions
        ),
    )  # fmt: skip
