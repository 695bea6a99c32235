"""The gRPC edge of `metadata.proto`: what clients follow to find their way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.types import NodeInfo, Operation, Principal, Resource, TopicInfo
from lakemq.plugins.native.proto import metadata_pb2 as pb
from lakemq.plugins.native.proto.metadata_pb2_grpc import MetadataServicer
from lakemq.plugins.native.server.authentication import Context, principal_of

_TOPICS_PER_UPDATE: Final = 1000
_BEAT_S: Final = 1.0
"""A client hears something at least so often, and that this node may not lead any more."""
_NEXT_WITHIN_MS: Final = int(1500 * _BEAT_S)


class _Watcher:
    """What one client has yet to hear of: names only, so it grows with topics, not with time."""

    def __init__(self, wanted: frozenset[str], *, replicas: bool) -> None:
        self.wanted = wanted
        self.replicas = replicas
        self.changed: dict[str, None] = {}
        self.told: set[str] = set()
        """Topics that it knows of: it hears of no other that it is gone."""
        self.nodes_changed = True
        self.woken = asyncio.Event()

    def note(self, name: str) -> None:
        if not self.wanted or name in self.wanted:
            self.changed[name] = None
            self.woken.set()

    def note_nodes(self) -> None:
        self.nodes_changed = True
        self.woken.set()


class MetadataService(MetadataServicer):
    """Implements `metadata.proto`; its docstrings are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._watchers: set[_Watcher] = set()
        self._stopping = False
        self._removals: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to follow topics and nodes."""
        self._removals = [
            self._broker.watch_topics(self._topic_changed),
            self._broker.watch_nodes(self._nodes_changed),
        ]

    async def stop(self) -> None:
        """End following, and all watchers."""
        self._stopping = True
        for remove in self._removals:
            remove()
        for watcher in self._watchers:
            watcher.woken.set()

    def _nodes_changed(self) -> None:
        for watcher in self._watchers:
            watcher.note_nodes()

    def _topic_changed(self, name: str, _: TopicInfo | None) -> None:
        for watcher in self._watchers:
            watcher.note(name)

    async def WatchMetadata(
        self, request: pb.WatchMetadataRequest, context: Context
    ) -> AsyncIterator[pb.MetadataUpdate]:
        """The topics and nodes that the caller asks for, and then each change of them, until the
        call ends; an empty update where nothing changes. Raises Unavailable."""
        principal = await principal_of(self._broker, context)
        watcher = _Watcher(frozenset(request.topics), replicas=request.replicas)
        for topic in self._broker.topics():
            watcher.note(topic.name)
        # No await lies between the list of topics and this: no change is missed.
        self._watchers.add(watcher)
        whole = True
        try:
            while not self._stopping:
                # Before the look at what changed: what changes from now on wakes it again.
                watcher.woken.clear()
                if not self._broker.in_touch():
                    raise Unavailable(
                        f"{self._broker.node_id} has lost the MetaService: others may lead by now"
                    )
                yield self._update(watcher, principal, whole)
                whole = False
                if not watcher.changed:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_BEAT_S):
                            await watcher.woken.wait()
        finally:
            self._watchers.discard(watcher)

    def _update(self, watcher: _Watcher, principal: Principal, whole: bool) -> pb.MetadataUpdate:
        names = list(watcher.changed)[:_TOPICS_PER_UPDATE]
        for name in names:
            del watcher.changed[name]
        update = pb.MetadataUpdate(
            cluster_id=self._broker.cluster_id,
            node_id=self._broker.node_id,
            whole=whole,
            next_within_ms=_NEXT_WITHIN_MS,
        )
        if watcher.nodes_changed:
            watcher.nodes_changed = False
            update.nodes.extend(_node(each, watcher.replicas) for each in self._broker.nodes())
        for topic in self._there(names, principal):
            update.topics.append(_topic(topic, watcher.replicas))
        told = {topic.name for topic in update.topics}
        # A topic that the caller may not describe any more is gone for it.
        gone = [name for name in names if name not in told and name in watcher.told]
        update.gone.extend(gone)
        watcher.told |= told
        watcher.told.difference_update(gone)
        return update

    def _there(self, names: Iterable[str], principal: Principal) -> Iterable[TopicInfo]:
        """Those that exist and may be described by the caller."""
        for name in names:
            with suppress(LakeMQError):
                topic = self._broker.topic(name)
                self._broker.authorize(principal, Operation.DESCRIBE, Resource("topic", name))
                yield topic


def _node(node: NodeInfo, replicas: bool) -> pb.NodeAddress:
    return pb.NodeAddress(
        node_id=node.node_id,
        address=node.addresses.get("native", ""),
        state=node.state,
        rack=node.rack if replicas else "",
    )


def _topic(topic: TopicInfo, replicas: bool) -> pb.TopicLeaders:
    return pb.TopicLeaders(
        name=topic.name,
        topic_id=topic.topic_id,
        revision=topic.revision,
        partitions=[
            pb.PartitionLeader(
                leader=each.leader or "",
                leader_epoch=each.epoch,
                in_sync=each.in_sync if replicas else (),
            )
            for each in topic.leaders
        ],
    )
