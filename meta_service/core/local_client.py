"""The client of a member in the same process: no socket, no copy."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from lakemq.meta_service.api.convert import (
    alter_request,
    create_request,
    node_of,
    register_request,
    topic_of,
)
from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.api.remote.auth_calls import AuthCalls
from lakemq.meta_service.api.remote.calls import Stub, Target
from lakemq.meta_service.api.remote.failures import error_of_failure
from lakemq.meta_service.api.remote.schema_calls import SchemaCalls
from lakemq.meta_service.api.types import (
    Compare,
    Delete,
    KeyValue,
    MetaStatus,
    NodeRegistration,
    PartitionsChange,
    Put,
    TopicChange,
    TopicDescription,
    WatchEvent,
)
from lakemq.meta_service.catalog.command_codec import Command
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    DeleteTopic,
    Operation,
    Txn,
)
from lakemq.meta_service.catalog.nodes import decode_node
from lakemq.meta_service.catalog.results import Result, value_of
from lakemq.meta_service.catalog.tables import NODE_PREFIX, RESERVED, Row
from lakemq.meta_service.core.gateway import Gateway
from lakemq.meta_service.core.topics import all_topics, topic_changes

CALL_MAX_S: Final = 10.0


def key_value(key: bytes, row: Row) -> KeyValue:
    """A row as a value of the API."""
    return KeyValue(key, row.value, row.create_revision, row.mod_revision, row.version)


def operation_of(change: Put | Delete) -> Operation:
    """A change as an operation of the `Txn` command."""
    return (change.key, change.value if isinstance(change, Put) else None, 0)


def refuse_reserved(key: bytes) -> None:
    """Raises InvalidArgument for keys that belong to the catalog."""
    if key[:1] == RESERVED:
        raise InvalidArgument("key: keys that begin with a zero byte are reserved")


class LocalClient(AuthCalls, SchemaCalls):
    """Implements `MetaClient` over the member of this process."""

    def __init__(self, gateway: Gateway, status: Callable[[], MetaStatus], target: Target) -> None:
        """`target`: the services of this member, for what is not called every moment."""
        self._gateway = gateway
        self._target = target
        self._cache = gateway.cache
        self._status = status

    async def _propose(self, command: Command) -> Result:
        """Raises the error that the command answered."""
        result = await self._gateway.propose(command)
        value_of(result)
        return result

    async def _call(self, stub: Stub, request: Any) -> Any:
        try:
            return await stub(self._target)(request, timeout=CALL_MAX_S)
        except grpc.aio.AioRpcError as failure:
            raise error_of_failure(failure)[0] from failure

    async def _write(self, stub: Stub, request: Any) -> Any:
        """Once: what happens in one process is not repeated."""
        return await self._call(stub, request)

    async def _stream(
        self, stub: Stub, request_from: Callable[[int], Any], start_revision: int
    ) -> AsyncIterator[Any]:
        try:
            responses = stub(self._target)(request_from(max(1, start_revision)))
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
        except grpc.aio.AioRpcError as failure:
            raise error_of_failure(failure)[0] from failure

    async def _barrier(self, stale: bool) -> None:
        if not stale:
            await self._gateway.barrier()

    async def status(self) -> MetaStatus:
        """The member's own view of the group; asks no other member."""
        return self._status()

    # ------------------------------------------------------------ keys

    async def get(self, key: bytes, *, stale: bool = False) -> KeyValue | None:
        """The key's value; linearizable unless `stale`. Raises MetaError."""
        refuse_reserved(key)
        await self._barrier(stale)
        row = self._cache.get(key)
        return key_value(key, row) if row else None

    async def scan(
        self, prefix: bytes, *, limit: int = 0, stale: bool = False
    ) -> tuple[int, Sequence[KeyValue]]:
        """(revision, keys with that prefix in order); linearizable unless `stale`. Raises
        MetaError."""
        refuse_reserved(prefix)
        await self._barrier(stale)
        # An empty prefix covers the catalog's own keys too, which are not the caller's.
        found = ((k, row) for k, row in self._cache.scan(prefix) if k[:1] != RESERVED)
        rows = itertools.islice(found, limit or None)
        return self._cache.revision, [key_value(key, row) for key, row in rows]

    async def put(self, key: bytes, value: bytes) -> int:
        """The revision of the write. Raises MetaError."""
        return (await self._propose(Txn((), ((key, value, 0),)))).revision

    async def delete(self, key: bytes) -> int:
        """The revision after the write, whether or not the key was there. Raises MetaError."""
        return (await self._propose(Txn((), ((key, None, 0),)))).revision

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete]
    ) -> tuple[bool, int]:
        """(whether all compares held and `then` was done, revision). Raises MetaError."""
        command = Txn(
            tuple((compare.key, compare.mod_revision) for compare in compares),
            tuple(map(operation_of, then)),
        )
        result = await self._propose(command)
        return bool(result.payload[0]), result.revision

    def watch(self, prefix: bytes, start_revision: int) -> AsyncIterator[WatchEvent]:
        """Events of keys with that prefix from a revision on; raises Compacted if it is gone."""
        refuse_reserved(prefix)
        return self._gateway.hub.watch(prefix, start_revision)

    # ------------------------------------------------------------ nodes

    async def register_node(
        self, registration: NodeRegistration, disowned: Sequence[tuple[str, int]] = ()
    ) -> NodeRegistration:
        """The registration with its broker epoch. Raises MetaError."""
        request = register_request(registration, disowned)
        return node_of(await self._write(lambda t: t.cluster.RegisterNode, request))

    async def nodes(self) -> Sequence[NodeRegistration]:
        """All registered nodes; linearizable. Raises MetaError."""
        await self._barrier(False)
        return [decode_node(key, row.value) for key, row in self._cache.scan(NODE_PREFIX)]

    # ------------------------------------------------------------ topics

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str | int | None],
        *,
        replication: int = 1,
        min_in_sync: int = 1,
    ) -> TopicDescription:
        """The new topic. Raises AlreadyExists, InvalidArgument and other MetaErrors."""
        request = create_request(name, partitions, config, replication, min_in_sync)
        return topic_of(await self._write(lambda t: t.topics.Create, request))

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | int | None] | None = None,
        replication: int | None = None,
        min_in_sync: int | None = None,
    ) -> TopicDescription:
        """The topic as it is now. Raises NotFound, InvalidArgument and other MetaErrors."""
        request = alter_request(name, partitions, config, replication, min_in_sync)
        return topic_of(await self._write(lambda t: t.topics.Alter, request))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises NotFound and other MetaErrors."""
        await self._propose(DeleteTopic(name))

    async def topics(self) -> tuple[int, Sequence[TopicDescription]]:
        """(revision, all topics); linearizable. Raises MetaError."""
        await self._barrier(False)
        return self._cache.revision, [topic for topic, _ in all_topics(self._cache)]

    async def watch_partitions(
        self, start_revision: int
    ) -> AsyncIterator[TopicChange | PartitionsChange]:
        """Changes of topics, or of some partitions of them; raises Compacted."""
        batches = topic_changes(self._gateway.hub, self._cache, start_revision)
        async with contextlib.aclosing(batches):
            async for _, changes in batches:
                for change in changes:
                    yield change

    async def allocate_ids(self, kind: str, count: int) -> range:
        """`count` ids that no other call gets. Raises MetaError."""
        first = (await self._propose(AllocateIds(kind, count))).payload
        return range(first, first + count)

    async def close(self) -> None:
        """Nothing to close: the member is closed by its owner."""
