"""Goal: what brokers say on channels is read as it was written, and nothing larger is believed."""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.cluster.channels import PAYLOAD_MAX_BYTES
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, NotLeader, Unavailable
from lakemq.broker_core.cluster.channels import frames
from lakemq.broker_core.cluster.channels.frames import (
    ENTRIES_MAX,
    TALK_MAX_BYTES,
    Answer,
    Said,
    decode_said,
    decode_told,
    encode_said,
    encode_told,
)
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame

SAID = [Said("mqtt.interest", b"a" * 300), Said("x", b"", 7), Said("x", b"ask", 2**63 - 1)]


def test_what_is_said_is_what_the_definitions_say() -> None:
    message = pb.TalkSaid.FromString(encode_said(SAID))
    assert [(each.channel, each.payload, each.request) for each in message.entries] == [
        tuple(each) for each in SAID
    ]
    assert decode_said(encode_said(SAID)) == SAID
    assert decode_said(message.SerializeToString()) == SAID


def test_answers_and_channels_come_as_they_were_told() -> None:
    error = NotLeader("elsewhere", leader="n2", epoch=9)
    data = encode_told([Answer(1, b"yes"), Answer(2, b""), Answer(3, error)], ["a", "b"])
    message = pb.TalkTold.FromString(data)
    assert list(message.channels.names) == ["a", "b"]
    assert [each.code for each in message.answers] == ["", "", "NOT_LEADER"]
    told = decode_told(message.SerializeToString())
    assert told.channels == {"a", "b"}
    assert told.answers[:2] == [Answer(1, b"yes"), Answer(2, b"")]
    found = told.answers[2].outcome
    assert isinstance(found, NotLeader)
    assert (str(found), found.leader, found.epoch) == ("elsewhere", "n2", 9)


@pytest.mark.parametrize("error", [Unavailable("not now"), InvalidRequest("ö" * 600)])
def test_errors_keep_their_kind(error: LakeMQError) -> None:
    found = decode_told(encode_told([Answer(1, error)], None)).answers[0].outcome
    assert type(found) is type(error)
    assert str(found) == str(error)[:400]


def test_no_channels_is_not_silence() -> None:
    assert decode_told(encode_told([], [])).channels == frozenset()
    assert decode_told(encode_told([], None)).channels is None
    assert decode_told(b"").channels is None


@pytest.mark.parametrize(
    "data",
    [
        bytes(TALK_MAX_BYTES + 1),
        encode_said([Said("x", bytes(PAYLOAD_MAX_BYTES + 1))]),
        encode_said([Said("x" * 65, b"")]),
        encode_said([Said("x", b"")] * (ENTRIES_MAX + 100)),
        encode_said([Said("x", b"", 2**63)]),
        b"\x0a\xff",
    ],
    ids=["size", "payload", "name", "entries", "request", "cut"],
)
def test_what_is_larger_than_agreed_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_said(data)


def test_too_many_channels_are_refused() -> None:
    names = [str(number) for number in range(frames.CHANNELS_MAX + 100)]
    with pytest.raises(BadFrame):
        decode_told(encode_told([], names))
