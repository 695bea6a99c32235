"""Fetches for blocking programs, each from the leader of its partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from lakemq.broker_core.api.errors import LakeMQError, NotLeader, Unavailable
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.cluster_view import (
    METADATA_LAG_S,
    ClusterView,
    ReadRoute,
    Route,
    is_lost,
)
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.notices import Notices


@dataclass(slots=True)
class _Call:
    """A fetch under way."""

    call: Any
    there: ReadRoute
    topic: str
    partition: int
    follow: bool
    left: bool = False
    """Ended because another node is to be asked."""


class SyncRoutes:
    """Who leads which partition, as refusals and metadata have told, and a channel to each. Safe to
    share between threads."""

    def __init__(
        self,
        channel: grpc.Channel,
        open_channel: Callable[[str], grpc.Channel],
    ) -> None:
        self._lock = threading.Lock()
        self._view = ClusterView()
        self._open = open_channel
        self._home: NativeStub = wire.native_stub(channel)
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[str, NativeStub] = {}
        self._told: Routes | None = None
        self._notices = Notices()
        self._calls: dict[int, _Call] = {}

    def close(self) -> None:
        """Close the channels to other nodes."""
        with self._lock:
            for channel in self._channels.values():
                channel.close()

    def route(self, topic: str, partition: int) -> Route:
        """Where to fetch a partition, as far as known."""
        with self._lock:
            route = self._view.route(topic, partition)
            if self._told is not None:
                told = self._told.leader_at(topic, partition)
                # Leader epochs only grow: the higher one is the newer knowledge.
                if told.epoch > route.epoch or (told.address and told.epoch == route.epoch):
                    return told
            return route

    def follow(self, routes: Routes) -> None:
        """Use the metadata of an asyncio client. Called on its event loop, twice does no harm."""
        routes.start()
        self._told = routes
        routes.watch(self._rerouted)

    def _rerouted(self) -> None:
        """End calls to former leaders, which may not be able to say that they are."""
        with self._lock:
            calls = list(self._calls.values())
        for each in calls:
            self._leave_if_rerouted(each)

    def _leave_if_rerouted(self, noted: _Call) -> None:
        there = self._way(noted.topic, noted.partition, noted.follow)
        newer = there.epoch > noted.there.epoch or there.follower or noted.there.follower
        if there.address != noted.there.address and newer:
            noted.left = True
            noted.call.cancel()

    def _way(self, topic: str, partition: int, follower: bool) -> ReadRoute:
        """`follower`: another replica than the leader's will do."""
        if follower and self._told is not None:
            near = self._told.read_route(topic, partition)
            if near.follower:
                return near
        return ReadRoute(*self.route(topic, partition), False)

    def learn(self, topic: str, partition: int, error: LakeMQError) -> bool:
        """Whether the error tells where to ask instead, or that it is worth asking again."""
        if not isinstance(error, NotLeader):
            return False
        with self._lock:
            self._view.learn(topic, partition, error)
        return True

    def stub(self, address: str) -> NativeStub:
        """Calls on the node there; empty: on the one that the client is connected to."""
        if not address:
            return self._home
        with self._lock:
            if address not in self._stubs:
                channel = self._channels[address] = self._open(address)
                self._stubs[address] = wire.native_stub(channel)
            return self._stubs[address]

    def fetch(
        self, request: pb.FetchRequest, opened: Callable[[object], bool], timeout_s: float
    ) -> Iterator[pb.FetchResponse]:
        """Answers of a Fetch, from the leader of the partition.

        `opened` is given every call that is made, and says whether to go on with it.
        """
        give_up_s = time.monotonic() + timeout_s
        behind_until_s = time.monotonic() + METADATA_LAG_S
        lost = False
        for pause_s in backoff_s():
            # A follower may know of a lower high watermark, where a bounded read would end.
            there = self._way(request.topic, request.partition, request.follow)
            if lost:
                there = there._replace(address="", follower=False)
            address, request.leader_epoch, request.follower = there
            if lost:  # the leadership may be another one by now
                request.leader_epoch, lost = 0, False
            call = self.stub(address).Fetch(request)
            if not opened(call):
                return
            noted = _Call(call, there, request.topic, request.partition, request.follow)
            with self._lock:
                self._calls[id(noted)] = noted
            # Metadata may have come since it was asked for the way.
            self._leave_if_rerouted(noted)
            try:
                for answer in call:
                    # Progress: the time-out counts from the last answer.
                    give_up_s = time.monotonic() + timeout_s
                    yield answer
                    # Behind the yield: only what the caller has taken is not asked for again.
                    request.offset = answer.next_offset
                    wire.note_epoch(request, answer.last_epoch)
                if not request.follow:
                    return
                if time.monotonic() > give_up_s:
                    raise Unavailable(f"{request.topic}/{request.partition}: no node serves it")
            except LakeMQError as error:
                if not noted.left:
                    self._check_again(request, there, error, give_up_s, behind_until_s)
                    lost = is_lost(there, error)
                    self._notices.tell(
                        "fetch", address,
                        text=f"reading {request.topic} partition {request.partition} broke off: "
                        f"{error}; it goes on from offset {request.offset}",
                    )  # fmt: skip
            finally:
                with self._lock:
                    del self._calls[id(noted)]
            time.sleep(pause_s)

    def _check_again(
        self,
        request: pb.FetchRequest,
        there: ReadRoute,
        failure: LakeMQError,
        give_up_s: float,
        behind_until_s: float,
    ) -> None:
        """Raises what a call failed with unless it is worth making again. `behind_until_s`: until
        when a node may not have heard of the topic."""
        if self._told is not None:
            self._told.avoid(request.topic, request.partition, there)
        again = (
            self.learn(request.topic, request.partition, failure)
            or (there.follower and failure.retriable)
            or is_lost(there, failure)
            or (
                self._may_lag(request.topic, there.address, failure)
                and time.monotonic() < behind_until_s
            )
        )
        if not again or time.monotonic() > give_up_s:
            raise failure

    def _may_lag(self, topic: str, address: str, failure: LakeMQError) -> bool:
        told = self._told
        if told is not None:
            return told.may_lag(failure, topic, address)
        return self._view.may_lag(failure, topic, address, time.monotonic())
