"""The gRPC edge of `admin.proto`: what operators do with topics, and what they see of a cluster."""

from __future__ import annotations

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import ClusterInfo, Offset, Operation, Resource
from lakemq.plugins.native.proto import admin_pb2 as pb
from lakemq.plugins.native.proto import native_pb2
from lakemq.plugins.native.proto.admin_pb2_grpc import AdminServicer
from lakemq.plugins.native.server.authentication import Context, principal_of
from lakemq.plugins.native.server.convert import (
    check_config_name,
    check_counts,
    config_values,
    error_message,
    topic_message,
)


class AdminService(AdminServicer):
    """Implements `admin.proto`; its docstrings are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def AlterTopic(
        self, request: pb.AlterTopicRequest, context: Context
    ) -> pb.AlterTopicResponse:
        """Add partitions to a topic, or change its config. Raises InvalidRequest, NotAuthorized,
        UnknownTopic."""
        broker = self._broker
        principal = await principal_of(broker, context)
        broker.authorize(principal, Operation.ALTER, Resource("topic", request.name))
        check_counts(request)
        topic = await broker.alter_topic(
            request.name,
            partitions=request.partitions or None,
            config=self._changes(request),
            replication=request.replication or None,
            min_in_sync=request.min_in_sync or None,
        )
        statuses = [broker.partition_status(topic.name, each) for each in range(topic.partitions)]
        return pb.AlterTopicResponse(topic=topic_message(topic, statuses))

    def _changes(self, request: pb.AlterTopicRequest) -> dict[str, str | int | None]:
        defaults = self._broker.topic_defaults()
        changes = config_values(request.config)
        for name in request.reset:
            check_config_name(name)
            if name in changes:
                raise InvalidRequest(f"config {name} is both set and reset")
            changes[name] = getattr(defaults, name)
        return changes

    async def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: Context
    ) -> pb.DeleteRecordsResponse:
        """Delete the records below an offset of each partition; errors of single partitions are in
        the answer. Raises InvalidRequest, NotAuthorized, UnknownTopic, UnknownPartition."""
        broker = self._broker
        principal = await principal_of(broker, context)
        broker.authorize(principal, Operation.DELETE, Resource("topic", request.topic))
        topic = broker.topic(request.topic)
        for number, before in request.before.items():
            # All are checked before any record goes: a request with a wrong entry deletes nothing.
            check_partition(topic, number)
            if before < -1:
                raise InvalidRequest(
                    f"before[{number}] is {before}; it takes 0 and more, or -1 for all"
                )
        starts: dict[int, int] = {}
        errors: dict[int, native_pb2.Error] = {}
        for number, before in request.before.items():
            try:
                log = broker.partition(request.topic, number)
                offset = log.high_watermark if before == -1 else Offset(before)
                starts[number] = await log.delete_records(offset)
            except LakeMQError as error:
                errors[number] = error_message(error)
        return pb.DeleteRecordsResponse(log_start_offsets=starts, errors=errors)

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Context
    ) -> pb.DescribeClusterResponse:
        """Nodes, metadata quorum and plugins of the cluster. Raises NotAuthorized."""
        principal = await principal_of(self._broker, context)
        self._broker.authorize(
            principal, Operation.DESCRIBE, Resource("cluster", self._broker.cluster_id)
        )
        return _cluster_message(await self._broker.describe_cluster())


def _cluster_message(found: ClusterInfo) -> pb.DescribeClusterResponse:
    return pb.DescribeClusterResponse(
        cluster_id=found.cluster_id,
        node_id=found.node_id,
        nodes=[
            pb.Node(
                node_id=each.node_id, addresses=each.addresses, rack=each.rack,
                version=each.version, state=each.state,
            )
            for each in found.nodes
        ],
        meta_leader=found.meta_leader,
        meta_members=found.meta_members,
        revision=found.revision,
        plugins=[
            pb.Plugin(
                name=each.name, version=each.version, distribution=each.distribution,
                enabled=each.enabled, hooks=each.hooks,
            )
            for each in found.plugins
        ],
    )  # fmt: skip
