"""The client of a MetaService elsewhere: finds the leader, retries, keeps watches alive.

Every write carries (client id, sequence), so a retry after a lost answer is applied once. A failure
is only reported as ambiguous (`OutcomeUnknown`) when the time is up and some attempt may have been
applied.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from lakemq.meta_service.api.convert import (
    alter_request,
    change_of,
    create_request,
    key_value_of,
    node_of,
    register_request,
    status_of,
    topic_of,
)
from lakemq.meta_service.api.errors import MetaError, NoLeader, OutcomeUnknown, SessionExpired
from lakemq.meta_service.api.remote.auth_calls import AuthCalls
from lakemq.meta_service.api.remote.calls import Stub, Target
from lakemq.meta_service.api.remote.client_session import ClientSession
from lakemq.meta_service.api.remote.control_calls import ControlCalls
from lakemq.meta_service.api.remote.failures import Refused, error_of_failure
from lakemq.meta_service.api.remote.group_calls import GroupCalls
from lakemq.meta_service.api.remote.schema_calls import SchemaCalls
from lakemq.meta_service.api.remote.writes import Writes
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
from lakemq.meta_service.proto import auth_pb2_grpc as auth_rpc
from lakemq.meta_service.proto import meta_pb2 as pb
from lakemq.meta_service.proto import meta_pb2_grpc as rpc
from lakemq.meta_service.proto import schemas_pb2_grpc as schemas_rpc

MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.2
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


NODE_AGENT: Final = "lakemq-node"
"""What the client of a node says of itself."""
_OPERATOR_AGENT: Final = "lakemq"


class _Channel:
    """Implements `Target` over gRPC."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None, name: str, agent: str
    ) -> None:
        """`name`: what the certificate must name in place of the host; empty: the host. `agent`:
        what the client says of itself."""
        self.address = address
        plain = (*_OPTIONS, ("grpc.primary_user_agent", agent))
        options = (*plain, ("grpc.ssl_target_name_override", name)) if name else plain
        self._channel = (
            grpc.aio.secure_channel(address, credentials, options=options)
            if credentials is not None
            else grpc.aio.insecure_channel(address, options=plain)
        )
        self.kv: Any = rpc.KvStub(self._channel)
        self.cluster: Any = rpc.ClusterStub(self._channel)
        self.topics: Any = rpc.TopicsStub(self._channel)
        self.schemas: Any = schemas_rpc.SchemasStub(self._channel)
        self.auth: Any = auth_rpc.AuthStub(self._channel)
        self.maintenance: Any = rpc.MaintenanceStub(self._channel)
        self.writes = Writes(self.kv)

    async def close(self) -> None:
        await self.writes.close()
        await self._channel.close()


class RemoteClient(ControlCalls, AuthCalls, SchemaCalls, GroupCalls):
    """Implements `MetaClient` over gRPC. Addresses are `host:port` of any members."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_s: float = 10.0,
        attempt_s: float = 2.0,
        agent: str = _OPERATOR_AGENT,
    ) -> None:
        """`agent`: what it says of itself; `NODE_AGENT` for a node's own calls."""
        self._agent = agent
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._attempt_s = attempt_s
        self._addresses = list(addresses)
        self._targets: dict[str, Target] = {}
        self._current = self._addresses[0]
        self._session: ClientSession | None = None
        self._opening = asyncio.Lock()
        self._rng = random.Random(os.urandom(8))
        self.retries = 0

    # ------------------------------------------------------------ calling

    def _target(self) -> Target:
        return self._target_at(self._current, "")

    def _target_at(self, address: str, name: str) -> Target:
        target = self._targets.get(address)
        if target is None:
            target = self._targets[address] = _Channel(
                address, self._credentials, name, self._agent
            )
        return target

    def _turn(self, leader: str) -> None:
        """Go to the leader that was named, or to the next member."""
        if leader:
            if leader not in self._addresses:
                self._addresses.append(leader)
            self._current = leader
            return
        at = self._addresses.index(self._current) if self._current in self._addresses else -1
        self._current = self._addresses[(at + 1) % len(self._addresses)]

    async def _call(self, stub: Stub, request: Any) -> Any:
        """A call that may be repeated freely, until it is answered or the time is up."""
        return await self._attempts(stub, request, _Attempts())

    async def _once(self, stub: Stub, request: Any) -> Any:
        """A call that is repeated only where it was surely not carried out. An attempt may take
        the whole time: a group changes when a majority has stored the change."""
        return await self._attempts(stub, request, _OneAttempt(), self._timeout_s)

    async def _attempts(
        self, stub: Stub, request: Any, attempts: _Attempts, attempt_s: float = 0.0
    ) -> Any:
        """`attempt_s`: how long one may take; 0: as the client was told."""
        attempt_s = attempt_s or self._attempt_s
        deadline = time.monotonic() + self._timeout_s
        pause_s = _PAUSE_S
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise attempts.give_up()
            target = self._target()
            try:
                # Shorter than the whole time, so that a member that hangs leaves time to ask
                # another.
                return await stub(target)(request, timeout=min(attempt_s, left_s))
            except (grpc.aio.AioRpcError, Refused) as failure:
                error, leader = error_of_failure(failure)
                attempts.note(error)
            self.retries += 1
            if self._current == target.address:
                self._turn(leader)
            # A leader that was named is asked at once, without a pause.
            if not leader:
                await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _write(self, stub: Stub, request: Any) -> Any:
        """A command: applied once, whatever is lost on the way."""
        attempts = _Attempts()
        while True:
            session = self._session or await self._open_session()
            sequence = session.next()
            request.once.client_id = session.client_id
            request.once.sequence = sequence
            request.once.acknowledged = session.acknowledged
            try:
                return await self._attempts(stub, request, attempts)
            except SessionExpired as error:
                self._session = None if self._session is session else self._session
                # An earlier attempt may have been applied under the session that has ended, whose
                # results are gone.
                if attempts.ambiguous:
                    raise OutcomeUnknown(f"the outcome is unknown: {error}") from error
            finally:
                # Also after a failure: no attempt with this number comes any more, so its result
                # need not be kept.
                session.settle(sequence)

    async def _open_session(self) -> ClientSession:
        # Writes that come together share one session: each opening its own would leave the others'
        # behind.
        async with self._opening:
            if self._session is None:
                client_id = uuid.uuid4().bytes
                request = pb.OpenSessionRequest(client_id=client_id)
                try:
                    await self._call(lambda t: t.cluster.OpenSession, request)
                except MetaError as error:
                    if error.code != "ALREADY_EXISTS":  # an attempt whose answer was lost
                        raise
                self._session = ClientSession(client_id)
            return self._session

    # ------------------------------------------------------------ keys

    async def status(self) -> MetaStatus:
        """How the member that answers is. Raises MetaError."""
        return status_of(await self._call(lambda t: t.cluster.Status, pb.StatusRequest()))

    async def get(self, key: bytes, *, stale: bool = False) -> KeyValue | None:
        """The key's value; linearizable unless `stale`. Raises MetaError."""
        request = pb.GetRequest(key=key, stale=stale)
        response = await self._call(lambda t: t.kv.Get, request)
        return key_value_of(response.kvs[0]) if response.kvs else None

    async def scan(
        self, prefix: bytes, *, limit: int = 0, stale: bool = False
    ) -> tuple[int, Sequence[KeyValue]]:
        """Large scans take several calls: rows may then be newer than the revision."""
        found: list[KeyValue] = []
        revision, after, more = 0, b"", True
        while more and (not limit or len(found) < limit):
            request = pb.RangeRequest(
                prefix=prefix, limit=limit and limit - len(found), stale=stale, after=after
            )
            response = await self._call(lambda t: t.kv.Range, request)
            found.extend(map(key_value_of, response.kvs))
            revision = revision or response.revision
            more = response.more
            after = found[-1].key if found else b""
        return revision, found

    async def put(self, key: bytes, value: bytes) -> int:
        """The revision of the write, which is applied once. Raises MetaError."""
        request = pb.PutRequest(key=key, value=value)
        return int((await self._write(lambda t: t.writes.put, request)).revision)

    async def delete(self, key: bytes) -> int:
        """The revision after the write, whether or not the key was there. Raises MetaError."""
        request = pb.DeleteRequest(key=key)
        return int((await self._write(lambda t: t.writes.delete, request)).revision)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete]
    ) -> tuple[bool, int]:
        """(whether all compares held and `then` was done, revision). Raises MetaError."""
        request = pb.TxnRequest(
            compares=[pb.Compare(key=c.key, mod_revision=c.mod_revision) for c in compares],
            then=[
                pb.Operation(key=o.key, value=o.value if isinstance(o, Put) else None) for o in then
            ],
        )
        response = await self._write(lambda t: t.writes.txn, request)
        return response.held, response.revision

    def watch(self, prefix: bytes, start_revision: int) -> AsyncIterator[WatchEvent]:
        """Events of keys with that prefix, no gap, no repeat. Raises Compacted."""
        return self._watch(prefix, start_revision)

    async def _watch(self, prefix: bytes, start_revision: int) -> AsyncIterator[WatchEvent]:
        def request(revision: int) -> pb.WatchRequest:
            return pb.WatchRequest(prefix=prefix, start_revision=revision)

        async for response in self._stream(lambda t: t.kv.Watch, request, start_revision):
            for event in response.events:
                value = event.value if event.HasField("value") else None
                yield WatchEvent(response.revision, event.key, value)

    async def _stream(
        self, stub: Stub, request_from: Callable[[int], Any], start_revision: int
    ) -> AsyncIterator[Any]:
        """A stream that goes on at another member where it broke off, without gap or repeat.

        A revision may take several responses, of which the last one says `last`.
        """
        place = _Place(max(1, start_revision))
        while True:
            target = self._target()
            place.restart()
            try:
                async for response in stub(target)(request_from(place.revision)):
                    if place.is_new(response.revision, getattr(response, "last", True)):
                        yield response
            except grpc.aio.AioRpcError as failure:
                error, leader = error_of_failure(failure)
                if not error.retriable:
                    raise error from failure
                if self._current == target.address:
                    self._turn(leader)
            self.retries += 1
            await asyncio.sleep(_PAUSE_S * (1 + self._rng.random()))

    # ------------------------------------------------------------ nodes, topics, ids

    async def register_node(
        self, registration: NodeRegistration, disowned: Sequence[tuple[str, int]] = ()
    ) -> NodeRegistration:
        """The registration with its broker epoch. Raises AlreadyExists, CompareFailed."""
        request = register_request(registration, disowned)
        return node_of(await self._write(lambda t: t.cluster.RegisterNode, request))

    async def nodes(self) -> Sequence[NodeRegistration]:
        """All registered nodes by id."""
        response = await self._call(lambda t: t.cluster.ListNodes, pb.ListNodesRequest())
        return [node_of(node) for node in response.nodes]

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str | int | None],
        *,
        replication: int = 1,
        min_in_sync: int = 1,
    ) -> TopicDescription:
        """The new topic. Raises AlreadyExists, InvalidArgument."""
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
        """The topic as it is now. Raises NotFound, InvalidArgument."""
        request = alter_request(name, partitions, config, replication, min_in_sync)
        return topic_of(await self._write(lambda t: t.topics.Alter, request))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises NotFound."""
        await self._write(lambda t: t.topics.Delete, pb.DeleteTopicRequest(name=name))

    async def topics(self) -> tuple[int, Sequence[TopicDescription]]:
        """Large clusters take several calls: topics may then be newer than the revision."""
        found: list[TopicDescription] = []
        revision, more = 0, True
        while more:
            request = pb.ListTopicsRequest(after=found[-1].name if found else "")
            response = await self._call(lambda t: t.topics.List, request)
            found.extend(map(topic_of, response.topics))
            revision = revision or response.revision
            more = response.more
        return revision, found

    async def watch_partitions(
        self, start_revision: int
    ) -> AsyncIterator[TopicChange | PartitionsChange]:
        """Changes of topics, or of some partitions of them, no gap. Raises Compacted."""

        def request(revision: int) -> pb.WatchTopicsRequest:
            return pb.WatchTopicsRequest(start_revision=revision)

        async for change in self._stream(
            lambda t: t.topics.WatchPartitions, request, start_revision
        ):
            if change.name:
                yield change_of(change)

    async def allocate_ids(self, kind: str, count: int) -> range:
        """`count` ids that no other call gets."""
        request = pb.AllocateIdsRequest(kind=kind, count=count)
        response = await self._write(lambda t: t.cluster.AllocateIds, request)
        return range(response.first, response.first + count)

    async def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        targets, self._targets = list(self._targets.values()), {}
        for target in targets:
            await target.close()


class _Place:
    """How far a stream has come, across reconnections."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        """First revision of which not everything was seen."""
        self._seen = 0
        self._skip = 0

    def restart(self) -> None:
        """The stream begins again at `revision`."""
        # The member sends the revision again from its first response: as many as were seen are left
        # out.
        self._skip, self._seen = self._seen, 0

    def is_new(self, revision: int, last: bool) -> bool:
        """Whether this response was not seen before."""
        if revision > self.revision:
            self.revision, self._seen, self._skip = revision, 0, 0
        self._seen += 1
        new = self._seen > self._skip
        if last:
            self.revision, self._seen, self._skip = revision + 1, 0, 0
        return new


class _Attempts:
    """What is known about one call after some attempts."""

    def __init__(self) -> None:
        self.ambiguous = False
        self._last: MetaError = NoLeader("no member was asked")

    def note(self, error: MetaError) -> None:
        """Raises the error if trying again cannot help."""
        if not error.retriable:
            raise error
        self.ambiguous = self.ambiguous or not error.definite
        self._last = error

    def give_up(self) -> MetaError:
        if self.ambiguous:
            return OutcomeUnknown(f"the outcome is unknown: {self._last}")
        return self._last


class _OneAttempt(_Attempts):
    """Of a call that must not be made twice."""

    def note(self, error: MetaError) -> None:
        """Raises the error unless nothing was done, and trying again may help."""
        if not error.definite:
            raise error
        super().note(error)
