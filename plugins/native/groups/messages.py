"""Values of consumer groups <-> protobuf. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.groups.types import (
    AssignedPartition,
    GroupCommit,
    GroupDescription,
    Heartbeat,
    MemberAssignment,
    OffsetToCommit,
)
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.proto import native_pb2 as pb


def heartbeat(beat: pb.GroupHeartbeat) -> Heartbeat:
    """What a member says, unless it leaves."""
    return Heartbeat(
        beat.member_id,
        beat.sequence,
        beat.intent == pb.INTENT_JOIN,
        frozenset(beat.topics),
        frozenset(TopicPartition(at.topic, at.partition) for at in beat.holds),
        beat.revision,
        beat.instance_id,
        beat.session_timeout_ms,
        beat.rebalance_timeout_ms,
        {TopicPartition(at.topic, at.partition): at.epoch for at in beat.holds if at.epoch > 0},
    )


def assignment_message(told: MemberAssignment) -> pb.GroupAssignment:
    """What a member is told."""
    return pb.GroupAssignment(
        member_id=told.member_id,
        member_epoch=told.member_epoch,
        revision=told.revision,
        sequence=told.sequence,
        partitions=_partitions(told.partitions),
        heartbeat_interval_ms=told.heartbeat_interval_ms,
        session_timeout_ms=told.session_timeout_ms,
        takeover_ms=told.takeover_ms,
        alone=told.alone,
    )


def group_commit(request: pb.CommitOffsetsRequest) -> GroupCommit:
    """Offsets to commit; of a partition that is named twice, those named last."""
    return GroupCommit(
        request.group,
        {
            TopicPartition(each.topic, each.partition): OffsetToCommit(each.offset, each.metadata)
            for each in request.offsets
        },
        request.member_id,
        request.member_epoch,
        request.sequence,
    )


def group_message(group: GroupDescription) -> pb.Group:
    """A group as operators see it."""
    return pb.Group(
        name=group.name,
        state=group.state,
        epoch=group.epoch,
        members=[
            pb.GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                member_epoch=member.member_epoch,
                topics=member.topics,
                partitions=_partitions(member.partitions),
            )
            for member in group.members
        ],
        offsets=[
            pb.GroupOffset(
                topic=each.topic,
                partition=each.partition,
                committed_offset=each.committed_offset,
                log_start_offset=each.log_start_offset,
                high_watermark=each.high_watermark,
                committed_ms=each.committed_ms,
                metadata=each.metadata,
            )
            for each in group.offsets
        ],
    )


def _partitions(partitions: Iterable[AssignedPartition]) -> list[pb.GroupPartition]:
    return [
        pb.GroupPartition(
            topic=each.topic,
            partition=each.partition,
            epoch=each.epoch,
            committed_offset=each.committed_offset,
        )
        for each in partitions
    ]
