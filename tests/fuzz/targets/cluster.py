"""What one broker takes from another."""

from __future__ import annotations

import contextlib

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.broker_core.api.records.batch import encode, split
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, FetchResult, Offset
from lakemq.broker_core.cluster.append_frames import (
    AppendAnswer,
    AppendRequest,
    decode_answers,
    decode_appends,
    encode_answers,
    request_bytes,
)
from lakemq.broker_core.cluster.channels.frames import (
    Answer,
    Said,
    decode_said,
    decode_told,
    encode_said,
    encode_told,
)
from lakemq.broker_core.cluster.reading.fetch_frames import (
    FetchAnswer,
    FetchRequest,
    Wants,
    answer_parts,
    decode_answer,
    decode_requests,
    encode_requests,
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
from lakemq.broker_core.replication.follower import (
    Append,
    Commit,
    Cut,
    DeleteBefore,
    Effect,
    PartitionFollower,
    RestartAt,
    Roll,
)
from lakemq.broker_core.replication.following import _said
from lakemq.broker_core.replication.leader import PartitionLeader, Refuse, Serve
from lakemq.broker_core.replication.types import Ask, Code, FollowerAsk, View
from tests.fuzz.registry import target
from tests.support.replication.log_shape import LogShape

SENDS = [
    SlotSend(1, 5, b"batches", 4, 1, 9, Diverging(3, 4), "STALE_EPOCH", 7),
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


@target("cluster.said", seeds=[encode_said([Said("a", b"x"), Said("b", b"", 7)])])
def said(data: bytes) -> None:
    """What a node takes for another one's messages; what it takes is written and read again."""
    with contextlib.suppress(BadFrame):
        found = decode_said(data)
        assert decode_said(encode_said(found)) == found


@target("cluster.told", seeds=[
    encode_told([Answer(1, b"yes"), Answer(2, NotLeader("no", leader="n", epoch=3))], ["a", "b"]),
])  # fmt: skip
def told(data: bytes) -> None:
    """What a node takes for answers; what it takes is written and read again."""
    with contextlib.suppress(BadFrame):
        found = decode_told(data)
        names = None if found.channels is None else list(found.channels)
        again = decode_told(encode_told(found.answers, names))
        assert again.channels == found.channels
        assert [each.request for each in again.answers] == [each.request for each in found.answers]


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


@target("cluster.fetches", seeds=[
    encode_requests([
        FetchRequest(1, "0f" * 16, 3, Wants.BATCHES, 7, 1 << 20, 500),
        FetchRequest(2, "0f" * 16, 3, Wants.TIME, timestamp_ms=1 << 40),
    ]),
])  # fmt: skip
def fetches(data: bytes) -> None:
    """What a leader takes for requests of readers; what it takes is written and read again."""
    with contextlib.suppress(BadFrame):
        found = decode_requests(data)
        assert decode_requests(encode_requests(found)) == found


@target("cluster.fetched", seeds=[
    b"".join(answer_parts(FetchAnswer(3, FetchResult(
        encode(Columns([b"a", b"b"]), now_ms=1), Offset(2), Offset(9), Offset(0)
    )))),
    b"".join(answer_parts(FetchAnswer(4, NotLeader("no", leader="n2", epoch=4)))),
])  # fmt: skip
def fetched(data: bytes) -> None:
    """What a reader takes for a leader's answer; batches end before the offset behind them."""
    with contextlib.suppress(BadFrame):
        outcome = decode_answer(data).outcome
        if isinstance(outcome, FetchResult):
            assert all(each.last_offset < outcome.next_offset for _, each in split(outcome.data))


def _log() -> LogShape:
    return LogShape([1, 1, 2, 3], durable=6, high_watermark=4, start=3)


class _Row:
    """What is known of the catalog: it does not count on this replica."""

    counts = False
    partition_epoch = 0


_NOT_COUNTED = _Row()


@target("cluster.follower", seeds=[
    encode_send(ReplicaSend([SlotSend(1, 7, b"batches", 7, 3, 7), SlotSend(1, 8, b"more", 9)], 1)),
    encode_send(ReplicaSend([SlotSend(1, 7, diverging=Diverging(2, 6))], 1)),
    encode_send(ReplicaSend([SlotSend(1, 7, log_start=20, code="RESTART")], 1)),
])  # fmt: skip
def follower(data: bytes) -> None:
    """What a follower does at a leader's word: nothing beyond its own log, and nothing that is
    durable on all replicas is cut unless it begins again."""
    with contextlib.suppress(BadFrame):
        log = _log()
        core = PartitionFollower("a", 3, log, _NOT_COUNTED)
        core.begin()
        for send in decode_send(data).sends:
            for effect in core.received(_said(send)):
                _carry_out(effect, send, log, core)


def _carry_out(effect: Effect, send: SlotSend, log: LogShape, core: PartitionFollower) -> None:
    match effect:
        case Append(batches):
            assert batches == send.batches and send.base == log.log_end_offset
            log.append(3)
            core.flushed()
        case Roll(offset):
            assert offset == log.log_end_offset
        case Commit(offset):
            assert log.high_watermark < offset <= log.durable_end
            log.high_watermark = offset
        case DeleteBefore(offset):
            assert log.log_start_offset < offset <= log.high_watermark
        case Cut(offset):
            assert max(log.log_start_offset, log.high_watermark) <= offset < log.log_end_offset
            del log.epochs[offset - log.log_start_offset :]
            log.durable_end = min(log.durable_end, offset)
            core.cut_done()
        case RestartAt(offset):
            log.epochs.clear()
            log.log_start_offset = log.high_watermark = log.durable_end = offset
            core.cut_done()


@target("cluster.leader", seeds=[
    encode_ask(ReplicaAsk(asks=[SlotAsk(3, 7, 3, 6), SlotAsk(3, 5, 1, 5), SlotAsk(3, 6, 1, 5)])),
    encode_ask(ReplicaAsk(asks=[SlotAsk(2, 0, -1, 0), SlotAsk(4, 7, 3, 7, True)])),
])  # fmt: skip
def leader(data: bytes) -> None:
    """What a leader makes of its followers' words: it commits nothing that is not durable here, and
    takes nothing back. A slot stands for the leader epoch of its number."""
    with contextlib.suppress(BadFrame):
        log = _log()
        nodes = frozenset("abc")
        core = PartitionLeader("a", 1, View(3, 1, nodes, nodes, 2), log, 0.0)
        for each in decode_ask(data).asks:
            ask = Ask(Offset(each.offset), each.last_epoch, Offset(each.durable), each.full)
            for node in "bcx":
                answer = core.asked(FollowerAsk(node, 1, each.slot, ask), 0.0)
                assert (node == "x") == (answer == Refuse(Code.NOT_REPLICA, 3))
                core.reply(ask, answer)
                if isinstance(answer, Serve):
                    assert log.log_start_offset <= answer.offset <= log.log_end_offset
                    # What it has before that is not of an epoch that this log had left by then.
                    assert ask.last_epoch < 0 or log.last_epoch(answer.offset) <= ask.last_epoch
            before = core.high_watermark
            assert before <= core.moved(0.0) <= log.durable_end
