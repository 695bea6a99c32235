"""What one broker takes from another."""

from __future__ import annotations

import contextlib

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.broker_core.cluster.append_frames import (
    AppendAnswer,
    AppendRequest,
    decode_answers,
    decode_appends,
    encode_answers,
    request_bytes,
)
from lakemq.broker_core.cluster.replica_frames import (
    Diverging,
    ReplicaAsk,
    ReplicaSend,
    SlotAsk,
    SlotOpen,
    SlotSend,
    decode_ask,
    decode_send,
    encode_ask,
    encode_send,
)
from lakemq.broker_core.cluster.wire import BadFrame
from tests.fuzz.registry import target

SENDS = [
    SlotSend(1, 5, b"batches", 4, 1, 9, True, Diverging(3, 4), "STALE_EPOCH", "n2", 7),
    SlotSend(2, high_watermark=2**62),
    SlotSend(3, diverging=Diverging(-1, 0)),
]


@target(
    "cluster.sends", seeds=[encode_send(ReplicaSend(SENDS, 5)), encode_send(ReplicaSend([], 1))]
)
def sends(data: bytes) -> None:
    """What a follower takes for its leader's message; what it takes is written and read again."""
    with contextlib.suppress(BadFrame):
        found = decode_send(data)
        assert decode_send(encode_send(found)) == found


@target("cluster.asks", seeds=[
    encode_ask(ReplicaAsk(
        [SlotOpen(1, "0f" * 16, 3, 4)], [SlotAsk(1, 9, -1, 8), SlotAsk(2, 0, 0, 0, True)], [7], 99,
    )),
])  # fmt: skip
def asks(data: bytes) -> None:
    """What a leader takes for a follower's message; what it takes is written and read again."""
    with contextlib.suppress(BadFrame):
        found = decode_ask(data)
        assert decode_ask(encode_ask(found)) == found


@target("cluster.appends", seeds=[
    b"".join(request_bytes(AppendRequest(7, "0f" * 16, 3, 4, Acks.LEADER, b"batch"))) * 2,
])  # fmt: skip
def appends(data: bytes) -> None:
    """What a leader takes for batches of another node; what it takes is written and read again."""
    with contextlib.suppress(BadFrame):
        found = decode_appends(data)
        again = b"".join(part for each in found for part in request_bytes(each))
        assert decode_appends(again) == found


@target("cluster.answers", seeds=[
    encode_answers([
        AppendAnswer(1, AppendResult(Offset(3), Offset(5), Acks.LEADER, True)),
        AppendAnswer(2, NotLeader("no", leader="n2", epoch=4)),
    ]),
])  # fmt: skip
def answers(data: bytes) -> None:
    """What a node takes for a leader's answers."""
    with contextlib.suppress(BadFrame):
        for each in decode_answers(data):
            assert isinstance(each.outcome, AppendResult | LakeMQError)
