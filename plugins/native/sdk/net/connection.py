"""What all parts of an asyncio client share: channels to the nodes of a cluster, who leads which
partition, and what topics there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import grpc

from lakemq.broker_core.api.errors import LakeMQError, UnknownTopic
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.net.addresses import Bootstrap
from lakemq.plugins.native.sdk.net.channels import settle
from lakemq.plugins.native.sdk.net.login import AsyncLogin, Login, with_async_login
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.net.tls import Tls, open_async_channel
from lakemq.plugins.native.sdk.types import TopicOffsets

if TYPE_CHECKING:  # exists in the stub file only
    from lakemq.plugins.native.proto.native_pb2_grpc import NativeAsyncStub


LEADERS_S: Final = 5.0
"""Enough for a leader that is busy: another node leads by then in place of one that is gone."""


class Connection:
    """The gRPC side of a `Client`. Every method raises `LakeMQError`s."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        timeout_s: float,
        tls: Tls | None,
        login: Login | None,
        rack: str = "",
    ) -> None:
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        """Of every call but streams."""
        self._logins: list[AsyncLogin] = []
        self._tls, self._login = tls, login
        self.channel = self._open(bootstrap)
        """To the node that the client is connected to."""
        self.stub: NativeAsyncStub = wire.native_stub(self.channel)
        self.routes = Routes(self.channel, self._open, bootstrap, rack=rack)
        """Who leads which partition, and a channel to each."""

    def _open(self, address: str) -> grpc.aio.Channel:
        plain = open_async_channel(address, self._tls, self._login)
        channel, session = with_async_login(plain, self._login, address)
        if session is not None:
            self._logins.append(session)
        return channel

    async def log_in(self) -> None:
        """Get a token, where one is needed, before the first call."""
        if self._logins:
            await self._logins[0].ensure()

    async def close(self) -> None:
        """End every call."""
        for session in self._logins:
            await session.close()
        await self.routes.close()
        await self.channel.close()
        await settle()

    async def topics(self, *, leaders_s: float | None = None) -> list[TopicOffsets]:
        """All topics, by name. `leaders_s`: as of `describe_topic`."""
        return await self._describe([], leaders_s)

    async def describe_topic(self, name: str, *, leaders_s: float | None = None) -> TopicOffsets:
        """One topic, as its partitions' leaders describe it. Raises UnknownTopic.

        `leaders_s`: how long leaders are waited for that are other nodes (None: as for any call).
        Partitions of those that do not answer are `offline`, and their offsets are not those of a
        leader: who reads up to the high watermark must wait for it.
        """
        for pause_s in backoff_s():
            try:
                return (await self._describe([name], leaders_s))[0]
            except UnknownTopic as error:
                # A topic that this client has just created, perhaps at another node.
                if not self.routes.may_lag(error, name, ""):
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("backoff never ends")

    async def offsets_for_timestamp(
        self, topic: str, timestamp_ms: int, described: TopicOffsets | None = None
    ) -> dict[int, int]:
        """Partition -> first offset whose record is not older; the high watermark if none is."""
        request = pb.OffsetsForTimestampRequest(topic=topic, timestamp_ms=timestamp_ms)
        answer = await self.routes.stub("").OffsetsForTimestamp(request, timeout=self.timeout_s)
        offsets = dict(answer.offsets)
        if described is None:
            described = await self.describe_topic(topic)
        # A node answers for the partitions that it leads; the rest is asked of their leaders. One
        # without an address is the node that describes, which may be another by now.
        others = {each.leader_address for each in described.partitions
                  if each.partition not in offsets}  # fmt: skip
        for address in others:
            stub = self.routes.stub(address)
            offsets |= (await stub.OffsetsForTimestamp(request, timeout=self.timeout_s)).offsets
        return offsets

    async def _describe(self, names: Sequence[str], leaders_s: float | None) -> list[TopicOffsets]:
        request = pb.DescribeRequest(topics=names)
        answer = await self.routes.stub("").Describe(request, timeout=self.timeout_s)
        elsewhere = wire.led_elsewhere(answer)
        if elsewhere:
            patience_s = min(self.timeout_s, leaders_s or self.timeout_s)
            asked = [self._describe_at(*each, patience_s) for each in elsewhere.items()]
            # All leaders at once: one that is away costs its time-out once, and its partitions are
            # shown as offline.
            others = await asyncio.gather(*asked)
            wire.merge_described(answer, [each for each in others if each is not None])
        return [wire.topic_offsets(topic) for topic in answer.topics]

    async def _describe_at(
        self, address: str, names: Sequence[str], timeout_s: float
    ) -> pb.DescribeResponse | None:
        """None: no answer."""
        request = pb.DescribeRequest(topics=names)
        try:
            return await self.routes.stub(address).Describe(request, timeout=timeout_s)
        except LakeMQError:
            return None
