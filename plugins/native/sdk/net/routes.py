"""Follows a cluster's metadata and keeps a channel to every node that is needed, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from lakemq.broker_core.api.errors import LakeMQError, NotLeader
from lakemq.plugins.native.proto import metadata_pb2 as pb
from lakemq.plugins.native.proto.metadata_pb2_grpc import MetadataStub
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.cluster_view import ClusterView, Route
from lakemq.plugins.native.sdk.net.errors import Unimplemented
from lakemq.plugins.native.sdk.net.sequencing import backoff_s

if TYPE_CHECKING:  # exist in the stub files only
    from lakemq.plugins.native.proto.metadata_pb2_grpc import MetadataAsyncStub
    from lakemq.plugins.native.proto.native_pb2_grpc import NativeAsyncStub


class Routes:
    """Where to ask for each partition. What is not known is asked of the node that the client is
    connected to, which names the leader if it is another."""

    def __init__(
        self, channel: grpc.aio.Channel, open_channel: Callable[[str], grpc.aio.Channel]
    ) -> None:
        self.view = ClusterView()
        self._open = open_channel
        self._channel = channel
        self._stub: NativeAsyncStub = wire.native_stub(channel)
        self._metadata: MetadataAsyncStub = MetadataStub(channel)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, NativeAsyncStub] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the metadata from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Close the channels to other nodes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    def route(self, topic: str, partition: int) -> Route:
        """Where to ask for a partition, as far as known."""
        return self.view.route(topic, partition)

    def learn(self, topic: str, partition: int, error: NotLeader) -> bool:
        """Take the leader that a node named; whether that was new."""
        self.start()
        return self.view.learn(topic, partition, error)

    def stub(self, address: str) -> NativeAsyncStub:
        """Calls on the node there; empty: on the one that the client is connected to."""
        if not address:
            return self._stub
        stub = self._stubs.get(address)
        if stub is None:
            stub = self._stubs[address] = wire.native_stub(self.channel(address))
        return stub

    def channel(self, address: str) -> grpc.aio.Channel:
        """To the node there; empty: to the one that the client is connected to."""
        if not address:
            return self._channel
        if address not in self._channels:
            self._channels[address] = self._open(address)
        return self._channels[address]

    async def _follow(self) -> None:
        pauses = backoff_s()
        while True:
            call = self._metadata.WatchMetadata(pb.WatchMetadataRequest())
            try:
                async for update in call:
                    pauses = backoff_s()
                    self._told(update)
            except Unimplemented:
                # Not retried: the broker would be asked for ever for a method that it lacks.
                return  # an older broker: only errors say who leads
            except LakeMQError:
                pass
            finally:
                call.cancel()
            await asyncio.sleep(next(pauses))

    def _told(self, update: pb.MetadataUpdate) -> None:
        view = self.view
        if update.whole:
            view.connected(update.node_id)
        if update.nodes:
            view.set_nodes({each.node_id: each.address for each in update.nodes})
        for topic in update.topics:
            view.set_topic(
                topic.name, [(each.leader, each.leader_epoch) for each in topic.partitions]
            )
        for name in update.gone:
            view.remove_topic(name)
