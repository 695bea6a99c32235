"""Propose, read and watch from the event loop of a member.

The cache and the watches live in the event loop. The Raft thread hands over what it applied before
it hands over the answer, so a caller with an answer also sees its effect in the cache.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lakemq.meta_service.api.errors import MetaError, OutcomeUnknown, StorageFailed
from lakemq.meta_service.catalog.apply import Applied
from lakemq.meta_service.catalog.command_codec import Command, Header, encode_command
from lakemq.meta_service.catalog.results import Result, error_of
from lakemq.meta_service.catalog.tables import RESERVED, Row
from lakemq.meta_service.core.cache import Cache
from lakemq.meta_service.core.latencies import Latencies
from lakemq.meta_service.core.loop_queue import LoopQueue
from lakemq.meta_service.core.watches import WatchHub
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.state import Answer
from lakemq.meta_service.raft.thread_queue import ThreadQueue

_MESSAGES = {
    "NOT_LEADER": "this member is not the leader",
    "NO_LEADER": "there is no leader at the moment",
    "OVERLOADED": "too many commands wait already",
    "OUTCOME_UNKNOWN": "the command may or may not have been applied",
}


Proposal = tuple[Command, Header]
_NOTHING: Final = Result("", 0, None)


class Gateway:
    """Proposals and reads of one member. Event loop only, but for `on_applied`."""

    def __init__(self, loop_queue: LoopQueue, cache: Cache, hub: WatchHub) -> None:
        self.cache = cache
        self.hub = hub
        self._loop_queue = loop_queue
        self._thread_queue: ThreadQueue
        self._node: RaftNode
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Future[tuple[str, Any]]] = set()
        self._failure: MetaError | None = None
        self.proposed = 0
        self.listeners: list[Callable[[Sequence[tuple[bytes, Row | None]]], None]] = []
        """Called with rows of the catalog itself that were changed, those of clients left out."""
        self.latencies = Latencies()

    def attach(self, node: RaftNode, thread_queue: ThreadQueue) -> None:
        """Name the node whose commands are proposed; before the first call."""
        self._node, self._thread_queue = node, thread_queue

    # ------------------------------------------------------------ from the Raft thread

    def on_applied(self, applied: Sequence[Applied]) -> None:
        """Raft thread: commands were applied and stored."""
        changes = [one for one in applied if one.rows]
        if changes:
            self._loop_queue.call(self._take_applied, changes)

    def _take_applied(self, changes: Sequence[Applied]) -> None:
        own: list[tuple[bytes, Row | None]] = []
        for applied in changes:
            state = applied.state
            self.cache.update(applied.rows, state.revision, state.applied_index)
            own += [each for each in applied.rows if each[0][:1] == RESERVED]
            events = [(key, row.value if row else None) for key, row in applied.rows]
            # The cache first: a watcher that is woken reads what it was told of.
            self.hub.publish(state.revision, state.compact_revision, events)
        if own:
            for listener in self.listeners:
                listener(own)

    def on_failed(self, error: BaseException) -> None:
        """Raft thread: the member has stopped for ever."""
        self._loop_queue.call(self.fail, StorageFailed(f"this member has stopped: {error}"))

    # ------------------------------------------------------------ event loop

    def leading_term(self) -> int | None:
        """The term that this member leads, as far as it knows. To act on it, propose: a stale
        leader's commands are never committed."""
        return self._node.term if self._node.is_leader and self._failure is None else None

    def hears_majority(self) -> bool:
        """Whether this member, which leads, has lately heard from so many others that no other can
        have been elected."""
        return self._node.hears_majority()

    def fail(self, error: MetaError) -> None:
        """Fail all pending and all later calls with this error."""
        self._failure = self._failure or error
        self.hub.fail(self._failure)
        for future in self._pending:
            if not future.done():
                # The command may be in the log of a majority: not a definite failure.
                future.set_result((OutcomeUnknown.code, None))

    async def propose(self, command: Command, header: Header = Header()) -> Result:  # noqa: B008 - immutable
        """Replicate a command and return what it did. Raises MetaError."""
        data = encode_command(command, header)
        self.proposed += 1
        begin = time.perf_counter()
        # Encoded and checked in the event loop, so that the Raft thread does only what must be in
        # order.
        result: Result = await self._ask(lambda answer: self._node.submit(data, answer))
        self.latencies.note(time.perf_counter() - begin)
        return result

    async def propose_all(self, proposals: Sequence[Proposal]) -> list[Result]:
        """Replicate commands, each for itself, and return what they did, in their order. A command
        that was refused has the error's code in its result. Raises MetaError when the outcome of
        all is the same."""
        results: list[Result] = [_NOTHING] * len(proposals)
        ready: list[tuple[int, bytes]] = []
        for number, (command, header) in enumerate(proposals):
            try:
                ready.append((number, encode_command(command, header)))
            except MetaError as error:
                results[number] = Result(error.code, 0, str(error))
        self.proposed += len(proposals)
        if ready:
            begin = time.perf_counter()
            await self._ask(lambda answer: self._submit_all(ready, results, answer))
            self.latencies.note(time.perf_counter() - begin, len(ready))
        return results

    def _submit_all(
        self, ready: Sequence[tuple[int, bytes]], results: list[Result], answer: Answer
    ) -> None:
        """Raft thread: one answer when all commands have theirs."""
        left = len(ready)

        def note(number: int, code: str, result: Any) -> None:
            nonlocal left
            results[number] = Result(code, 0, _MESSAGES[code]) if code else result
            left -= 1
            if not left:
                answer("", None)

        for number, data in ready:
            self._node.submit(data, functools.partial(note, number))

    async def barrier(self) -> None:
        """After this the cache holds everything acknowledged before the call."""
        await self._ask(lambda answer: self._node.read_barrier(answer))

    async def run(self, call: Callable[[RaftNode], Any]) -> Any:
        """Run something in the Raft thread, between two ticks; returns or raises what it does."""

        def run_there(answer: Any) -> None:
            try:
                answer("", (call(self._node), None))
            except (OSError, ValueError) as error:  # the caller's affair, not the member's end
                answer("", (None, error))

        result, error = await self._ask(run_there)
        if error is not None:
            raise error
        return result

    async def _ask(self, call: Any) -> Any:
        """Run `call(answer)` in the Raft thread and wait for the answer."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[tuple[str, Any]] = self._loop.create_future()
        self._pending.add(future)

        def answer(code: str, result: Any) -> None:
            self._loop_queue.call(_settle, future, code, result)

        try:
            self._thread_queue.post(lambda: call(answer))
            code, result = await future
        finally:
            self._pending.discard(future)
        if code:
            raise error_of(code, _MESSAGES[code])
        return result


def _settle(future: asyncio.Future[tuple[str, Any]], code: str, result: Any) -> None:
    if not future.done():
        future.set_result((code, result))
