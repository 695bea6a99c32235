"""The `Talk` stream to one other node: messages and requests out, its channels and answers in."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from lakemq.broker_core.api.cluster.channels import QUEUE_MAX_BYTES
from lakemq.broker_core.api.errors import LakeMQError, OutcomeUnknown, Unavailable
from lakemq.broker_core.cluster.channels.frames import (
    ENTRIES_MAX,
    TARGET_BYTES,
    Answer,
    Said,
    decode_told,
    encode_said,
)
from lakemq.broker_core.cluster.peers import Peers
from lakemq.broker_core.cluster.streams import ByteStream, first_of, read_soon

_ENTRY_BYTES: Final = 200
"""What a message takes in memory beside its payload."""


class LinkOwner(Protocol):
    """Hears of a link."""

    def link_changed(self, node: str, before: frozenset[str], now: frozenset[str]) -> None:
        """The node had the channels `before` over this link, and has those of `now`. A link that
        ends has none."""


class _Queue:
    """What waits of one channel."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: deque[Said] = deque()
        self.size_bytes = 0


class TalkLink:
    """Opened again whenever it ends; what was under way then is lost."""

    def __init__(self, peers: Peers, node: str, owner: LinkOwner) -> None:
        self.channels: frozenset[str] = frozenset()
        """Those that the node has; none while the link is not up."""
        self._node = node
        self._owner = owner
        self._queues: dict[str, _Queue] = {}
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 0
        self._wake = asyncio.Event()
        self.close = peers.keep(node, "Talk", self._talk)
        """End the link."""

    def send(self, channel: str, payload: bytes, request: int = 0) -> bool:
        """Send soon; False: the node has no such channel, or too much of it waits."""
        if channel not in self.channels:
            return False
        queue = self._queues.get(channel)
        if queue is None:
            queue = self._queues[channel] = _Queue()
        size = len(payload) + _ENTRY_BYTES
        if queue.entries and queue.size_bytes + size > QUEUE_MAX_BYTES:
            return False
        queue.entries.append(Said(channel, payload, request))
        queue.size_bytes += size
        self._wake.set()
        return True

    async def request(self, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """The node's answer. Raises Unavailable, OutcomeUnknown, what the node raises."""
        self._next_id += 1
        number = self._next_id
        if not self.send(channel, payload, number):
            raise Unavailable(f"channel {channel} of node {self._node} can't be reached now")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._requests[number] = future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise OutcomeUnknown(
                f"node {self._node} did not answer on channel {channel} within {timeout_s} s"
            ) from None
        finally:
            self._requests.pop(number, None)

    async def _talk(self, stream: ByteStream) -> None:
        # Nothing is sent before the node has said which channels it has.
        try:
            await first_of(self._read(stream), self._write(stream))
        finally:
            self._lost()

    def _lost(self) -> None:
        self._queues.clear()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(OutcomeUnknown(f"the link to node {self._node} has ended"))
        before, self.channels = self.channels, frozenset()
        self._owner.link_changed(self._node, before, self.channels)

    async def _read(self, stream: ByteStream) -> None:
        while (data := await read_soon(stream, self._node)) is not None:
            told = decode_told(data)
            for answer in told.answers:
                self._answered(answer)
            if told.channels is not None:
                before, self.channels = self.channels, told.channels
                for gone in before - told.channels:
                    self._queues.pop(gone, None)
                self._owner.link_changed(self._node, before, told.channels)

    def _answered(self, answer: Answer) -> None:
        future = self._requests.pop(answer.request, None)
        if future is None or future.done():  # it came too late
            return
        if isinstance(answer.outcome, LakeMQError):
            future.set_exception(answer.outcome)
        else:
            future.set_result(answer.outcome)

    async def _write(self, stream: ByteStream) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what else this turn of the loop sends goes with it
            self._wake.clear()
            while entries := self._next_message():
                await stream.write(encode_said(entries))

    def _next_message(self) -> list[Said]:
        """What waits, one of each channel in turn, so that none waits for another one's queue."""
        found: list[Said] = []
        size = 0
        while size < TARGET_BYTES and len(found) < ENTRIES_MAX and self._queues:
            for channel, queue in list(self._queues.items()):
                entry = queue.entries.popleft()
                queue.size_bytes -= len(entry.payload) + _ENTRY_BYTES
                found.append(entry)
                size += len(entry.payload)
                if not queue.entries:
                    del self._queues[channel]
                if size >= TARGET_BYTES or len(found) == ENTRIES_MAX:
                    break
        return found
