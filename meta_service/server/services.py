"""The gRPC services of a member. Each method turns a request into one call on the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, Final

from lakemq.meta_service.api.convert import (
    config_of,
    key_value_message,
    node_message,
    status_message,
    topic_message,
)
from lakemq.meta_service.api.errors import InvalidArgument, NotLeader
from lakemq.meta_service.api.types import MetaStatus
from lakemq.meta_service.api.writes import WRITES_MAX
from lakemq.meta_service.catalog.command_codec import Command, Header
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    OpenSession,
    Operation,
    PlaceTopic,
    Txn,
)
from lakemq.meta_service.catalog.nodes import decode_node
from lakemq.meta_service.catalog.results import Result, value_of
from lakemq.meta_service.catalog.tables import NODE_PREFIX, RESERVED, TOPIC_PREFIX
from lakemq.meta_service.catalog.topics import decode_topic, topic_key
from lakemq.meta_service.core.gateway import Gateway, Proposal
from lakemq.meta_service.core.local_client import key_value, refuse_reserved
from lakemq.meta_service.core.watches import Events
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.server.failures import Context, streaming, unary

ANSWER_MAX_BYTES: Final = 3 * 1024 * 1024
"""Keys and values in one answer to Range; gRPC's own limit is 4 MiB."""
PROGRESS_S: Final = 1.0
"""A quiet watch hears the current revision this often."""
_NEWS_MAX: Final = 256
_NEWS_MAX_BYTES: Final = 16 * 1024
"""Of a revision's news that are kept for the next watcher."""


Shared = tuple[Gateway, Callable[[], MetaStatus], Callable[[], str]]
"""What every service is made of: gateway, status, address of the leader."""


class Service:
    """What the services share."""

    def __init__(
        self,
        gateway: Gateway,
        status: Callable[[], MetaStatus],
        leader_address: Callable[[], str],
    ) -> None:
        self._gateway = gateway
        self._status = status
        self.leader_address = leader_address

    async def _propose(self, command: Command, once: pb.Once | None) -> Result:
        result = await self._gateway.propose(command, _header(once))
        value_of(result)
        return result

    async def _written(self, command: Command, once: pb.Once | None) -> pb.WriteResponse:
        return pb.WriteResponse(revision=(await self._propose(command, once)).revision)

    async def _fresh(self, stale: bool = False) -> None:
        if not stale:
            await self._gateway.barrier()

    async def _changes(
        self, prefix: bytes, start_revision: int
    ) -> AsyncGenerator[tuple[int, bytes | None, bytes | None, bool], None]:
        """(revision, key, value or None for a deletion, last of its revision) of the catalog's
        own keys; (revision, None, None, True): progress, all up to the revision was given."""
        batches = self._gateway.hub.watch_revisions(
            prefix, start_revision, with_reserved=True, progress_s=PROGRESS_S
        )
        async with contextlib.aclosing(batches):
            async for revision, events in batches:
                for number, (key, value) in enumerate(events, 1):
                    yield revision, key, value, number == len(events)
                if not events:
                    yield revision, None, None, True


def _header(once: pb.Once | None) -> Header:
    if once is not None and once.client_id:
        return Header(once.client_id, once.sequence, once.acknowledged)
    return Header()


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
    return _COMMANDS[kind](request), _header(request.once)


def _written(result: Result) -> pb.Written:
    if result.code:
        return pb.Written(error=result.code, message=str(result.payload))
    held = isinstance(result.payload, (list, tuple)) and bool(result.payload[0])
    return pb.Written(revision=result.revision, held=held)


class KvService(Service, rpc.KvServicer):
    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._made: dict[tuple[bytes, int], pb.WatchResponse] = {}
        """News that were sent to a watcher and that others may be sent soon, by prefix and
        revision."""

    @unary
    async def Get(self, request: pb.GetRequest, context: Context) -> pb.RangeResponse:
        refuse_reserved(request.key)
        await self._fresh(request.stale)
        row = self._gateway.cache.get(request.key)
        kvs = [key_value_message(key_value(request.key, row))] if row else []
        return pb.RangeResponse(revision=self._gateway.cache.revision, kvs=kvs)

    @unary
    async def Range(self, request: pb.RangeRequest, context: Context) -> pb.RangeResponse:
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
    async def Put(self, request: pb.PutRequest, context: Context) -> pb.WriteResponse:
        return await self._written(_put(request), request.once)

    @unary
    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.WriteResponse:
        return await self._written(_delete(request), request.once)

    @unary
    async def Txn(self, request: pb.TxnRequest, context: Context) -> pb.TxnResponse:
        result = await self._propose(_txn(request), request.once)
        return pb.TxnResponse(held=bool(result.payload[0]), revision=result.revision)

    @unary
    async def Write(self, request: pb.WriteRequest, context: Context) -> pb.WrittenResponse:
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
    ) -> AsyncIterator[pb.WatchResponse]:
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
            if news.ByteSize() <= _NEWS_MAX_BYTES:
                self._made[prefix, revision] = news
        return news


class ClusterService(Service, rpc.ClusterServicer):
    @unary
    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        return status_message(self._status())

    @unary
    async def OpenSession(
        self, request: pb.OpenSessionRequest, context: Context
    ) -> pb.WriteResponse:
        result = await self._propose(OpenSession(request.client_id), None)
        return pb.WriteResponse(revision=result.revision)

    @unary
    async def ListNodes(
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        await self._fresh()
        rows = self._gateway.cache.scan(NODE_PREFIX)
        nodes = [node_message(decode_node(key, row.value)) for key, row in rows]
        return pb.ListNodesResponse(nodes=nodes)

    @unary
    async def AllocateIds(
        self, request: pb.AllocateIdsRequest, context: Context
    ) -> pb.AllocateIdsResponse:
        result = await self._propose(AllocateIds(request.kind, request.count), request.once)
        return pb.AllocateIdsResponse(first=result.payload)


class TopicsService(Service, rpc.TopicsServicer):
    def full_nodes(self) -> tuple[str, ...]:
        """Nodes that shall rather take no new partitions."""
        return ()

    @unary
    async def Create(self, request: pb.CreateTopicRequest, context: Context) -> pb.Topic:
        fields = (
            request.name,
            request.topic_id,
            request.partitions,
            request.replication or 1,
            config_of(request.config),
        )
        avoid = self.full_nodes()
        command = PlaceTopic(*fields, avoid) if avoid else CreateTopic(*fields)
        result = await self._propose(command, request.once)
        return _described(request.name, result)

    @unary
    async def Alter(self, request: pb.AlterTopicRequest, context: Context) -> pb.Topic:
        fields = (
            request.name,
            request.partitions if request.HasField("partitions") else None,
            config_of(request.config.settings) if request.HasField("config") else None,
        )
        avoid = self.full_nodes() if fields[1] is not None else ()
        command = GrowTopic(*fields, avoid) if avoid else AlterTopic(*fields)
        return _described(request.name, await self._propose(command, request.once))

    @unary
    async def Delete(self, request: pb.DeleteTopicRequest, context: Context) -> pb.WriteResponse:
        result = await self._propose(DeleteTopic(request.name), request.once)
        return pb.WriteResponse(revision=result.revision)

    @unary
    async def List(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        await self._fresh()
        cache = self._gateway.cache
        response = pb.ListTopicsResponse(revision=cache.revision)
        wanted = {topic_key(name) for name in request.names}
        after = topic_key(request.after) if request.after else b""
        size = 0
        for key, row in cache.scan(TOPIC_PREFIX, after=after):
            if wanted and key not in wanted:
                continue
            size += 2 * (len(key) + len(row.value)) + 40
            if response.topics and size > ANSWER_MAX_BYTES:
                response.more = True
                break
            response.topics.append(topic_message(decode_topic(key, row.value, row.mod_revision)))
        return response

    @streaming
    async def Watch(
        self, request: pb.WatchTopicsRequest, context: Context
    ) -> AsyncIterator[pb.TopicChange]:
        changes = self._changes(TOPIC_PREFIX, request.start_revision)
        async with contextlib.aclosing(changes):
            async for revision, key, value, last in changes:
                change = pb.TopicChange(revision=revision, last=last)
                if key is not None:
                    change.name = key[len(TOPIC_PREFIX) :].decode()
                    if value is not None:
                        change.topic.CopyFrom(topic_message(decode_topic(key, value, revision)))
                yield change


def _described(name: str, result: Result) -> pb.Topic:
    return topic_message(decode_topic(topic_key(name), result.payload, result.revision))
