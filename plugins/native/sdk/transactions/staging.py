"""Staged batches, for asyncio: a sink's driver opens and commits, its tasks write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, Unavailable
from lakemq.broker_core.api.transactions.types import SINK, TRANSACTION, CommitOutcome
from lakemq.broker_core.api.types import Columns, Compression, Headers
from lakemq.plugins.native.proto import transactions_pb2 as pb
from lakemq.plugins.native.proto.native_pb2 import CommitOffsetsRequest
from lakemq.plugins.native.proto.transactions_pb2_grpc import TransactionsStub
from lakemq.plugins.native.sdk.arguments import compression_given
from lakemq.plugins.native.sdk.arrow import arrow_batches, from_arrow
from lakemq.plugins.native.sdk.coordinator_calls import CoordinatorCalls
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.connection import Connection
from lakemq.plugins.native.sdk.net.errors import error_of
from lakemq.plugins.native.sdk.net.retrying import now_ms, retrying
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.producer.checking import checked_record
from lakemq.plugins.native.sdk.producer.partitioning import StickyPartitioner
from lakemq.plugins.native.sdk.producer.pending import cut
from lakemq.plugins.native.sdk.telemetry import ClientTelemetry
from lakemq.plugins.native.sdk.tracing import current_headers, is_traced, with_headers
from lakemq.plugins.native.sdk.transactions.staged_batches import OutgoingStaged, StagedBatches
from lakemq.plugins.native.sdk.types import NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.plugins.native.proto.transactions_pb2_grpc import (
        TransactionsAsyncStub,  # in the stub file only
    )

_ATTEMPT_S: Final = 12.0
"""Of a call in a cluster: a commit is answered within `transactions.commit_wait_ms`, 10 s."""
_FOUND_MAX: Final = 1000
"""Owners whose coordinators are remembered."""
_SILENT_S: Final = 3.0
"""A coordinator that has batches and answers none of them for so long is asked for again."""
_KINDS: Final = {SINK: pb.OWNER_KIND_SINK, TRANSACTION: pb.OWNER_KIND_TRANSACTION}
_NAMES: Final = {number: name for name, number in _KINDS.items()}


class _Calls(CoordinatorCalls["TransactionsAsyncStub"]):
    """Of one sink or transactional id."""


class SinkHandle(NamedTuple):
    """The right to act for a sink or transactional id, until it is opened again. Plain
    values: send it to tasks in other processes."""

    kind: str
    """`sink` or `transaction`."""
    name: str
    epoch: int
    last_batch_id: int
    """Of the newest commit when it was opened; -1: there was none."""
    address: str = ""
    """Of the node that coordinated it when it was opened; empty: the one that the client is
    connected to. Where it goes the client follows."""


class StagedWinner(NamedTuple):
    """What one attempt staged: name it in the commit, and its records appear."""

    task: int
    attempt: int
    batches: int
    records: int


class CommitResult(NamedTuple):
    """Answer to a commit."""

    outcome: CommitOutcome
    last_batch_id: int
    applied: bool
    """Whether all records can be read by now; if not, they soon can: the commit is decided."""


class StagingOwner(NamedTuple):
    """A sink or transactional id, as `lakemq transaction list` shows it."""

    kind: str
    name: str
    epoch: int
    last_batch_id: int
    state: str
    """`idle`, `staging` or `applying`."""
    staged_batches: int
    staged_bytes: int
    timeout_ms: int
    detail: str


def owner_message(kind: str, name: str) -> pb.Owner:
    """A sink or transactional id for the wire. Raises InvalidRequest if `kind` is neither."""
    if kind not in _KINDS:
        raise InvalidRequest(f"kind is {kind!r}; it takes {SINK!r} or {TRANSACTION!r}")
    return pb.Owner(kind=_KINDS[kind], name=name)


class Staging:
    """Made by `Client.staging`. Every method raises `LakeMQError`s; what may pass is tried again
    for the client's `timeout_s`, and doing so never does anything twice."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stubs: dict[str, TransactionsAsyncStub] = {}
        self._found: dict[tuple[str, str], _Calls] = {}
        """By kind and name: what calls learned of an owner's coordinator, later ones know."""

    def _calls_of(self, session: SinkHandle) -> _Calls:
        key = session.kind, session.name
        if key not in self._found:
            if len(self._found) == _FOUND_MAX:
                self._found.clear()
            self._found[key] = self._calls(session.address)
        return self._found[key]

    def _calls(self, address: str = "") -> _Calls:
        """Calls that find and follow a coordinator; `address`: where it was last."""
        return _Calls(self._connection.routes, self._stub, address)

    def _stub(self, address: str) -> TransactionsAsyncStub:
        stub = self._stubs.get(address)
        if stub is None:
            routes = self._connection.routes
            channel: Any = routes.channel(address) if address else routes.guide
            stub = self._stubs[address] = TransactionsStub(channel)
        return stub

    async def open_sink(self, sink_id: str, *, timeout_ms: int = 0) -> SinkHandle:
        """Become the only driver of a sink: an older one is fenced (ProducerFenced), what it staged
        and did not commit is forgotten. `timeout_ms`: how long staged batches wait for their
        commit; 0: the broker's default."""
        return await self.open(SINK, sink_id, timeout_ms=timeout_ms)

    async def open(self, kind: str, name: str, *, timeout_ms: int = 0) -> SinkHandle:
        """Become the only owner of a sink (`kind` `sink`) or a transactional id (`transaction`), as
        `open_sink`. Raises InvalidRequest, NotAuthorized."""
        request = pb.OpenOwnerRequest(owner=owner_message(kind, name), timeout_ms=timeout_ms)
        self._connection.routes.start()  # another node may have to be asked for the coordinator
        calls = self._calls()
        answer = await self._call(calls, "OpenOwner", lambda: request)
        self._found.pop((kind, name), None)
        return SinkHandle(kind, name, answer.epoch, answer.last_batch_id, calls.address)

    def writer(
        self,
        session: SinkHandle,
        batch_id: int,
        task: int,
        attempt: int = 0,
        *,
        compression: Compression | str = Compression.NONE,
        batch_max_bytes: int = 1024 * 1024,
        buffer_max_bytes: int = 32 * 1024 * 1024,
    ) -> StagedWriter:
        """Stage records as one attempt of one task; an async context manager."""
        return StagedWriter(
            self._calls_of(session),
            self._connection,
            session,
            batch_id,
            task,
            attempt,
            compression=compression_given(compression),
            batch_max_bytes=batch_max_bytes,
            buffer_max_bytes=buffer_max_bytes,
        )

    @property
    def telemetry(self) -> ClientTelemetry | None:
        """Internal: what the client measures."""
        return self._connection.routes.telemetry

    async def commit(
        self,
        session: SinkHandle,
        batch_id: int,
        winners: Sequence[StagedWinner],
        *,
        offsets: Callable[[], Sequence[CommitOffsetsRequest]] = tuple,
    ) -> CommitResult:
        """Let everything that the winners staged appear, once, whatever crashes. A repeated commit
        is answered ALREADY_COMMITTED, one with an older batch id OLDER.

        TransactionAborted: not all of it is staged (any more). ProducerFenced.
        """

        def request() -> pb.CommitStagedRequest:
            return pb.CommitStagedRequest(
                owner=owner_message(session.kind, session.name),
                epoch=session.epoch,
                batch_id=batch_id,
                winners=[
                    pb.StagedWinner(task=each.task, attempt=each.attempt, batches=each.batches)
                    for each in winners
                ],
                offsets=offsets(),
            )

        # Safe to repeat, at any node: the coordinator compares the batch id with the newest one.
        answer = await self._call(self._calls_of(session), "CommitStaged", request)
        return CommitResult(CommitOutcome(answer.outcome), answer.last_batch_id, answer.applied)

    async def abort(self, session: SinkHandle, batch_id: int) -> None:
        """Discard what was staged for `batch_id`, and free its space."""
        request = pb.AbortStagedRequest(
            owner=owner_message(session.kind, session.name), epoch=session.epoch, batch_id=batch_id
        )
        await self._call(self._calls_of(session), "AbortStaged", lambda: request)

    # -- operators

    async def owners(self) -> list[StagingOwner]:
        """All sinks and transactional ids."""
        answer = await self._call(self._calls(), "ListOwners", pb.ListOwnersRequest)
        others = [self._calls(address) for address in answer.others]
        answers = await asyncio.gather(
            *(self._call(each, "ListOwners", pb.ListOwnersRequest) for each in others)
        )
        # By name, since one may have changed its coordinator meanwhile.
        found = {
            (_NAMES[each.owner.kind], each.owner.name): each
            for told in (answer, *answers)
            for each in told.owners
        }
        return [
            StagingOwner(
                *key, each.epoch, each.last_batch_id, each.state, each.staged_batches,
                each.staged_bytes, each.timeout_ms, each.detail,
            )
            for key, each in sorted(found.items(), key=lambda item: item[0])
        ]  # fmt: skip

    async def fence(self, kind: str, name: str) -> None:
        """Fence its current owner, and discard what it staged. Raises UnknownTransaction."""
        request = pb.FenceOwnerRequest(owner=owner_message(kind, name))
        await self._call(self._calls(), "FenceOwner", lambda: request)

    async def delete(self, kind: str, name: str) -> None:
        """Delete it, with the number of the batch that it committed last: the same batch could
        then be committed again. Raises UnknownTransaction."""
        request = pb.ForgetOwnerRequest(owner=owner_message(kind, name))
        await self._call(self._calls(), "ForgetOwner", lambda: request)

    async def _call(self, calls: _Calls, method: str, request: Callable[[], object]) -> Any:
        return await calls.patient(method, request, self._connection.timeout_s, _ATTEMPT_S)


class StagedWriter:
    """Made by `Staging.writer`. Send, then `finish`: its answer goes into the commit."""

    def __init__(
        self,
        calls: _Calls,
        connection: Connection,
        session: SinkHandle,
        batch_id: int,
        task: int,
        attempt: int,
        *,
        compression: Compression,
        batch_max_bytes: int,
        buffer_max_bytes: int,
    ) -> None:
        self._calls = calls
        self._connection = connection
        self._session = session
        self._place = (batch_id, task, attempt)
        self._batch_max_bytes = int(batch_max_bytes)  # what is compiled takes no other
        self._buffer_max_bytes = buffer_max_bytes
        self._batches = StagedBatches(batch_max_bytes=batch_max_bytes, compression=compression)
        self._partitioner = StickyPartitioner()
        self._partition_counts: dict[str, int] = {}
        self._outgoing: asyncio.Queue[OutgoingStaged] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._failed: LakeMQError | None = None
        self._driver: asyncio.Task[None] | None = None
        telemetry = connection.routes.telemetry
        self._traced = is_traced() or (telemetry is not None and telemetry.traced)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- records

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record. Waits while the buffer is full."""
        record = checked_record(NewRecord(value, key, headers, timestamp_ms))
        if self._traced:
            record = with_headers(record, current_headers())
        count = self._partition_counts.get(topic) or await self._partitions_of(topic)
        home = self._home(topic, partition, count)
        if home is None:
            home = self._partitioner.of(key, count)
        await self._send(self._batches.gather(topic, home, record, now_ms()))

    async def send_batch(
        self,
        topic: str,
        records: Columns | Sequence[NewRecord],
        *,
        partition: int | None = None,
    ) -> None:
        """Take many records, whole batches at once; they keep their order within a partition."""
        taken_ms = now_ms()
        columns = wire.columns_given(records, taken_ms, traced=self._traced)
        if not columns.values:
            return
        count = self._partition_counts.get(topic) or await self._partitions_of(topic)
        home = self._home(topic, partition, count)
        homes = self._partitioner.split(columns, count) if home is None else {home: columns}
        for number, share in homes.items():
            for part in cut(share, self._batch_max_bytes):
                await self._send(self._batches.add(topic, number, part, taken_ms))

    async def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> None:
        """`send_batch` of an Arrow table, as `Producer.send_arrow`."""
        for batch in arrow_batches(table):
            await self.send_batch(topic, from_arrow(batch), partition=partition)

    async def finish(self) -> StagedWinner:
        """Returns when everything is on the broker's disk. Nothing can be sent behind it."""
        await self._send(self._batches.flush_all(now_ms()))
        while not self._batches.idle:
            await self._wait()
        _, task, attempt = self._place
        await self.close()
        return StagedWinner(task, attempt, self._batches.made, self._batches.records)

    async def close(self) -> None:
        """Stop; what was staged expires unless a commit names it."""
        self._failed = self._failed or InvalidRequest("this writer is closed")
        if self._driver is not None:
            self._driver.cancel()
            with suppress(asyncio.CancelledError):
                await self._driver

    async def _partitions_of(self, topic: str) -> int:
        connection = self._connection
        # Metadata saves a call: each transaction has a writer of its own.
        count = connection.routes.view.partitions(topic) or 0
        if not count:
            found = await retrying(lambda: connection.describe_topic(topic), connection.timeout_s)
            count = len(found.partitions)
        self._partition_counts[topic] = count
        return count

    def _home(self, topic: str, partition: int | None, count: int) -> int | None:
        if partition is not None and not 0 <= partition < count:
            raise InvalidRequest(f"partition {partition}: topic {topic} has {count}")
        return partition

    async def _send(self, batches: Sequence[OutgoingStaged]) -> None:
        if self._failed is not None:
            raise self._failed
        for batch in batches:
            self._outgoing.put_nowait(batch)
        if batches:
            self._partitioner.next_batch()
            if self._driver is None:
                self._driver = asyncio.create_task(self._drive())
        # Waits after sending, so one batch may exceed the buffer, and none waits for ever.
        while self._batches.buffered_bytes > self._buffer_max_bytes:
            await self._wait()

    async def _wait(self) -> None:
        """For an answer. Raises what ended it all."""
        if self._failed is not None:
            raise self._failed
        self._changed.clear()
        await self._changed.wait()
        if self._failed is not None:
            raise self._failed

    # -- the stream

    async def _drive(self) -> None:
        """Keep a stream open; after a failure that may pass send again what has no answer."""
        pauses, since = backoff_s(), time.monotonic()
        while True:
            before = self._batches.unanswered()
            failure = await self._stream()
            # The oldest batch got its answer: progress, so time and pauses start from the
            # beginning.
            if self._batches.unanswered()[:1] != before[:1]:
                pauses, since = backoff_s(), time.monotonic()
            if not failure.retriable or time.monotonic() - since > self._connection.timeout_s:
                self._failed = failure
                self._changed.set()
                return
            if not self._calls.failed(failure):
                await asyncio.sleep(next(pauses))
            # A new queue: the generator of the broken stream may still wait on the old one.
            self._outgoing = asyncio.Queue()
            for batch in self._batches.unanswered():
                self._outgoing.put_nowait(batch)

    async def _stream(self) -> LakeMQError:
        """One stream, until it fails."""
        call = None
        try:
            await self._calls.log_in()
            call = self._calls.stub.Stage(self._requests(self._outgoing))
            while (answer := await self._answer(call)) is not None:
                if answer.HasField("error"):
                    return error_of(answer.error)
                self._batches.answered(answer.request_id)
                self._changed.set()
            return Unavailable(f"{self._connection.bootstrap} ended the stream")
        except LakeMQError as error:
            return error
        finally:
            if call is not None:
                call.cancel()

    async def _answer(self, call: Any) -> pb.StageResponse | None:
        """The next one; None: the stream has ended. Raises Unavailable where a coordinator is
        silent that another node may take over from."""
        reading = asyncio.ensure_future(anext(call, None))
        try:
            while True:
                oldest = self._batches.unanswered()[:1]
                done, _ = await asyncio.wait([reading], timeout=_SILENT_S)
                if done:
                    return await reading
                if oldest and oldest == self._batches.unanswered()[:1] and not self._calls.alone:
                    raise Unavailable("the coordinator does not answer")
        finally:
            reading.cancel()

    async def _requests(
        self, outgoing: asyncio.Queue[OutgoingStaged]
    ) -> AsyncIterator[pb.StageRequest]:
        batch_id, task, attempt = self._place
        owner = owner_message(self._session.kind, self._session.name)
        while True:
            batch = await outgoing.get()
            yield pb.StageRequest(
                # Numbered from 0 within the attempt: the broker recognises a batch that is sent
                # again.
                request_id=batch.number,
                owner=owner,
                epoch=self._session.epoch,
                batch_id=batch_id,
                task=task,
                attempt=attempt,
                number=batch.number,
                topic=batch.topic,
                partition=batch.partition,
                batch=batch.data,
            )
