"""Follows a cluster's metadata and keeps a channel to every node that is needed, for asyncio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable
from lakemq.plugins.native.proto import metadata_pb2 as pb
from lakemq.plugins.native.proto.metadata_pb2_grpc import MetadataStub
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.cluster_view import ClusterView, ReadRoute, Route
from lakemq.plugins.native.sdk.net.errors import Unimplemented
from lakemq.plugins.native.sdk.net.guide_channel import GuideChannel
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.notices import Notices
from lakemq.plugins.native.sdk.telemetry import ClientTelemetry

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.native_pb2_grpc import NativeAsyncStub

T = TypeVar("T")
SILENT_S: Final = 3.0
"""A node whose metadata stream says nothing for so long is left for another."""
_FIRST_S: Final = 1.5
_FIRST_MAX_S: Final = 6.0
"""How long a node has to begin with its metadata: less is asked of it than in later rounds."""


class Routes:
    """Where to ask for each partition. What is not known is asked of the *guide*: the node that the
    client is connected to or, when that goes quiet, another; it names the leader if it leads not
    itself."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        open_channel: Callable[[str], grpc.aio.Channel],
        bootstrap: str,
        *,
        silent_s: float = SILENT_S,
        first_s: float = _FIRST_S,
        rack: str = "",
    ) -> None:
        """`bootstrap`: addresses with commas between, to which `channel` leads. `silent_s`: a node
        that says nothing for so long is left. `first_s`: what another one has to answer. `rack`:
        of this client, which streams are read from where a replica is there."""
        self.view = ClusterView()
        self._rack = rack
        self._open = open_channel
        self._channel = channel
        self.guide = GuideChannel(channel)
        """To the node that tells metadata: the one that the client is connected to until that goes
        quiet."""
        self._bootstrap = bootstrap.split(",")
        # Of several, gRPC has chosen one: which, the view knows once that has answered.
        self._guide_address = bootstrap
        self._silent_s, self._first_s = silent_s, first_s
        self.notices = Notices()
        """What is told of connections and leaders."""
        self.telemetry: ClientTelemetry | None = None
        """Set by the client; None: no spans, no metrics."""
        self._followers: set[weakref.WeakMethod[Callable[[], None]]] = set()
        self._stub: NativeAsyncStub = wire.native_stub(self.guide)
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

    def read_route(self, topic: str, partition: int) -> ReadRoute:
        """Where to read a stream of a partition from, as far as known."""
        return self.view.read_route(topic, partition, self._rack, monotonic())

    def reads_elsewhere(self, topic: str, partition: int, there: ReadRoute) -> bool:
        """Whether it should be read from another place than `there` by now."""
        found = self.read_route(topic, partition)
        if found.follower or there.follower:
            return found.address != there.address
        return self.view.led_elsewhere(topic, partition, there.address)

    def avoid(self, topic: str, partition: int, there: ReadRoute) -> None:
        """The partition can't be read `there` now, if that is a follower."""
        if there.follower:
            self.view.avoid(topic, partition, there.address, monotonic())

    def leader_at(self, topic: str, partition: int) -> Route:
        """As `route`, where empty is the node that the client is connected to, not the guide; safe
        to call from any thread."""
        moved = self.guide.current is not self._channel
        return (self.view.leader_at if moved else self.view.route)(topic, partition)

    def learn(self, topic: str, partition: int, error: NotLeader) -> bool:
        """Take the leader that a node named; whether that was new."""
        self.start()
        is_new = self.view.learn(topic, partition, error)
        if is_new:
            self.notices.tell(
                "leader", topic, str(partition),
                text=f"{topic} partition {partition} is led by node {error.leader} now "
                f"(epoch {error.epoch})",
            )  # fmt: skip
        return is_new

    def may_lag(self, error: LakeMQError, topic: str, address: str) -> bool:
        """As `ClusterView.may_lag`, now; safe to call from any thread."""
        return self.view.may_lag(error, topic, address, monotonic())

    def stub(self, address: str) -> NativeAsyncStub:
        """Calls on the node there; empty: on the guide."""
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

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call a method when metadata has changed, from now on until its object is collected."""
        self._followers.add(weakref.WeakMethod(on_change, self._followers.discard))

    async def _follow(self) -> None:
        """Metadata of one node at a time. Another one that tells it instead is asked what is not
        known from then on."""
        pauses = backoff_s()
        # The guide comes first, and last of each further round.
        waiting, first_s = [""], self._first_s
        while True:
            address = waiting.pop(0)
            try:
                if await self._watch(address, first_s):
                    pauses, first_s, waiting = backoff_s(), self._first_s, []
            except Unimplemented:
                # Not retried: the broker would be asked for ever for a method that it lacks.
                if not address:
                    return  # an older broker: only errors say who leads
            if not waiting:
                waiting = [*self._others(), ""]
                # On a busy machine or a long way: an answer may take longer.
                first_s = min(2 * first_s, _FIRST_MAX_S)
            await asyncio.sleep(next(pauses))

    def _others(self) -> list[str]:
        """Where metadata may be had but from the guide."""
        guide = (self._guide_address, self.view.address_of(self.view.node_id))
        known = dict.fromkeys([*self._bootstrap, *self.view.addresses()])
        return [each for each in known if each and each not in guide]

    async def _watch(self, address: str, first_s: float) -> bool:
        """Follow what the node there tells until it ends, or is silent for too long; whether it
        has told anything. Raises Unimplemented."""
        told = False
        channel = self.channel(address) if address else self.guide.current
        call: Any = None
        try:
            login = getattr(channel, "login", None)
            async with asyncio.timeout(first_s):
                # Streams can't log in themselves.
                if login is not None:
                    await login.ensure()
            asked = pb.WatchMetadataRequest(replicas=bool(self._rack))
            call = MetadataStub(channel).WatchMetadata(asked)
            limit_s: float | None = first_s
            while True:
                async with asyncio.timeout(limit_s):
                    update: pb.MetadataUpdate = await anext(call)
                if address and not told:
                    self.guide.switch(channel)
                    former = self._guide_address
                    self.notices.tell(
                        "guide", text=f"{address} tells metadata now; {former} did not answer"
                    )
                    self._guide_address = address
                told = True
                self._told(update)
                # An older broker is silent while nothing changes.
                beat_s = update.next_within_ms / 1000
                limit_s = max(self._silent_s, 2 * beat_s) if beat_s else None
        except Unimplemented:
            raise
        except (LakeMQError, TimeoutError, StopAsyncIteration):
            return told
        finally:
            if call is not None:
                call.cancel()

    def _told(self, update: pb.MetadataUpdate) -> None:
        view = self.view
        version = view.version
        if update.whole:
            view.connected(update.node_id)
        if update.nodes:
            view.set_nodes(
                {each.node_id: each.address for each in update.nodes},
                {each.node_id: each.rack for each in update.nodes if each.state == "active"},
                [each.node_id for each in update.nodes if each.state == "fenced"],
            )
        for topic in update.topics:
            view.set_topic(
                topic.name,
                [(each.leader, each.leader_epoch) for each in topic.partitions],
                [tuple(each.in_sync) for each in topic.partitions] if self._rack else (),
            )
        for name in update.gone:
            view.remove_topic(name)
        # Without a change it only shows that the node is there. Nothing else would bring readers
        # back to a follower that they have avoided for a time.
        if not view.forgive(monotonic()) and view.version == version:
            return
        for follower in list(self._followers):
            on_change = follower()
            if on_change is not None:
                on_change()


class Led:
    """A call that ends when metadata says that another node is to be asked. Keep it as long
    as the call is read."""

    def __init__(
        self, routes: Routes, call: Any, route: ReadRoute, topic: str, partition: int
    ) -> None:
        self._routes, self._call, self._route = routes, call, route
        self._place = (topic, partition)
        routes.watch(self._rerouted)

    def _rerouted(self) -> None:
        if self._routes.reads_elsewhere(*self._place, self._route):
            self._call.end(NotLeader("another node is to be read from by now"))


class Heard:
    """Waits for the answer of a node as long as metadata says that the node is there."""

    def __init__(self, routes: Routes, address: str) -> None:
        """`address`: of the node; empty: the guide."""
        self._routes, self._address = routes, address
        self._channel = routes.guide.current
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        routes.watch(self._look)

    def _look(self) -> None:
        routes = self._routes
        if self._address:
            gone = routes.view.is_fenced(self._address)
        else:
            gone = routes.guide.current is not self._channel
        if gone and not self._gone.done():
            self._gone.set_result(None)

    async def answer(self, call: Awaitable[T]) -> T:
        """What `call`, made on that node, returns. Raises Unavailable once the node is fenced or,
        as the guide, was left: what the call did there is not known."""
        asked = asyncio.ensure_future(call)
        try:
            waiting: list[asyncio.Future[Any]] = [asked, self._gone]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            who = f"the node at {self._address}" if self._address else "the node that was asked"
            raise Unavailable(f"{who} is not heard any more")
        finally:
            asked.cancel()
            await asyncio.wait([asked])
