"""Both ends of `Peer.Replicate`: they gather what one turn of the loop says, count the credit, and
end when the other side is silent. What is said is decided by who holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.replica_frames import (
    CREDIT_MAX_BYTES,
    ENTRIES_MAX,
    SEND_MAX_BYTES,
    ReplicaAsk,
    ReplicaSend,
    SendBuffer,
    SlotAsk,
    SlotOpen,
    SlotSend,
    decode_ask,
    decode_send,
    encode_ask,
)
from lakemq.broker_core.cluster.wire import BadFrame

TURN_S: Final = 0.5
"""A callee with nothing to say sends an empty message so often."""
SILENCE_S: Final = 3.0
"""A caller that hears nothing for so long takes the stream for dead: six empty messages."""
CREDIT_BYTES: Final = 8 * 1024 * 1024
"""Batches that a leader may have sent to one follower before they are appended there."""
_SENDS_WAITING_MAX: Final = 4 * ENTRIES_MAX
"""A leader reads no asks of a follower that leaves so many of its answers lying."""


class ByteStream(Protocol):
    """One side of a gRPC stream of bytes."""

    async def read(self) -> bytes | None:
        """The next message; None: the other side has ended the stream."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more."""


class FollowerStream:
    """A leader's end. `send` at any time; the caller of `run` reads asks with `ask`."""

    def __init__(self, peer: Peer, stream: ByteStream) -> None:
        self.peer = peer
        """Node id and broker epoch of the follower."""
        self.on_credit: Callable[[], None] = lambda: None
        """Called when there is credit again after there was none."""
        self.bytes_out = 0
        """Of all messages so far."""
        self._stream = stream
        self._credit = 0
        self._buffer = SendBuffer()
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._turn = 0

    @property
    def room_bytes(self) -> int:
        """Bytes of batches that may be given to `send` now; the last batch may go beyond it, so
        that one larger than the credit gets through. 0 or less: wait for `on_credit`."""
        return self._credit

    def send(self, send: SlotSend) -> None:
        """Say it soon, in order, together with what else this turn of the loop has to say."""
        self._credit -= len(send.batches)
        self._buffer.add(send)
        self._wake.set()

    async def ask(self) -> ReplicaAsk | None:
        """The next message of the follower, its credit taken; None: it has ended the stream. Raises
        BadFrame."""
        while len(self._buffer) > _SENDS_WAITING_MAX:
            self._taken.clear()
            await self._taken.wait()
        data = await self._stream.read()
        if data is None:
            return None
        ask = decode_ask(data)
        before = self._credit
        self._credit = min(CREDIT_MAX_BYTES, before + ask.credit_bytes)
        if before <= 0 < self._credit:
            self.on_credit()
        return ask

    async def run(self, serve: Callable[[FollowerStream], Awaitable[None]]) -> None:
        """Call `serve(self)` and send meanwhile, until it returns or sending fails. Raises what
        either does."""
        await first_of(serve(self), self._send_turns())

    async def _send_turns(self) -> None:
        while True:
            if not self._buffer:
                self._wake.clear()
                await woken(self._wake)
            self._turn += 1
            data = self._buffer.take(self._turn)
            self.bytes_out += len(data)
            await self._stream.write(data)
            self._taken.set()


class LeaderStream:
    """A follower's end. Asks at any time; the caller of `run` reads with `receive`."""

    def __init__(self, node_id: str, stream: ByteStream) -> None:
        self.node_id = node_id
        """The leader."""
        self.bytes_in = 0
        """Of all messages so far."""
        self._stream = stream
        self._opens: list[SlotOpen] = []
        self._asks: dict[int, SlotAsk] = {}
        self._closes: list[int] = []
        self._credit = CREDIT_BYTES
        self._unspent = 0
        """Credit that the leader was given and has not used; below 0: it has used more."""
        self._wake = asyncio.Event()
        self._wake.set()  # the first credit goes out at once

    def open(self, slot: SlotOpen) -> None:
        """Name a partition by a slot that was not used before in this stream."""
        self._opens.append(slot)
        self._wake.set()

    def ask(self, ask: SlotAsk) -> None:
        """Say what this node has and wants; in place of what it said of the slot and has not gone
        out yet."""
        self._asks[ask.slot] = ask
        self._wake.set()

    def close(self, slot: int) -> None:
        """The slot is of no interest any more; what still comes for it is to be dropped."""
        self._asks.pop(slot, None)
        self._opens = [each for each in self._opens if each.slot != slot]
        self._closes.append(slot)
        self._wake.set()

    def free(self, size_bytes: int) -> None:
        """So many bytes of received batches are appended or dropped: the leader may send more.
        Every byte received must be given back."""
        self._credit += size_bytes
        # A quarter of the window at a time: a message for each batch would cost more than it moves.
        if self._credit >= CREDIT_BYTES // 4:
            self._wake.set()

    async def receive(self) -> ReplicaSend | None:
        """The next message, which may be empty; None: the leader has ended the stream. Raises
        BadFrame, also for far more than there was credit for, and Unavailable after `SILENCE_S`
        without a message."""
        data = await read_soon(self._stream, self.node_id)
        if data is None:
            return None
        self.bytes_in += len(data)
        found = decode_send(data)
        self._unspent -= sum([len(each.batches) for each in found.sends])
        # Batches that were read when there was credit may go beyond it.
        if self._unspent < -SEND_MAX_BYTES:
            raise BadFrame(f"{-self._unspent} bytes of batches more than there was credit for")
        return found

    async def run(self, serve: Callable[[LeaderStream], Awaitable[None]]) -> None:
        """Call `serve(self)` and send asks meanwhile, until it returns or sending fails. Raises
        what either does."""
        await first_of(serve(self), self._send_asks())

    async def _send_asks(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)
            self._wake.clear()
            while message := self._next_message():
                await self._stream.write(encode_ask(message))

    def _next_message(self) -> ReplicaAsk | None:
        """What waits, up to as many partitions as a message may name."""
        if not (self._opens or self._asks or self._closes or self._credit):
            return None
        left = ENTRIES_MAX
        opens, self._opens = self._opens[:left], self._opens[left:]
        left -= len(opens)
        closes, self._closes = self._closes[:left], self._closes[left:]
        left -= len(closes)
        # An ask must not come before its slot is open: opens go first, also over several messages.
        slots = list(self._asks)[:left]
        asks = [self._asks.pop(slot) for slot in slots]
        credit, self._credit = self._credit, 0
        self._unspent += credit
        return ReplicaAsk(opens, asks, closes, credit)


async def woken(wake: asyncio.Event) -> None:
    """Wait until there is something to send, and until this turn of the loop has said all of it;
    not longer than `TURN_S`."""
    try:
        async with asyncio.timeout(TURN_S):
            await wake.wait()
    except TimeoutError:
        return
    await asyncio.sleep(0)


async def read_soon(stream: ByteStream, node: str) -> bytes | None:
    """The next message of a callee that sends at least every `TURN_S`. Raises Unavailable after
    `SILENCE_S`: a link that was cut, or a process that was stopped, ends no connection."""
    try:
        async with asyncio.timeout(SILENCE_S):
            return await stream.read()
    except TimeoutError:
        raise Unavailable(f"{node} said nothing for {SILENCE_S} s") from None


async def first_of(*parts: Awaitable[None]) -> None:
    """Run all until one of them ends, then cancel the others; raises what that one did."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
