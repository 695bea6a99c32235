"""Goal: what nodes say of offsets to commit with a transaction is what builds from before say."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.groups.types import GroupCommit, OffsetToCommit
from lakemq.broker_core.api.types import TopicPartition
from lakemq.broker_core.groups.asked_offsets import decode_asked, encode_asked
from lakemq.plugins.native.groups.messages import group_commit
from lakemq.plugins.native.proto import native_pb2 as pb

REQUEST = pb.CommitOffsetsRequest(
    group="g",
    member_id="m",
    member_epoch=1 << 40,
    sequence=(1 << 64) - 1,
    offsets=[
        pb.OffsetCommit(topic="t", partition=3, offset=1 << 62, metadata="ü"),
        pb.OffsetCommit(topic="u", offset=-1),
    ],
)


def test_the_bytes_are_those_of_a_native_commit() -> None:
    commit = group_commit(REQUEST)
    assert encode_asked(commit) == REQUEST.SerializeToString()
    assert decode_asked(REQUEST.SerializeToString()) == commit
    assert commit.offsets[TopicPartition("u", 0)] == OffsetToCommit(-1)


def test_what_is_no_commit_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="OffsetsAsked"):
        decode_asked(b"\xff")
    for wrong in (
        GroupCommit("g", {TopicPartition("t", 1 << 31): OffsetToCommit(0)}),
        GroupCommit("g", {}, sequence=-1),
        GroupCommit("g", {TopicPartition("t", 0): OffsetToCommit(1 << 63)}),
    ):
        with pytest.raises(InvalidRequest, match="group g"):
            encode_asked(wrong)
