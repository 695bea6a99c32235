"""Partitions that commits append to, whichever nodes lead them: where they end, and what they have
of a commit. The leader answers, over `Peer.Appended` where it is another node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest, NotLeader, Unavailable, UnknownTopic
from lakemq.broker_core.api.leadership import check_partition
from lakemq.broker_core.api.ports import Broker, PartitionLog
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.types import Offset
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.transactions.staged import Staged
from lakemq.broker_core.transactions.state import CommitTarget, OwnerState, targets_of

METHOD: Final = "Appended"
Call = Callable[[str, str, bytes, float], Awaitable[bytes]]
"""As `Peers.call`."""

_RECORDS_MAX: Final = 2**31 - 1
"""Of one commit in one partition: sequence numbers must not wrap."""
_SCAN_BYTES: Final = 4 * 1024 * 1024
_SCAN_WAIT_MS: Final = 500
_ANSWER_S: Final = 2.0
"""A leader looks for so long, then says how far it came."""
_CALL_S: Final = 8.0
_CALLS_AT_ONCE: Final = 2
"""To all nodes together: a node takes few calls of another at a time."""
_REQUEST_MAX_BYTES: Final = 1024


class Found(NamedTuple):
    """What a partition has of a commit, as far as was looked."""

    records: int
    next_offset: int
    """Where to look on."""
    end: int
    """Where to stop: what comes behind was appended later."""


class Targets:
    """Lives on the event loop."""

    def __init__(self, broker: Broker, call: Call | None = None) -> None:
        """`call`: None where there is no other node."""
        self._broker = broker
        self._call = call
        self._room = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def of(self, chosen: Sequence[Staged]) -> tuple[CommitTarget, ...]:
        """What each partition gets of a commit. Raises UnknownTopic when one was deleted since,
        InvalidRequest, and as `floor`."""
        records: dict[tuple[str, int], int] = {}
        for staged in chosen:
            place = (staged.key.topic, staged.key.partition)
            if self._broker.topic(staged.key.topic).topic_id != staged.key.topic_id:
                raise UnknownTopic(f"topic {staged.key.topic} was deleted and created again since")
            records[place] = records.get(place, 0) + staged.key.records
        # Sequence numbers have 32 bits (KIP-98), and must not wrap within one commit.
        if any(count > _RECORDS_MAX for count in records.values()):
            raise InvalidRequest(f"a commit takes {_RECORDS_MAX} records a partition")
        # Taken before the decision is written: none of its records can lie below.
        floors = await asyncio.gather(*(self.floor(*place) for place in records))
        return targets_of(
            (
                (each.key.topic, each.key.topic_id, each.key.partition, each.entry)
                for each in chosen
            ),
            dict(zip(records, floors, strict=True)),
        )

    async def floor(self, topic: str, partition: int) -> int:
        """An offset that all records appended from now on lie at or above, near the log's end.
        Raises UnknownTopic, UnknownPartition, NotLeader, Unavailable."""
        try:
            return self._broker.partition(topic, partition).log_end_offset
        except NotLeader as error:
            # What this node knows to be committed is not above what its leader has.
            here = self._broker.readable_end(topic, partition)
            if here is not None:
                return here
            return (await self._ask(error, topic, partition, None, Found(0, -1, 0))).end

    async def appended(self, state: OwnerState, target: CommitTarget) -> int:
        """How many records of the state's newest commit the partition has, committed. Raises
        NotLeader, Unavailable, CorruptLog."""
        found = Found(0, target.floor_offset, 0)
        while found.end == 0 or found.next_offset < found.end:
            before = found
            try:
                log = self._broker.partition(target.topic, target.partition)
            except NotLeader as error:
                found = await self._ask(error, target.topic, target.partition, state, before)
            else:
                found = await look(log, state.producer_id, state.producer_epoch, before)
            found = found._replace(records=max(found.records, before.records))
            if found.end == 0:  # the log is empty
                break
        return found.records

    async def _ask(
        self,
        error: NotLeader,
        topic: str,
        partition: int,
        state: OwnerState | None,
        found: Found,
    ) -> Found:
        """The leader's answer. Without a state it tells where the log ends."""
        if self._call is None or not error.leader or error.leader == self._broker.node_id:
            raise error
        request = pb.AppendedRequest(
            topic_id=bytes.fromhex(self._broker.topic(topic).topic_id),
            partition=partition,
            producer_id=-1 if state is None else state.producer_id,
            producer_epoch=0 if state is None else state.producer_epoch,
            offset=max(0, found.next_offset),
            end=found.end,
        ).SerializeToString()
        async with self._room:
            data = await self._call(error.leader, METHOD, request, _CALL_S)
        try:
            answer = pb.AppendedResponse.FromString(data)
        except DecodeError as problem:
            raise Unavailable(f"{error.leader}: no AppendedResponse: {problem}") from None
        # A leader that cannot commit looks no further; the next attempt begins where this one did.
        looks_on = answer.next_offset >= min(answer.end, found.next_offset + 1)
        if state is not None and not looks_on:
            raise Unavailable(
                f"{error.leader} has committed {topic}/{partition} up to {answer.next_offset}, its "
                f"log ends at {answer.end}"
            )
        return Found(answer.records, answer.next_offset, answer.end)


async def look(
    log: PartitionLog, producer_id: int, producer_epoch: int, found: Found, wait_s: float = 1e9
) -> Found:
    """Look through batch headers from `found.next_offset` on, up to its end (0: of the log, now),
    for `wait_s` or a little longer. Raises CorruptLog, Unavailable."""
    end = found.end or log.log_end_offset
    records, offset = 0, max(found.next_offset, log.log_start_offset)
    deadline_s = time.monotonic() + wait_s
    while offset < end:
        # Waits for appends that were in flight when the last attempt ended, unless they failed.
        got = await log.fetch(Offset(offset), bytes_max=_SCAN_BYTES, wait_ms=_SCAN_WAIT_MS)
        # An append that failed takes its records back, and the end with them.
        end = min(end, log.log_end_offset)
        for _, header in split(got.data):
            if (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch):
                # Sequences begin at 0 in each partition, so the last one tells how many there are.
                records = max(records, header.base_sequence + header.last_offset_delta + 1)
        offset = got.next_offset
        if time.monotonic() > deadline_s:
            break
    return Found(records, offset, end)


class AppendedService:
    """Answers `Peer.Appended` for the partitions that this node leads."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def answer(self, peer: Peer, request: bytes) -> bytes:
        """An AppendedResponse. Raises BadFrame, NotLeader, Unavailable, CorruptLog."""
        wanted = _request(request)
        topic = self._partitions.find_id(wanted.topic_id.hex())
        if topic is None:
            raise Unavailable("this node does not know the topic")
        check_partition(topic, wanted.partition)
        log = self._partitions.log(topic.name, wanted.partition)
        found = Found(0, wanted.offset, wanted.end)
        if wanted.producer_id < 0:
            found = found._replace(end=log.log_end_offset)
        else:
            found = await look(log, wanted.producer_id, wanted.producer_epoch, found, _ANSWER_S)
            # What was read meanwhile counts only if this node leads still.
            self._partitions.log(topic.name, wanted.partition)
        return pb.AppendedResponse(
            records=found.records, next_offset=found.next_offset, end=found.end
        ).SerializeToString()


def _request(data: bytes) -> pb.AppendedRequest:
    if len(data) > _REQUEST_MAX_BYTES:
        raise BadFrame(f"a request of {len(data)} bytes; {_REQUEST_MAX_BYTES} is the most")
    try:
        request = pb.AppendedRequest.FromString(data)
    except DecodeError as error:
        raise BadFrame(f"not an AppendedRequest: {error}") from None
    if request.offset < 0 or request.end < 0 or len(request.topic_id) != 16:
        raise BadFrame("an AppendedRequest with a negative offset or without a topic")
    return request
