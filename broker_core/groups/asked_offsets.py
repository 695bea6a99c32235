"""Offsets that are to be committed with a transaction, as nodes say it to each other
(`peer.proto`, OffsetsAsked)."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.cluster.proto import peer_pb2 as pb


def encode_asked(commit: GroupCommit) -> bytes:
    """An OffsetsAsked. Raises InvalidRequest: a number that it has no room for."""
    try:
        return pb.OffsetsAsked(
            group=commit.group,
            member_id=commit.member_id,
            member_epoch=commit.member_epoch,
            sequence=commit.sequence,
            offsets=[
                pb.OffsetAsked(
                    topic=place.topic,
                    partition=place.partition,
                    offset=asked.offset,
                    metadata=asked.metadata,
                )
                for place, asked in commit.offsets.items()
            ],
        ).SerializeToString()
    except ValueError as error:
        raise InvalidRequest(f"offsets of group {commit.group}: {error}") from None


def decode_asked(data: bytes) -> GroupCommit:
    """Raises InvalidRequest."""
    try:
        found = pb.OffsetsAsked.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"not an OffsetsAsked: {error}") from None
    return GroupCommit(
        found.group,
        {
            TopicPartition(each.topic, each.partition): OffsetToCommit(each.offset, each.metadata)
            for each in found.offsets
        },
        found.member_id,
        found.member_epoch,
        found.sequence,
    )
