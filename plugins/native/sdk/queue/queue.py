"""A consumer of a queue, for asyncio. `sync_queue` puts a blocking face on it."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, Final, Self, TypedDict

from lakemq.broker_core.api.errors import (
    CorruptBatch,
    InvalidRequest,
    LakeMQError,
    LockLost,
    Unavailable,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.sdk.arguments import check_options, wait_given
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy
from lakemq.plugins.native.sdk.net.routes import Routes
from lakemq.plugins.native.sdk.net.sequencing import backoff_s
from lakemq.plugins.native.sdk.queue.calls import QueueCalls
from lakemq.plugins.native.sdk.queue.record import QueueRecord, Settling
from lakemq.plugins.native.sdk.serializing import DeserializationError, RecordDeserializer

_RELEASE_S: Final = 2.0
_SILENT_S: Final = 1.0
"""A node of several that says nothing for so long is asked whether it is there, and left when it
does not answer within the same time."""


class QueueOptions(TypedDict, total=False):
    """Options of `queue`. All but `prefetch` are the queue's own: they hold when it is made, and
    must be the same, or left out, for those who come later."""

    prefetch: int
    """Most records this consumer has at a time, handed out or not (100)."""
    lock_ms: int
    """Time for one record until another consumer gets it (30 s)."""
    attempts_max: int
    """A record that failed so often becomes a dead letter; 0 (the default): never."""
    dead_letter: str
    """Topic of dead letters; made if it is not there."""
    order: str
    """`key`: of each key one record at a time, in order; `none` (the default)."""
    backoff_ms: int
    """Pause before a record that failed comes again; doubles each time (1 s)."""
    backoff_ms_max: int
    """Longest such pause (60 s)."""
    start: str
    """`earliest` (the default) or `latest`: where a new queue begins."""


def check_queue_options(options: Mapping[str, object]) -> None:
    """Raises InvalidRequest, naming an option that does not exist."""
    check_options("queue", options, QueueOptions.__annotations__)


def queue_settings(options: Mapping[str, object]) -> tuple[int, pb.QueueSettings]:
    """(prefetch, the queue's own settings). Raises InvalidRequest, naming the option that does not
    fit."""
    check_queue_options(options)
    settings = dict(options)
    prefetch = settings.pop("prefetch", 100)
    if not isinstance(prefetch, int):
        raise InvalidRequest(f"queue: prefetch is {prefetch!r}; it takes a whole number")
    message = pb.QueueSettings()
    for name, value in settings.items():
        try:
            setattr(message, name, value)
        except (TypeError, ValueError):
            kind = "text" if isinstance(getattr(message, name), str) else "a whole number"
            raise InvalidRequest(f"queue: {name} is {value!r:.60}; it takes {kind}") from None
    return prefetch, message


class Queue:
    """Made by `Client.queue`. Iterate it for messages, and settle each."""

    def __init__(
        self,
        routes: Routes,
        topic: str,
        group: str,
        options: QueueOptions,
        deserializer: RecordDeserializer | None = None,
    ) -> None:
        self.topic, self.group = topic, group
        self._deserializer = deserializer
        self._calls = QueueCalls(routes)
        prefetch, settings = queue_settings(options)
        try:
            self._open = pb.OpenQueue(
                group=group, topic=topic, prefetch=prefetch, settings=settings
            )
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"queue: {error}") from None
        self._settling = Settling()
        self._buffer: deque[QueueRecord] = deque()
        self._changed = asyncio.Event()
        self._rejecting: set[asyncio.Task[object]] = set()
        self._corrupt = CorruptPolicy("skip")
        self._failed: LakeMQError | None = None
        self._came_s = monotonic()
        """When the application last came for a message."""
        self._heard_s = 0.0
        """When the broker last said anything."""
        self._closing = self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._call: Any = None

    # -- life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Join the queue; it is made if it is new. Done by the first iteration too. Raises
        NotAuthorized, UnknownTopic, InvalidRequest (a setting that does not hold)."""
        if not self._tasks:
            self._loop = asyncio.get_running_loop()
            self._calls.routes.start()  # another node may have to be asked for the coordinator
            self._tasks = [asyncio.create_task(self._drive()), asyncio.create_task(self._extend())]
        # Errors such as NotAuthorized come as the stream's first answer, so that they are raised
        # here and not by the first record.
        while not self._settling.is_connected and self._failed is None:
            self._changed.clear()
            await self._changed.wait()
        self._check()

    async def close(self) -> None:
        """Give back what was not handed out, and all that was not settled."""
        if self._closing or not self._tasks:
            self._closing = True
            return
        self._closing = True
        waiting = [each for each in self._buffer if each.is_held]
        self._buffer.clear()
        with suppress(LakeMQError, TimeoutError):
            async with asyncio.timeout(_RELEASE_S):
                await self._settling.settle(waiting, pb.SETTLEMENT_RELEASE)
        if self._settling.is_connected:
            # So that the broker knows that we are gone, when this returns.
            # Half-closes the stream; the broker then ends it from its side.
            self._settling.finish()
            await asyncio.wait(self._tasks[:1], timeout=_RELEASE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._settling.disconnected()
        self._changed.set()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closing:
            raise Unavailable("the queue is closed")

    # -- the stream

    async def _drive(self) -> None:
        pauses = backoff_s()
        while True:
            watch = None
            try:
                await self._calls.log_in()
                self._call = self._calls.stub.ConsumeQueue(self._requests())
                watch = asyncio.create_task(self._end_if_silent(self._call))
                async for response in self._call:
                    pauses = backoff_s()
                    self._heard_s = monotonic()
                    self._told(response)
                failure: LakeMQError = Unavailable("the broker ended the stream")
            except LakeMQError as error:
                failure = error
            finally:
                if watch is not None:
                    watch.cancel()
                if self._call is not None:
                    self._call.cancel()
                # On every end of a stream, whatever its reason: locks do not outlive the
                # connection, and the broker hands the records to others.
                self._lost()
            if self._closing:
                return
            if not failure.retriable:
                self._failed = failure
                self._changed.set()
                return
            name = f"queue of group {self.group} on {self.topic}"
            self._calls.routes.notices.tell(
                "queue", self.topic, self.group,
                text=f"{name}: the coordinator is looked for again: {failure}",
            )  # fmt: skip
            if not self._calls.failed(failure):
                await asyncio.sleep(next(pauses))

    async def _end_if_silent(self, call: Any) -> None:
        """End the stream to a node that stands still: another one may coordinate by then. Where
        there is no other node it is waited for."""
        while True:
            self._heard_s = monotonic()
            await asyncio.sleep(_SILENT_S)
            if monotonic() - self._heard_s < _SILENT_S or self._calls.alone:
                continue
            asked_s = monotonic()
            self._settling.ping()
            await asyncio.sleep(_SILENT_S)
            if self._heard_s < asked_s:
                call.end(Unavailable(f"the coordinator said nothing for {2 * _SILENT_S} s"))
                return

    async def _requests(self) -> AsyncIterator[pb.QueueRequest]:
        yield pb.QueueRequest(open=self._open)
        async for settle in self._settling.requests():
            yield pb.QueueRequest(settle=settle)

    def _told(self, response: pb.QueueResponse) -> None:
        if response.HasField("opened"):
            self._settling.connected(response.opened.settings.lock_ms / 1000)
        elif response.HasField("settled"):
            self._settling.answered(response.settled)
        elif response.HasField("delivery"):
            self._deliver(response.delivery)
        self._changed.set()

    def _deliver(self, delivery: pb.QueueDelivery) -> None:
        # The remaining lock is sent as a duration, so clocks need not agree. It began before it
        # arrived here, so `until` may lie slightly too late; then LockLost says so.
        until = monotonic() + delivery.lock_ms / 1000
        life = self._settling.life
        batch = RecordBatch(delivery.batch)
        rows = zip(
            batch.offsets(),
            batch.timestamps_ms(),
            batch.keys(),
            batch.values(),
            batch.encoded_headers(),
            delivery.attempts,
            strict=True,
        )
        telemetry = self._calls.routes.telemetry
        started_ns = 0 if telemetry is None else time_ns()
        seen: list[Headers] = []
        unreadable: list[QueueRecord] = []
        for offset, time_ms, key, value, encoded, attempt in rows:
            buffer: deque[QueueRecord] | list[QueueRecord] = self._buffer
            try:
                headers = decode_headers(encoded)
            except CorruptBatch as error:
                buffer, headers = unreadable, ()
                self._corrupt.note(self.topic, delivery.partition, offset, error)
            buffer.append(
                QueueRecord(
                    self.topic, delivery.partition, offset, time_ms, key, value, headers,
                    attempt, self._settling, life, until,
                )
            )  # fmt: skip
            if telemetry is not None:
                seen.append(headers)
        if telemetry is not None:
            telemetry.received(self.topic, delivery.partition, self.group, seen, started_ns)
        if unreadable:  # never again: a dead letter, where the queue has them
            task = asyncio.create_task(self._settling.settle(unreadable, pb.SETTLEMENT_REJECT))
            self._rejecting.add(task)
            task.add_done_callback(self._rejecting.discard)

    def _lost(self) -> None:
        """The broker gives what we had to others."""
        self._settling.disconnected()
        self._buffer.clear()

    async def _extend(self) -> None:
        """Records that wait here for the application must not run out of their lock; unless it
        has not come for the next one for that long: then others shall have them."""
        while not self._settling.lock_s:  # known when the queue is open
            self._changed.clear()
            await self._changed.wait()
        while True:
            lock_s = self._settling.lock_s
            # Two extensions may be lost before a lock ends.
            await asyncio.sleep(lock_s / 3)
            waiting = [each for each in self._buffer if each.is_held]
            kind = pb.SETTLEMENT_EXTEND
            # An application that hangs must not keep records from others by extensions that it
            # knows nothing of.
            if monotonic() - self._came_s > lock_s:
                self._buffer.clear()
                kind = pb.SETTLEMENT_RELEASE
            with suppress(LakeMQError):
                await self._settling.settle(waiting, kind)

    # -- messages

    def __aiter__(self) -> AsyncIterator[QueueRecord]:
        return self

    async def __anext__(self) -> QueueRecord:
        """The next message. Raises what makes going on impossible."""
        message = await self._next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next(self) -> QueueRecord | None:
        """None: the queue is closed, or stopped. Cancelled while it waits, it has taken nothing.
        Raises DeserializationError, with the message, which is in hand then."""
        message = await self._next_stored()
        if message is not None and self._deserializer is not None:
            try:
                await self._deserializer.prepare([message.stored()])
            except BaseException:  # cancelled, or the registry does not answer
                self._buffer.appendleft(message)
                raise
            message.make(self._deserializer)
        return message

    def _take_made(self) -> QueueRecord | None:
        """The next message that is here and made without waiting; others stay for `_next`."""
        message = self._take()
        if message is not None and self._deserializer is not None:
            try:
                message.make(self._deserializer)
            except DeserializationError:
                self._buffer.appendleft(message)
                return None
        return message

    async def _next_stored(self) -> QueueRecord | None:
        if not self._tasks and not self._stopped:
            await self.open()
        while not self._stopped:
            self._came_s = monotonic()
            if (message := self._take()) is not None:
                return message
            if self._closing:
                break
            self._check()
            self._changed.clear()
            await self._changed.wait()
        return None

    def _take(self) -> QueueRecord | None:
        """The next message that is here."""
        while self._buffer:
            message = self._buffer.popleft()
            # Its lock may have ended in the buffer: it would be handled here and elsewhere.
            if message.is_held:
                return message
        return None

    async def next_batch(
        self, count: int = 1000, timeout_s: float | None = None
    ) -> list[QueueRecord]:
        """One message or more, up to `count`: what is there. An empty list when none has come for
        `timeout_s` (None: for ever), or after `stop`. With `ack`, for many at a time."""
        wait_s = wait_given("timeout_s", timeout_s)
        try:
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                message = await self._next()
        except TimeoutError:
            return []
        found: list[QueueRecord] = []
        while message is not None:
            found.append(message)
            message = self._take_made() if len(found) < count else None
        return found

    def stop(self) -> None:
        """Hand out nothing more: loops end, `next_batch` gives an empty list, at once also where
        they wait. What was handed out can still be settled.

        May be called from any task, thread or signal handler."""
        self._stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and everything has ended
                self._loop.call_soon_threadsafe(self._changed.set)

    async def ack(self, messages: Iterable[QueueRecord]) -> None:
        """Settle many at once: done with. Raises LockLost when some are not ours any more; the
        others are settled."""
        await self._settle(list(messages), pb.SETTLEMENT_ACCEPT)

    async def nack(self, messages: Iterable[QueueRecord], delay_ms: int | None = None) -> None:
        """Settle many at once: failed, again after a pause."""
        await self._settle(list(messages), pb.SETTLEMENT_RETRY, delay_ms)

    async def _settle(
        self,
        messages: Sequence[QueueRecord],
        settlement: pb.Settlement.ValueType,
        delay_ms: int | None = None,
    ) -> None:
        lost = await self._settling.settle(messages, settlement, delay_ms)
        if lost:
            places = ", ".join(f"{at.partition}:{at.offset}" for at in lost[:5])
            raise LockLost(f"{len(lost)} of {len(messages)} records are not ours: {places}")
