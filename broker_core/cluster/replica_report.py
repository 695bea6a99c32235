"""`Peer.Report`: where the replicas of a node end, for who must choose among replicas that may have
lost records (an election by an operator's word)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.replica_ports import ReplicaLog
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.partitions import Partitions

REPLICAS_MAX: Final = 1000
"""Replicas that one call asks for at most."""
Message = TypeVar("Message", pb.ReportRequest, pb.ReportResponse)
_MESSAGE_MAX_BYTES: Final = 128 * 1024
_TOPIC_ID_BYTES: Final = 16


class ReplicaReport(NamedTuple):
    """Where one replica ends."""

    topic_id: str
    """32 hex digits."""
    partition: int
    last_epoch: int
    """Leader epoch of its last batch; -1: it has none."""
    durable_end: int
    high_watermark: int
    log_start: int


class ReplicaReports:
    """Answers for the replicas of this node."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def answer(self, peer: Peer, request: bytes) -> bytes:
        """A ReportResponse without the replicas that this node does not hold. Raises BadFrame."""
        message = _parsed(pb.ReportRequest, request)
        if len(message.replicas) > REPLICAS_MAX:
            raise BadFrame(f"{len(message.replicas)} replicas; {REPLICAS_MAX} is the most")
        found = []
        for name in message.replicas:
            topic = self._partitions.find_id(name.topic_id.hex())
            if topic is None:
                continue
            log = self._partitions.replica(topic.name, name.partition)
            if isinstance(log, ReplicaLog):
                found.append(
                    pb.ReplicaReport(
                        topic_id=name.topic_id, partition=name.partition,
                        last_epoch=log.last_epoch(), durable_end=log.durable_end,
                        high_watermark=log.high_watermark, log_start=log.log_start_offset,
                    )
                )  # fmt: skip
        return pb.ReportResponse(replicas=found).SerializeToString()


async def ask_replicas(
    peers: Peers, node: str, replicas: Sequence[tuple[str, int]]
) -> list[ReplicaReport]:
    """What a node says of its replicas, (topic id, partition) each, `REPLICAS_MAX` at most; without
    those that it does not hold. Raises Unavailable, NotAuthenticated, BadFrame."""
    request = pb.ReportRequest(
        replicas=[
            pb.ReplicaName(topic_id=bytes.fromhex(topic_id), partition=partition)
            for topic_id, partition in replicas
        ]
    )
    answer = await peers.call(node, "Report", request.SerializeToString())
    asked = set(replicas)
    reports = [_report(each) for each in _parsed(pb.ReportResponse, answer).replicas]
    # A node speaks of what it was asked, each replica once.
    if len({each[:2] for each in reports} & asked) != len(reports):
        raise BadFrame(f"{node} reports replicas that it was not asked for")
    return reports


def _report(message: pb.ReplicaReport) -> ReplicaReport:
    report = ReplicaReport(
        message.topic_id.hex(), message.partition, message.last_epoch, message.durable_end,
        message.high_watermark, message.log_start,
    )  # fmt: skip
    ordered = 0 <= report.log_start <= report.high_watermark <= report.durable_end
    if not ordered or report.last_epoch < -1:
        raise BadFrame(f"a report that makes no sense: {report}")
    return report


def _parsed(kind: type[Message], data: bytes) -> Message:
    if len(data) > _MESSAGE_MAX_BYTES:
        raise BadFrame(f"a report of {len(data)} bytes; {_MESSAGE_MAX_BYTES} is the most")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"not a {kind.__name__}: {error}") from None
