"""`Peer.Append` at the node that leads: batches that other nodes took from their clients, whose
rights they have checked. Their headers, CRCs and leader epochs are checked here."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    StaleEpoch,
    UnknownTopic,
)
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.records.batch import (
    CONTROL,
    HEADER_BYTES,
    SPARSE,
    check_body,
    read_header,
)
from lakemq.broker_core.api.records.outcomes import outcome_of
from lakemq.broker_core.api.state.internal_topics import takes_from_nodes
from lakemq.broker_core.api.types import AppendResult
from lakemq.broker_core.cluster.append_frames import (
    ENTRIES_MAX,
    AppendAnswer,
    AppendRequest,
    decode_appends,
    encode_answers,
)
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.streams import ByteStream, first_of, woken
from lakemq.broker_core.partitions import Partitions

_UNANSWERED_MAX_BYTES: Final = 64 * 1024 * 1024
"""Batches of one node that wait for their acks; it is not read from while there are more."""
_UNANSWERED_MAX: Final = 16 * ENTRIES_MAX
"""Batches of one node, however small, whose answers it has not taken; as before."""


class AppendService:
    """Lives on the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def serve(self, peer: Peer, stream: ByteStream) -> None:
        """One stream of another node, until it ends. Raises BadFrame."""
        caller = _Caller(stream, self._partitions)
        await first_of(caller.read(), caller.write())


class _Caller:
    """One stream."""

    def __init__(self, stream: ByteStream, partitions: Partitions) -> None:
        self._stream = stream
        self._partitions = partitions
        self._answers: list[AppendAnswer] = []
        self._wake = asyncio.Event()
        self._unanswered = self._unanswered_bytes = 0
        self._room = asyncio.Event()

    async def read(self) -> None:
        while (data := await self._stream.read()) is not None:
            for request in decode_appends(data):
                self._append(request)
            while (
                self._unanswered > _UNANSWERED_MAX or self._unanswered_bytes > _UNANSWERED_MAX_BYTES
            ):
                self._room.clear()
                await self._room.wait()

    def _append(self, request: AppendRequest) -> None:
        self._unanswered += 1
        try:
            future = self._appended(request)
        except LakeMQError as error:
            self._answer(request.id, error)
            return
        size = len(request.batch)
        self._unanswered_bytes += size
        future.add_done_callback(partial(self._done, request.id, size))

    def _appended(self, request: AppendRequest) -> asyncio.Future[AppendResult]:
        topic = self._partitions.find_id(request.topic_id)
        if topic is None:
            raise UnknownTopic(f"no topic has the id {request.topic_id}, as far as is known here")
        check_partition(topic, request.partition)
        if not takes_from_nodes(topic.name):
            raise InvalidRequest(f"topic {topic.name} is written by its own node only")
        # Before the batch is looked at: most refusals are about leadership.
        log = self._partitions.log(topic.name, request.partition, request.leader_epoch)
        epoch = leadership(topic, request.partition).epoch
        if request.leader_epoch != epoch:
            raise StaleEpoch(f"leader epoch {request.leader_epoch}; it is {epoch}", epoch=epoch)
        header = read_header(request.batch)
        if header.attributes & (SPARSE | CONTROL):
            raise InvalidRequest("nodes send neither sparse nor control batches")
        check_body(header, memoryview(request.batch)[HEADER_BYTES:])
        return log.append(bytes(request.batch), header, request.acks)

    def _done(self, number: int, size: int, future: asyncio.Future[AppendResult]) -> None:
        self._unanswered_bytes -= size
        self._room.set()
        outcome = outcome_of(future)
        self._answer(number, outcome)

    def _answer(self, number: int, outcome: AppendResult | LakeMQError) -> None:
        self._answers.append(AppendAnswer(number, outcome))
        self._wake.set()

    async def write(self) -> None:
        while True:
            await woken(self._wake)
            self._wake.clear()
            # Without answers it is empty, and says that this node lives.
            some, self._answers = self._answers[:ENTRIES_MAX], self._answers[ENTRIES_MAX:]
            if self._answers:
                self._wake.set()
            await self._stream.write(encode_answers(some))
            self._unanswered -= len(some)
            self._room.set()
