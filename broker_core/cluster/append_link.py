"""The `Append` stream to one other node: batches out, those of one turn of the loop together, and
their answers in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Acks, AppendResult
from lakemq.broker_core.cluster.append_frames import (
    APPENDS_TARGET_BYTES,
    ENTRIES_MAX,
    AppendRequest,
    decode_answers,
    request_bytes,
)
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.streams import ByteStream, first_of, read_soon

AppendAnswered = Callable[[AppendResult | LakeMQError], None]


class AppendLink:
    """Opened again whenever it ends. What was under way then is told by `on_lost`, not answered;
    who uses the link sends it again."""

    def __init__(
        self, peers: Peers, node: str, on_up: Callable[[], None], on_lost: Callable[[], None]
    ) -> None:
        self._node = node
        self.is_up = False
        """Whether `append` may be called."""
        self._on_up = on_up
        self._on_lost = on_lost
        self._next_id = 0
        self._answered: dict[int, AppendAnswered] = {}
        self._outbox: deque[AppendRequest] = deque()
        self._wake = asyncio.Event()
        self.close = peers.keep(node, "Append", self._talk)
        """End the link."""

    def append(
        self,
        topic_id: str,
        partition: int,
        leader_epoch: int,
        acks: Acks,
        batch: bytes,
        answered: AppendAnswered,
    ) -> None:
        """Send a batch soon, behind those before. `answered` is called once unless the link is
        lost."""
        self._next_id += 1
        self._answered[self._next_id] = answered
        self._outbox.append(
            AppendRequest(self._next_id, topic_id, partition, leader_epoch, acks, batch)
        )
        self._wake.set()

    async def _talk(self, stream: ByteStream) -> None:
        self.is_up = True
        try:
            # As soon as the loop turns: who is told may send, and that must not be in this call.
            asyncio.get_running_loop().call_soon(self._on_up)
            await first_of(self._read(stream), self._write(stream))
        finally:
            self.is_up = False
            self._answered.clear()
            self._outbox.clear()
            self._on_lost()

    async def _read(self, stream: ByteStream) -> None:
        while (data := await read_soon(stream, self._node)) is not None:
            for answer in decode_answers(data):
                answered = self._answered.pop(answer.id, None)
                if answered is not None:
                    answered(answer.outcome)

    async def _write(self, stream: ByteStream) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what else this turn of the loop appends goes with it
            self._wake.clear()
            while self._outbox:
                await stream.write(self._message())

    def _message(self) -> bytes:
        parts: list[bytes | memoryview] = []
        size = 0
        for _ in range(min(len(self._outbox), ENTRIES_MAX)):
            if parts and size + len(self._outbox[0].batch) > APPENDS_TARGET_BYTES:
                break
            request = self._outbox.popleft()
            size += len(request.batch)
            parts += request_bytes(request)
        return b"".join(parts)


class AppendLinks:
    """One link to each node that is asked for."""

    def __init__(
        self, peers: Peers, on_up: Callable[[str], None], on_lost: Callable[[str], None]
    ) -> None:
        """Both are called with the node's id."""
        self._peers = peers
        self._on_up = on_up
        self._on_lost = on_lost
        self._links: dict[str, AppendLink] = {}

    def to(self, node: str) -> AppendLink:
        """The link to a node; opened if there is none, and then not up yet."""
        link = self._links.get(node)
        if link is None:
            up, lost = partial(self._on_up, node), partial(self._on_lost, node)
            link = self._links[node] = AppendLink(self._peers, node, up, lost)
        return link

    def keep_only(self, nodes: set[str]) -> None:
        """End the links to all others."""
        for node in self._links.keys() - nodes:
            self._links.pop(node).close()
