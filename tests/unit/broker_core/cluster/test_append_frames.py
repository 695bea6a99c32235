"""Goal: the hand-written messages of `Peer.Append` are protobuf's, and nothing large or wrong is
taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, StaleEpoch, StorageFull
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.broker_core.cluster.append_frames import (
    ANSWERS_MAX_BYTES,
    ENTRIES_MAX,
    AppendAnswer,
    AppendRequest,
    decode_answers,
    decode_appends,
    encode_answers,
    request_bytes,
)
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame

I63 = st.integers(0, 2**63 - 1)
REQUESTS = st.builds(
    AppendRequest, I63, st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.integers(0, 2**32 - 1), I63, st.sampled_from(Acks), st.binary(max_size=300),
)  # fmt: skip
REQUEST = AppendRequest(1, "0f" * 16, 2, 3, Acks.REPLICATED, b"batch")


def encoded(*requests: AppendRequest) -> bytes:
    return b"".join(part for each in requests for part in request_bytes(each))


@given(st.lists(REQUESTS, max_size=4))
def test_appends_are_protobuf(requests: list[AppendRequest]) -> None:
    data = encoded(*requests)
    message = pb.PeerAppends.FromString(data)
    assert [each.batch for each in message.appends] == [each.batch for each in requests]
    assert [each.leader_epoch for each in message.appends] == [e.leader_epoch for e in requests]
    found = decode_appends(data)
    assert [each._replace(batch=bytes(each.batch)) for each in found] == requests
    assert all(each.batch.obj is data for each in found if isinstance(each.batch, memoryview))


@pytest.mark.parametrize(("message", "reason"), [
    (pb.PeerAppend(topic_id=b"short"), "topic id of 5 bytes"), (pb.PeerAppend(), "0 bytes"),
    (pb.PeerAppend(topic_id=bytes(17)), "up to 16"),
    (pb.PeerAppend(topic_id=bytes(16), acks=3), "from 0 to 2"),
    (pb.PeerAppend(topic_id=bytes(16), leader_epoch=2**63), "from 0"),
])  # fmt: skip
def test_a_wrong_append_is_refused(message: pb.PeerAppend, reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        decode_appends(pb.PeerAppends(appends=[message]).SerializeToString())


def test_too_many_appends_are_refused() -> None:
    assert len(decode_appends(encoded(*[REQUEST] * ENTRIES_MAX))) == ENTRIES_MAX
    with pytest.raises(BadFrame, match="4096"):
        decode_appends(encoded(*[REQUEST] * (ENTRIES_MAX + 1)))


def test_answers_come_back_as_they_were() -> None:
    result = AppendResult(Offset(5), Offset(9), Acks.REPLICATED, True)
    errors: list[LakeMQError] = [
        StorageFull("no room"), NotLeader("n", leader="n2", epoch=4), StaleEpoch("s", epoch=5),
        LakeMQError("?"),
    ]  # fmt: skip
    found = decode_answers(
        encode_answers([AppendAnswer(7, result), *map(AppendAnswer, range(4), errors)])
    )
    assert found[0] == AppendAnswer(7, result)
    for (number, outcome), error in zip(found[1:], errors, strict=True):
        assert type(outcome) is type(error) and str(outcome) == str(error)
        if isinstance(error, NotLeader) and isinstance(outcome, NotLeader):
            assert (outcome.leader, outcome.epoch) == (error.leader, error.epoch)
        assert number < len(errors)


def test_an_error_of_a_newer_node_is_an_error_too() -> None:
    data = pb.PeerAnswers(answers=[pb.PeerAnswer(id=1, code="NEW", message="m")])
    ((_, outcome),) = decode_answers(data.SerializeToString())
    assert type(outcome) is LakeMQError and str(outcome) == "m"


@pytest.mark.parametrize("answer", [
    pb.PeerAnswer(base_offset=5, last_offset=4), pb.PeerAnswer(base_offset=-1),
    pb.PeerAnswer(acks=3),
])  # fmt: skip
def test_wrong_answers_are_refused(answer: pb.PeerAnswer) -> None:
    with pytest.raises(BadFrame, match="an answer with"):
        decode_answers(pb.PeerAnswers(answers=[answer]).SerializeToString())


def test_large_answers_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(BadFrame, match="4194305 bytes"):
        decode_answers(b"\xff" * (ANSWERS_MAX_BYTES + 1))
    many = pb.PeerAnswers(answers=[pb.PeerAnswer()] * (ENTRIES_MAX + 1)).SerializeToString()
    with pytest.raises(BadFrame, match="4097 answers"):
        decode_answers(many)
    with pytest.raises(BadFrame, match="not a PeerAnswers"):
        decode_answers(b"\xff")
