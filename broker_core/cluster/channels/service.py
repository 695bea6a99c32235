"""`Peer.Talk` at the node that is called: hands messages and requests to the channels here, and
writes answers back."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from lakemq.broker_core.api.cluster.channels import PAYLOAD_MAX_BYTES, Peer
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, Unavailable
from lakemq.broker_core.cluster.channels.frames import (
    ENTRIES_MAX,
    TARGET_BYTES,
    Answer,
    Said,
    decode_said,
    encode_told,
)
from lakemq.broker_core.cluster.streams import ByteStream, first_of, woken

REQUESTS_MAX: Final = 1024
"""Requests of one node that are being answered; more are refused."""
_ANSWERS_MAX_BYTES: Final = 32 * 1024 * 1024
"""Answers that a node has not taken; it is not read from while there are more."""
_log: Final = logging.getLogger(__name__)


class Talked(Protocol):
    """The channels of this node."""

    def names(self) -> list[str]:
        """All that it has."""

    def begun(self, stream: TalkStream) -> None:
        """A node has opened a stream, in place of the one that it may have had."""

    def ended(self, stream: TalkStream) -> None:
        """The stream has ended."""

    def heard(self, stream: TalkStream, said: Said) -> None:
        """A message has come."""

    async def asked(self, stream: TalkStream, said: Said) -> bytes:
        """The answer to a request. Raises LakeMQError."""


class TalkStream:
    """One stream of another node."""

    def __init__(self, peer: Peer, stream: ByteStream, channels: Talked) -> None:
        self.peer = peer
        self._stream = stream
        self._channels = channels
        self._answers: list[Answer] = []
        self._answers_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._announce = True
        self._wake = asyncio.Event()
        self._wake.set()
        self._room = asyncio.Event()

    def announce(self) -> None:
        """Tell the node which channels there are now."""
        self._announce = True
        self._wake.set()

    async def run(self) -> None:
        """Until the stream ends. Raises BadFrame."""
        self._channels.begun(self)
        try:
            await first_of(self._read(), self._write())
        finally:
            for task in self._tasks:
                task.cancel()
            self._channels.ended(self)

    async def _read(self) -> None:
        while (data := await self._stream.read()) is not None:
            for said in decode_said(data):
                if said.request:
                    self._ask(said)
                else:
                    self._channels.heard(self, said)
            while self._answers_bytes > _ANSWERS_MAX_BYTES:
                self._room.clear()
                await self._room.wait()

    def _ask(self, said: Said) -> None:
        if len(self._tasks) >= REQUESTS_MAX:
            text = f"{REQUESTS_MAX} requests of node {self.peer.node_id} are under way here"
            self._answer(said, Unavailable(text))
            return
        task = asyncio.get_running_loop().create_task(self._answered(said))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, said: Said) -> None:
        try:
            answer = await self._channels.asked(self, said)
            if len(answer) > PAYLOAD_MAX_BYTES:
                raise InvalidRequest(f"the answer has {len(answer)} bytes: too many")
            self._answer(said, answer)
        except LakeMQError as error:
            self._answer(said, error)
        except Exception:  # code of a plugin
            _log.exception("a request of node %s on channel %s", self.peer.node_id, said.channel)
            self._answer(said, LakeMQError("the request failed; the node's log says why"))

    def _answer(self, said: Said, outcome: bytes | LakeMQError) -> None:
        self._answers.append(Answer(said.request, outcome))
        self._answers_bytes += _size(outcome)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await woken(self._wake)
            self._wake.clear()
            # Without anything to say it is empty, and says that this node lives.
            some, size = 0, 0
            while some < min(len(self._answers), ENTRIES_MAX) and size < TARGET_BYTES:
                size += _size(self._answers[some].outcome)
                some += 1
            answers, self._answers = self._answers[:some], self._answers[some:]
            if self._answers:
                self._wake.set()
            announced, self._announce = self._announce, False
            names = self._channels.names() if announced else None
            await self._stream.write(encode_told(answers, names))
            self._answers_bytes -= size
            self._room.set()


def _size(outcome: bytes | LakeMQError) -> int:
    return 200 + (len(outcome) if isinstance(outcome, bytes) else 0)
