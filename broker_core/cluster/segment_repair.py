"""Damaged segments of this node's replicas are put together again from those of other nodes, with
`Peer.Read`. Below the high watermarks of both, two replicas hold the same batches.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    CorruptLog,
    InvalidRequest,
    LakeMQError,
    Unavailable,
    UnknownTopic,
)
from lakemq.broker_core.api.leadership import leadership
from lakemq.broker_core.api.limits.rates import Bucket
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.replica_ports import Repairable, ReplicaLog
from lakemq.broker_core.api.types import Offset, TopicInfo
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.network import PeerNetwork
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.configuration.settings import ClusterSettings
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.replication.types import Place

READ_MAX_BYTES: Final = 1024 * 1024
"""Of one answer, unless a single batch is larger."""
LOOK_S: Final = 2.0
"""How often logs are looked at for damage that no reader has met."""
RETRY_S: Final = 10.0
"""A segment that no replica could repair is tried again after so long."""
READER_MAX_S: Final = 5.0
"""A reader waits for a repair so long at most."""
_CALL_S: Final = 10.0
_REQUEST_MAX_BYTES: Final = 1024
_log: Final = logging.getLogger(__name__)


class CommittedReads:
    """Answers `Peer.Read` for the replicas of this node."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def answer(self, peer: Peer, request: bytes) -> bytes:
        """A ReadResponse. Raises BadFrame, InvalidRequest, Unavailable, CorruptLog."""
        wanted = _request(request)
        topic = self._partitions.find_id(wanted.topic_id.hex())
        if topic is None or wanted.partition >= topic.partitions:
            raise Unavailable("this node does not know the partition")
        name = f"{topic.name}/{wanted.partition}"
        if peer.node_id not in _replicas(topic, wanted.partition):
            raise InvalidRequest(f"{peer.node_id} has no replica of {name}")
        log = self._partitions.replica(topic.name, wanted.partition)
        if not isinstance(log, ReplicaLog):
            raise Unavailable(f"this node has no replica of {name}")
        start, end = log.log_start_offset, log.high_watermark
        if not start <= wanted.offset < wanted.end <= end:
            raise Unavailable(f"{name} has offsets {start}..{end - 1} here")
        data = await log.read_replica(Offset(wanted.offset), READ_MAX_BYTES)
        batches, next_offset = _within(data, wanted.end)
        return pb.ReadResponse(batches=batches, next_offset=next_offset).SerializeToString()


def _within(data: bytes, end: int) -> tuple[bytes, int]:
    """The batches below `end`, and up to where these are all. Raises CorruptLog."""
    at, next_offset = 0, end
    for position, header in split(data):
        if header.base_offset < end <= header.last_offset:
            raise CorruptLog(f"a batch has offset {end} and the one before it")
        if header.base_offset >= end:
            return data[:at], end
        at, next_offset = position + header.total_bytes, header.last_offset + 1
    return data[:at], next_offset


class SegmentRepairs:
    """Repairs what is damaged on this node. Lives on the event loop."""

    def __init__(
        self, network: PeerNetwork, partitions: Partitions, settings: ClusterSettings
    ) -> None:
        self._node_id = network.identity.node_id
        self._partitions = partitions
        self._peers = network.peers
        # As replicas that are far behind.
        self.throttle = Bucket(settings.replication_max_bytes_per_s, _now_ms())
        self._under_way: dict[Place, asyncio.Task[bool]] = {}
        self._not_before_s: dict[Place, float] = {}
        self._told: dict[tuple[Place, Offset], str] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look for damage, and have readers wait, from now on: before any partition is opened."""
        self._partitions.repair = self.repair
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def stop(self) -> None:
        """End; a repair under way leaves its log as it was."""
        tasks: list[asyncio.Task[None] | asyncio.Task[bool]] = [*self._under_way.values()]
        if self._looking is not None:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for place, log in self._partitions.damaged():
                self._begin(place, log)

    def _begin(self, place: Place, log: Repairable) -> asyncio.Task[bool] | None:
        """One repair of a log at a time; None: it has just failed."""
        task = self._under_way.get(place)
        if task is None and time.monotonic() >= self._not_before_s.get(place, 0):
            task = asyncio.get_running_loop().create_task(self._repair(place, log))
            self._under_way[place] = task
            task.add_done_callback(lambda _: self._under_way.pop(place))
        return task

    async def repair(self, place: Place, log: Repairable) -> bool:
        """Repair what is known to be damaged of a log; whether anything was, within
        `READER_MAX_S`."""
        task = self._begin(place, log)
        if task is None:
            return False
        # Readers share it, and it goes on without those that leave.
        done, _ = await asyncio.wait([task], timeout=READER_MAX_S)
        return bool(done) and not task.cancelled() and task.result()

    async def _repair(self, place: Place, log: Repairable) -> bool:
        topic = self._partitions.find_id(place.topic_id)
        name = f"{topic.name if topic else place.topic_id}/{place.partition}"
        repaired = False
        for base in log.damaged():
            try:
                if await log.repair(base, partial(self._fetch, place)):
                    repaired = True
                    _log.info("%s: the segment of offset %d is whole again", name, base)
                self._told.pop((place, base), None)
            except LakeMQError as error:
                self._not_before_s[place] = time.monotonic() + RETRY_S
                # Once for each cause: it may last for long.
                if self._told.get((place, base)) != str(error):
                    self._told[place, base] = str(error)
                    _log.error("%s: the segment of offset %d stays damaged: %s", name, base, error)
        return repaired

    async def _fetch(self, place: Place, offset: Offset, end: Offset) -> tuple[bytes, Offset]:
        """See `FetchCommitted`."""
        topic = self._partitions.find_id(place.topic_id)
        if topic is None:
            raise UnknownTopic("the topic was deleted")
        reasons = []
        for node in _replicas(topic, place.partition):
            if node == self._node_id:
                continue
            try:
                return await self._read(node, place, offset, end)
            except LakeMQError as error:
                reasons.append(f"{node}: {error}")
        raise Unavailable(
            f"no replica gives offsets {offset}..{end - 1}: {'; '.join(reasons) or 'there is none'}"
        )

    async def _read(
        self, node: str, place: Place, offset: Offset, end: Offset
    ) -> tuple[bytes, Offset]:
        await asyncio.sleep(self.throttle.pay(0, _now_ms()) / 1000)
        request = pb.ReadRequest(
            topic_id=bytes.fromhex(place.topic_id), partition=place.partition, offset=offset,
            end=end,
        )  # fmt: skip
        data = await self._peers.call(node, "Read", request.SerializeToString(), _CALL_S)
        self.throttle.pay(len(data), _now_ms())
        try:
            answer = pb.ReadResponse.FromString(data)
            # The first one may begin below the offset: a log may start within a batch.
            inside = [offset <= each.last_offset < end for _, each in split(answer.batches)]
        except (DecodeError, CorruptBatch) as error:
            raise BadFrame(f"not what was asked for: {error}") from None
        if not all(inside) or not offset < answer.next_offset <= end:
            raise BadFrame("not what was asked for: other offsets")
        return answer.batches, Offset(answer.next_offset)


def _request(data: bytes) -> pb.ReadRequest:
    if len(data) > _REQUEST_MAX_BYTES:
        raise BadFrame(f"a request of {len(data)} bytes; {_REQUEST_MAX_BYTES} is the most")
    try:
        return pb.ReadRequest.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"not a ReadRequest: {error}") from None


def _replicas(topic: TopicInfo, partition: int) -> Sequence[str]:
    """Nodes with a replica, or on their way to have one; those that have everything first."""
    held = leadership(topic, partition)
    leader = (held.leader,) if held.leader is not None else ()
    return tuple(dict.fromkeys((*leader, *held.in_sync, *held.replicas, *held.target)))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
