"""A follower whose every word a test gives."""

from __future__ import annotations

import asyncio
from typing import Any

from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.replica_frames import (
    ReplicaAsk,
    SlotSend,
    decode_send,
    encode_ask,
)
from lakemq.broker_core.cluster.streams import FollowerStream
from tests.support.replication.nodes import TestCluster


class Script:
    """Takes all that the leader, node `a`, sends. Implements `ByteStream`."""

    def __init__(self, cluster: TestCluster, node: str, epoch: int) -> None:
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sends: list[SlotSend] = []
        self.stream = FollowerStream(Peer(node, epoch), self)
        serving = self.stream.run(cluster.nodes["a"].replication.serve)
        self.serving = asyncio.ensure_future(serving)
        cluster.streams.append(self.serving)
        cluster.tasks.add(self.serving)

    async def read(self) -> bytes | None:
        return await self.inbox.get()

    async def write(self, data: bytes) -> None:
        self.sends += decode_send(data).sends

    def say(self, **parts: Any) -> None:
        self.inbox.put_nowait(encode_ask(ReplicaAsk(**parts)))
