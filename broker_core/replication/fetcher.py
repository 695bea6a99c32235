"""A follower's end of replication: one stream to each node that leads something which this node
follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lakemq.broker_core.cluster.replica_frames import SlotAsk, SlotOpen
from lakemq.broker_core.cluster.streams import LeaderStream
from lakemq.broker_core.replication.following import FollowingPartition
from lakemq.broker_core.replication.slots import FollowerSlots, SlotKey
from lakemq.broker_core.replication.types import Place

_log: Final = logging.getLogger(__name__)

Follow = Callable[[str, Callable[[LeaderStream], Awaitable[None]]], Callable[[], None]]
"""Keeps a stream to a node: as `Peers.follow`."""


class Fetcher:
    """All that this node follows at one leader. Lives on the event loop."""

    def __init__(self, leader: str, follow: Follow) -> None:
        self.leader = leader
        self._partitions: dict[Place, FollowingPartition] = {}
        self._session: _Session | None = None
        self.bytes_in = 0
        """Of batches received so far."""
        self._end = follow(leader, self._serve)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to follow here."""
        return not self._partitions

    def add(self, following: FollowingPartition) -> None:
        """Follow this partition, with the stream that is there or as soon as there is one."""
        self._partitions[following.place] = following
        if self._session is not None:
            self._session.open(following)

    def remove(self, following: FollowingPartition) -> None:
        """Follow it no more."""
        if self._partitions.get(following.place) is following:
            del self._partitions[following.place]
            if self._session is not None:
                self._session.close(following)

    def close(self) -> None:
        """End the stream."""
        self._end()

    async def _serve(self, stream: LeaderStream) -> None:
        session = self._session = _Session(stream)
        try:
            for following in tuple(self._partitions.values()):
                session.open(following)
            while (message := await stream.receive()) is not None:
                for send in message.sends:
                    self.bytes_in += len(send.batches)
                    partition = session.following(send.slot)
                    if partition is not None:
                        partition.received(send)
                    elif send.batches:
                        stream.free(len(send.batches))
        finally:
            if self._session is session:
                self._session = None
            session.end()


class _Session:
    """One stream, from its begin to its end. Implements `Asking`."""

    def __init__(self, stream: LeaderStream) -> None:
        self._stream = stream
        self._numbers = FollowerSlots()
        self._open: dict[int, FollowingPartition] = {}
        self._asks: dict[FollowingPartition, bool] = {}
        """Partition -> whether it is asked again, though nothing has changed."""
        self._ended = False

    def following(self, slot: int) -> FollowingPartition | None:
        """What a slot is open for; None: it was closed."""
        return self._open.get(slot)

    def open(self, following: FollowingPartition) -> None:
        """Give the partition a slot, and begin."""
        place, epoch = following.place, following.epoch
        self._close(place)
        number = self._numbers.open(SlotKey(place.topic_id, place.partition, epoch))
        self._open[number] = following
        self._stream.open(SlotOpen(number, place.topic_id, place.partition, epoch))
        following.begin(self)

    def close(self, following: FollowingPartition) -> None:
        """See `Asking`."""
        number = self._numbers.number(*following.place)
        if number is not None and self._open.get(number) is following:
            self._close(following.place)
        self._asks.pop(following, None)

    def _close(self, place: Place) -> None:
        number = self._numbers.close(*place)
        if number is not None:
            self._open.pop(number, None)
            self._stream.close(number)

    def ask_soon(self, following: FollowingPartition, again: bool) -> None:
        """See `Asking`."""
        if not self._asks:
            asyncio.get_running_loop().call_soon(self._ask)
        self._asks[following] = again or self._asks.get(following, False)

    def _ask(self) -> None:
        asks, self._asks = self._asks, {}
        if self._ended:
            return
        for following, again in asks.items():
            number = self._numbers.number(*following.place)
            ask = following.ask()
            if number is None or ask is None or self._open.get(number) is not following:
                continue
            if self._numbers.changed(number, ask) or again:
                self._stream.ask(SlotAsk(number, *ask))

    def free(self, size_bytes: int) -> None:
        """See `Asking`."""
        if not self._ended:
            self._stream.free(size_bytes)

    def end(self) -> None:
        """The stream is gone."""
        self._ended = True
        for following in self._open.values():
            following.end_stream()
        self._open.clear()
