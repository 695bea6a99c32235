"""The `Fetch` stream to one other node: requests of this node's readers out, those of one turn of
the loop together, and their answers in."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.api.types import FetchResult
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.reading.fetch_frames import (
    REQUESTS_MAX,
    FetchRequest,
    decode_answer,
    encode_requests,
)
from lakemq.broker_core.cluster.streams import ByteStream, first_of, read_soon

IDLE_S: Final = 30.0
"""A link without a request for so long is closed."""


class FetchLink:
    """Opened again whenever it ends; what was under way then fails with Unavailable."""

    def __init__(self, peers: Peers, node: str) -> None:
        self.last_used_s = asyncio.get_running_loop().time()
        self._node = node
        self._next_id = 0
        self._asked: dict[int, asyncio.Future[FetchResult]] = {}
        self._outbox: deque[FetchRequest] = deque()
        self._up = asyncio.Event()
        self._wake = asyncio.Event()
        self._end = peers.keep(node, "Fetch", self._talk)

    @property
    def idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._asked

    def close(self) -> None:
        """End the link; what is under way fails."""
        self._end()
        self._fail()

    async def ask(self, request: FetchRequest, connect_s: float) -> FetchResult:
        """Its number is set here. Raises what the other node answers; Unavailable when the link
        is not up within `connect_s`, or is lost. Takes what time the other node takes."""
        loop = asyncio.get_running_loop()
        self.last_used_s = loop.time()
        if not self._up.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(connect_s):
                    await self._up.wait()
        if not self._up.is_set():
            raise Unavailable(f"node {self._node} can't be reached")
        self._next_id += 1
        number = self._next_id
        answered: asyncio.Future[FetchResult] = loop.create_future()
        self._asked[number] = answered
        self._outbox.append(request._replace(id=number))
        self._wake.set()
        try:
            return await answered
        finally:
            # A late answer to one that was given up is dropped.
            self._asked.pop(number, None)
            self.last_used_s = loop.time()

    async def _talk(self, stream: ByteStream) -> None:
        self._up.set()
        try:
            await first_of(self._read(stream), self._write(stream))
        finally:
            self._up.clear()
            self._outbox.clear()
            self._fail()

    def _fail(self) -> None:
        for answered in self._asked.values():
            if not answered.done():
                answered.set_exception(Unavailable(f"the link to node {self._node} was lost"))

    async def _read(self, stream: ByteStream) -> None:
        while (data := await read_soon(stream, self._node)) is not None:
            if not data:
                continue
            answer = decode_answer(data)
            answered = self._asked.get(answer.id)
            if answered is None or answered.done():
                continue
            if isinstance(answer.outcome, LakeMQError):
                answered.set_exception(answer.outcome)
            else:
                answered.set_result(answer.outcome)

    async def _write(self, stream: ByteStream) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what else this turn of the loop asks goes with it
            self._wake.clear()
            while self._outbox:
                some = [self._outbox.popleft() for _ in range(min(REQUESTS_MAX, len(self._outbox)))]
                await stream.write(encode_requests(some))


class FetchLinks:
    """One link to each node that is asked."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._links: dict[str, FetchLink] = {}
        self._tidying: asyncio.TimerHandle | None = None

    def to(self, node: str) -> FetchLink:
        """The link to a node; opened if there is none."""
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = FetchLink(self._peers, node)
            self._tidy_later()
        return link

    def _tidy_later(self) -> None:
        if self._tidying is None and self._links:
            self._tidying = asyncio.get_running_loop().call_later(IDLE_S / 2, self._tidy)

    def _tidy(self) -> None:
        self._tidying = None
        now_s = asyncio.get_running_loop().time()
        for node, link in list(self._links.items()):
            if link.idle and now_s - link.last_used_s > IDLE_S:
                self._links.pop(node).close()
        self._tidy_later()

    def close(self) -> None:
        """End all links."""
        if self._tidying is not None:
            self._tidying.cancel()
        while self._links:
            self._links.popitem()[1].close()
