"""Goal: the hand-written messages of `Peer.Replicate` are protobuf's, and nothing large or wrong is
taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.replica_frames import (
    ASK_MAX_BYTES,
    CREDIT_MAX_BYTES,
    ENTRIES_MAX,
    SEND_MAX_BYTES,
    SEND_TARGET_BYTES,
    Diverging,
    ReplicaAsk,
    ReplicaSend,
    SendBuffer,
    SlotAsk,
    SlotOpen,
    SlotSend,
    decode_ask,
    decode_send,
    encode_ask,
    encode_send,
)
from lakemq.broker_core.cluster.wire import BadFrame, varint

I64 = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
SENDS = st.builds(
    SlotSend, U32, I64, st.binary(max_size=300), I64, I64, I64,
    st.none() | st.builds(Diverging, st.integers(-1, 2**62), I64),
    st.sampled_from(["", "NOT_LEADER"]), I64,
)  # fmt: skip
ASKS = st.builds(
    lambda slot, ends, epoch, full: SlotAsk(slot, max(ends), epoch, min(ends), full),
    U32,
    st.tuples(I64, I64),
    st.integers(-1, 2**62),
    st.booleans(),
)
OPENS = st.builds(SlotOpen, U32, st.binary(min_size=16, max_size=16).map(bytes.hex), U32, I64)


@given(st.lists(SENDS, max_size=4), I64)
def test_what_a_leader_sends_is_protobuf(sends: list[SlotSend], turn: int) -> None:
    data = encode_send(ReplicaSend(sends, turn))
    message = pb.ReplicaSend.FromString(data)
    assert message.SerializeToString(deterministic=True) == data
    found = decode_send(data)
    assert found.turn == turn == message.turn
    assert [each._replace(batches=bytes(each.batches)) for each in found.sends] == sends
    assert [each.batches for each in message.sends] == [each.batches for each in sends]
    assert [each.high_watermark for each in message.sends] == [s.high_watermark for s in sends]


def test_batches_are_views_of_the_message() -> None:
    data = encode_send(ReplicaSend([SlotSend(1, 5, b"abc")], 1))
    (found,) = decode_send(data).sends
    assert isinstance(found.batches, memoryview)
    assert found.batches.obj is data


def test_unknown_fields_are_skipped_and_the_last_value_counts() -> None:
    inner = encode_send(ReplicaSend([SlotSend(1, 5)], 0))[2:] + b"\x08\x07"  # slot again
    unknown = b"\x7d1234" + b"\x79" + b"12345678" + b"\x7a\x01x"
    found = decode_send(b"\x0a" + varint(len(inner)) + inner + unknown + b"\x10\x05")
    assert found == ReplicaSend([SlotSend(7, 5)], 5)


@pytest.mark.parametrize("data", [
    b"\x0a\x05\x08", b"\x0a", b"\x08", b"\x10" + b"\xff" * 10 + b"\x01", b"\x0b", b"\x00\x00",
    b"\x10" + b"\x80" * 1000, b"\x7d12", b"\x0a\x02\x1a\x05", b"\x08\x01",
    b"\x0a\x0b\x10" + varint(-1), b"\x0a\x03\x4a\x01\xff",
])  # fmt: skip
def test_other_bytes_are_refused(data: bytes) -> None:
    if data == b"\x08\x01":
        data = b"\x0a\x02\x18\x01"  # a number in place of batches
    with pytest.raises(BadFrame):
        decode_send(data)


def test_a_message_about_too_many_partitions_is_refused() -> None:
    sends = [SlotSend(1)] * ENTRIES_MAX
    assert len(decode_send(encode_send(ReplicaSend(sends, 1))).sends) == ENTRIES_MAX
    with pytest.raises(BadFrame, match="4096"):
        decode_send(encode_send(ReplicaSend([*sends, SlotSend(1)], 1)))


@given(st.lists(OPENS, max_size=3), st.lists(ASKS, max_size=3), st.lists(U32, max_size=3), I64)
def test_asks_come_back_as_they_were(
    opens: list[SlotOpen], asks: list[SlotAsk], closes: list[int], credit: int
) -> None:
    found = decode_ask(encode_ask(ReplicaAsk(opens, asks, closes, credit)))
    assert found == ReplicaAsk(opens, asks, closes, min(credit, CREDIT_MAX_BYTES))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.ReplicaAsk(close=range(ENTRIES_MAX + 1)), "4097 partitions"),
        (pb.ReplicaAsk(open=[pb.SlotOpen(slot=3, topic_id=b"short")]), "no topic id"),
        (pb.ReplicaAsk(asks=[pb.SlotAsk(slot=3, offset=5, durable=6)]), "durable up to 6"),
        (pb.ReplicaAsk(asks=[pb.SlotAsk(slot=3, offset=-1, durable=-1)]), "offset -1"),
        (pb.ReplicaAsk(asks=[pb.SlotAsk(slot=3, last_epoch=-2)]), "epoch -2"),
    ],
)
def test_a_wrong_ask_is_refused(message: pb.ReplicaAsk, reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        decode_ask(message.SerializeToString())


def test_a_large_ask_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadFrame, match="262145 bytes"):
        decode_ask(b"\xff" * (ASK_MAX_BYTES + 1))
    with pytest.raises(BadFrame, match="not a ReplicaAsk"):
        decode_ask(b"\xff" * 10)


def test_a_buffer_sends_a_mebibyte_at_a_time_in_order() -> None:
    buffer = SendBuffer()
    third = b"x" * (SEND_TARGET_BYTES // 3)
    for slot in range(5):
        buffer.add(SlotSend(slot, batches=third))
    assert (len(buffer), buffer.batch_bytes) == (5, 5 * len(third))
    assert [each.slot for each in decode_send(buffer.take(1)).sends] == [0, 1, 2]
    assert [each.slot for each in decode_send(buffer.take(2)).sends] == [3, 4]
    assert (len(buffer), buffer.batch_bytes) == (0, 0)
    assert decode_send(buffer.take(3)) == ReplicaSend([], 3)


def test_a_batch_larger_than_a_message_should_be_goes_alone() -> None:
    buffer = SendBuffer()
    large = b"x" * (2 * SEND_TARGET_BYTES)
    for each in (b"a", large, b"b"):
        buffer.add(SlotSend(1, batches=each))
    assert [decode_send(buffer.take(1)).sends[0].batches for _ in range(3)] == [b"a", large, b"b"]


def test_a_buffer_keeps_the_newest_positions_of_a_slot() -> None:
    """A follower that reads slowly must not make the leader's memory grow."""
    buffer = SendBuffer()
    for high_watermark in range(1000):
        buffer.add(SlotSend(1, high_watermark=high_watermark))
        buffer.add(SlotSend(2, high_watermark=high_watermark))
    assert decode_send(buffer.take(1)).sends == [
        SlotSend(1, high_watermark=999),
        SlotSend(2, high_watermark=999),
    ]
    # What was sent is not replaced any more, and positions never pass batches or errors.
    for each in (
        SlotSend(1, high_watermark=1),
        SlotSend(1, 5, b"x", 2),
        SlotSend(1, high_watermark=3),
        SlotSend(1, code="NOT_LEADER"),
        SlotSend(1, high_watermark=4),
        SlotSend(1, roll_at=9),
        SlotSend(1, diverging=Diverging(1, 2)),
    ):
        buffer.add(each)
    found = decode_send(buffer.take(2)).sends
    assert [each.high_watermark for each in found] == [1, 2, 3, 0, 4, 0, 0]


def test_a_message_of_many_partitions_is_cut() -> None:
    buffer = SendBuffer()
    for slot in range(ENTRIES_MAX + 1):
        buffer.add(SlotSend(slot, code="NOT_LEADER"))
    assert len(decode_send(buffer.take(1)).sends) == ENTRIES_MAX
    assert len(decode_send(buffer.take(2)).sends) == 1


class Large(bytes):
    """More bytes than a test can have."""

    def __len__(self) -> int:
        return SEND_MAX_BYTES + 1


def test_a_larger_message_than_there_can_be_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadFrame, match=f"{SEND_MAX_BYTES} is the most"):
        decode_send(Large())
