"""Writes to one member: those under way at the same time share calls.

A gRPC call costs Python more than everything that the member does with a write. So a write goes
alone while no other is under way, and those that come meanwhile go together. They stay commands of
their own: each has its sequence, its outcome and its retries.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from lakemq.meta_service.api.errors import BY_CODE, MetaError, OutcomeUnknown, Overloaded
from lakemq.meta_service.api.remote.failures import Refused, error_of_failure
from lakemq.meta_service.proto import meta_pb2 as pb

CALLS_MAX: Final = 2
"""Calls under way; what comes meanwhile waits and goes together. More calls would be smaller."""
WRITES_MAX: Final = 1024
"""In one call; a member takes no more."""
_BYTES_MAX: Final = 1024 * 1024
"""Of a call's writes, but for one that is larger alone."""
_METHODS: Final = {"put": "Put", "delete": "Delete", "txn": "Txn"}


@dataclass(slots=True, eq=False)
class _Waiting:
    """A write whose caller waits for its outcome."""

    kind: str
    request: Any
    deadline: float
    """The event loop's time."""
    answer: asyncio.Future[Any]

    def fail(self, error: MetaError, leader: str = "") -> None:
        if not self.answer.done():
            self.answer.set_exception(Refused(error, leader))

    def settle(self, written: pb.Written, leader: str) -> None:
        if written.error:
            self.fail(BY_CODE.get(written.error, MetaError)(written.message), leader)
        elif not self.answer.done():
            self.answer.set_result(written)


class Writes:
    """`put`, `delete` and `txn` are called like stubs. They return what has a `revision` and, for a
    transaction, `held`; they raise `AioRpcError` or `Refused`. Lives in one event loop."""

    def __init__(self, kv: Any) -> None:
        """`kv`: the member's Kv stub."""
        self._kv = kv
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._calls = 0
        self._flushing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.put = functools.partial(self._write, "put")
        self.delete = functools.partial(self._write, "delete")
        self.txn = functools.partial(self._write, "txn")

    async def _write(self, kind: str, request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's name
        if not self._calls and not self._queue:
            self._calls += 1
            try:
                return await getattr(self._kv, _METHODS[kind])(request, timeout=timeout)
            finally:
                self._ended()
        loop = asyncio.get_running_loop()
        waiting = _Waiting(kind, request, loop.time() + timeout, loop.create_future())
        self._queue.append(waiting)
        if not self._flushing and self._calls < CALLS_MAX:
            self._flushing = True
            loop.call_soon(self._flush)  # so that the writes of this turn of the loop go together
        return await waiting.answer

    def _ended(self) -> None:
        self._calls -= 1
        if self._queue and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._queue and self._calls < CALLS_MAX:
            batch = self._take(asyncio.get_running_loop().time())
            if batch:
                self._calls += 1
                task = asyncio.create_task(self._call(batch))
                self._tasks.add(task)
                task.add_done_callback(functools.partial(self._called, batch))

    def _called(self, batch: Sequence[_Waiting], task: asyncio.Task[None]) -> None:
        """The call is over, or was cancelled before it began."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        for waiting in batch:
            if error is None:
                waiting.answer.cancel()
            elif not waiting.answer.done():
                waiting.answer.set_exception(error)
        self._ended()

    def _take(self, now: float) -> list[_Waiting]:
        """The next writes that fit one call and whose callers still wait."""
        batch: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < WRITES_MAX:
            waiting = self._queue[0]
            size += waiting.request.ByteSize()
            if batch and size > _BYTES_MAX:
                break
            self._queue.popleft()
            if waiting.deadline <= now:
                # Never sent, so this is a definite failure and may be retried.
                waiting.fail(Overloaded("the calls before it took all its time"))
            elif not waiting.answer.done():
                batch.append(waiting)
        return batch

    async def _call(self, batch: Sequence[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        # The call lives as long as its most patient write; timers answer the others.
        deadline = max(waiting.deadline for waiting in batch)
        timers = [
            loop.call_at(waiting.deadline, waiting.fail, OutcomeUnknown("no answer in time"))
            for waiting in batch
            if waiting.deadline < deadline - 0.1
        ]
        try:
            await self._send(batch, deadline - loop.time())
        except grpc.aio.AioRpcError as failure:
            for waiting in batch:
                waiting.fail(*error_of_failure(failure))
        finally:
            for timer in timers:
                timer.cancel()

    async def _send(self, batch: Sequence[_Waiting], timeout_s: float) -> None:
        request = pb.WriteRequest(writes=[pb.Write(**{w.kind: w.request}) for w in batch])
        try:
            response = await self._kv.Write(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            await self._send_singly(batch, timeout_s)  # a member whose code is older
            return
        if len(response.written) != len(batch):
            # Which answer belongs to which write cannot be known: none may be taken for a success
            # or a failure.
            message = f"{len(response.written)} answers to {len(batch)} writes"
            for waiting in batch:
                waiting.fail(OutcomeUnknown(message))
            return
        for waiting, written in zip(batch, response.written, strict=True):
            waiting.settle(written, response.leader)

    async def _send_singly(self, batch: Sequence[_Waiting], timeout_s: float) -> None:
        async def send(waiting: _Waiting) -> None:
            method = getattr(self._kv, _METHODS[waiting.kind])
            try:
                response = await method(waiting.request, timeout=timeout_s)
            except grpc.aio.AioRpcError as failure:
                waiting.fail(*error_of_failure(failure))
            else:
                if not waiting.answer.done():
                    waiting.answer.set_result(response)

        await asyncio.gather(*map(send, batch))

    async def close(self) -> None:
        """Waiting calls are cancelled."""
        queue, self._queue = self._queue, collections.deque()
        for waiting in queue:
            waiting.answer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
