"""The gRPC service of keys and values."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

from lakemq.meta_service.api.convert import key_value_message
from lakemq.meta_service.api.errors import InvalidArgument, NotLeader
from lakemq.meta_service.api.remote.writes import WRITES_MAX
from lakemq.meta_service.catalog.commands import Operation, Txn
from lakemq.meta_service.catalog.results import Result
from lakemq.meta_service.catalog.tables import RESERVED
from lakemq.meta_service.core.gateway import Proposal
from lakemq.meta_service.core.local_client import key_value, refuse_reserved
from lakemq.meta_service.core.watches import Events
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.server.failures import Context, streaming, unary
from lakemq.meta_service.server.service import (
    ANSWER_MAX_BYTES,
    PROGRESS_S,
    Service,
    header_of,
    writes,
)

_NEWS_MAX: Final = 256
_NEWS_MAX_BYTES: Final = 16 * 1024
"""Of a revision's news that are kept for the next watcher."""


def _operations(messages: Iterable[pb.Operation]) -> tuple[Operation, ...]:
    return tuple((m.key, m.value if m.HasField("value") else None, 0) for m in messages)


def _put(request: pb.PutRequest) -> Txn:
    return Txn((), ((request.key, request.value, 0),))


def _delete(request: pb.DeleteRequest) -> Txn:
    return Txn((), ((request.key, None, 0),))


def _txn(request: pb.TxnRequest) -> Txn:
    return Txn(
        tuple((compare.key, compare.mod_revision) for compare in request.compares),
        _operations(request.then),
        _operations(request.otherwise),
    )


_COMMANDS: Final[dict[str, Callable[[Any], Txn]]] = {"put": _put, "delete": _delete, "txn": _txn}


def _proposal(write: pb.Write) -> Proposal:
    """Raises InvalidArgument."""
    kind = write.WhichOneof("write")
    if kind is None:
        raise InvalidArgument("writes: one of them is neither a put, a delete nor a transaction")
    request = getattr(write, kind)
    return _COMMANDS[kind](request), header_of(request.once)


def _written(result: Result) -> pb.Written:
    if result.code:
        return pb.Written(error=result.code, message=str(result.payload))
    held = isinstance(result.payload, (list, tuple)) and bool(result.payload[0])
    return pb.Written(revision=result.revision, held=held)


def _held(request: Any, result: Result) -> pb.TxnResponse:
    return pb.TxnResponse(held=bool(result.payload[0]), revision=result.revision)


class KvService(Service, rpc.KvServicer):
    """Implements `Kv` of meta.proto."""

    Put = writes(lambda _, request: _put(request))
    Delete = writes(lambda _, request: _delete(request))
    Txn = writes(lambda _, request: _txn(request), _held)

    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._made: dict[tuple[bytes, int], pb.WatchResponse] = {}
        """News that were sent to a watcher and that others may be sent soon, by prefix and
        revision."""

    @unary
    async def Get(self, request: pb.GetRequest, context: Context) -> pb.RangeResponse:
        """The value of a key; linearizable unless `stale`."""
        refuse_reserved(request.key)
        await self._fresh(request.stale)
        row = self._gateway.cache.get(request.key)
        kvs = [key_value_message(key_value(request.key, row))] if row else []
        return pb.RangeResponse(revision=self._gateway.cache.revision, kvs=kvs)

    @unary
    async def Range(self, request: pb.RangeRequest, context: Context) -> pb.RangeResponse:
        """Keys with a prefix, in pages that fit one answer; linearizable unless `stale`."""
        refuse_reserved(request.prefix)
        await self._fresh(request.stale)
        response = pb.RangeResponse(revision=self._gateway.cache.revision)
        size = 0
        for key, row in self._gateway.cache.scan(request.prefix, after=request.after):
            if key[:1] == RESERVED:
                continue
            size += len(key) + len(row.value) + 40
            full = bool(request.limit) and len(response.kvs) == request.limit
            if full or (response.kvs and size > ANSWER_MAX_BYTES):
                response.more = True
                break
            response.kvs.append(key_value_message(key_value(key, row)))
        return response

    @unary
    async def Write(self, request: pb.WriteRequest, context: Context) -> pb.WrittenResponse:
        """Many puts, deletes and transactions, each with an outcome of its own."""
        if not 1 <= len(request.writes) <= WRITES_MAX:
            raise InvalidArgument(f"writes: must be 1 to {WRITES_MAX}")
        results = await self._gateway.propose_all(list(map(_proposal, request.writes)))
        refused = any(result.code == NotLeader.code for result in results)
        return pb.WrittenResponse(
            written=map(_written, results), leader=self.leader_address() if refused else ""
        )

    @streaming
    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncGenerator[pb.WatchResponse]:
        """Events of keys with a prefix from a revision on, and the revision of a quiet watch."""
        refuse_reserved(request.prefix)
        batches = self._gateway.hub.watch_revisions(
            request.prefix, request.start_revision, progress_s=PROGRESS_S
        )
        async with contextlib.aclosing(batches):
            async for revision, events in batches:
                yield self._news(request.prefix, revision, events)

    def _news(self, prefix: bytes, revision: int, events: Events) -> pb.WatchResponse:
        """Made once for all who watch that prefix."""
        if not events:
            return pb.WatchResponse(revision=revision)  # progress: not all there is of it
        news = self._made.get((prefix, revision))
        if news is None:
            messages = [pb.Event(key=key, value=value) for key, value in events]
            news = pb.WatchResponse(revision=revision, events=messages)
            if len(self._made) >= _NEWS_MAX:
                self._made.clear()
            # Large ones are made again for each watcher: keeping them would cost more memory than
            # it saves time.
            if news.ByteSize() <= _NEWS_MAX_BYTES:
                self._made[prefix, revision] = news
        return news
