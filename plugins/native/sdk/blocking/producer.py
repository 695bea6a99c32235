"""A producer for blocking programs: threads hand records over, the event loop sends them."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.broker_core.api.types import Columns, Headers
from lakemq.plugins.native.sdk.arguments import wait_given
from lakemq.plugins.native.sdk.blocking.portal import Portal
from lakemq.plugins.native.sdk.consumer.counters import ProducerCounters
from lakemq.plugins.native.sdk.net.errors import CLOSED
from lakemq.plugins.native.sdk.producer.options import DeliveryCallback
from lakemq.plugins.native.sdk.producer.producer import Handed, Producer
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

if TYPE_CHECKING:
    import pyarrow as pa

_R = TypeVar("_R")
_log: Final = logging.getLogger("lakemq.sdk")
_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Records that threads may hand over before the event loop has taken them."""
_RECORD_BYTES: Final = 64
_opening: Final = threading.RLock()
"""Of all acks: whether one is looked at before its outcome comes, or after."""


class Delivery(Future[RecordMetadata]):
    """The ack of one record. It can't be cancelled: the record is on its way.

    A lock, a condition and lists are most of what a future costs. They are made when a caller looks
    at it, and most never do."""

    _outcome: RecordMetadata | BaseException | None = None
    _is_open = False

    def __init__(self, producer: SyncProducer, on_delivery: DeliveryCallback | None) -> None:
        # Not `super().__init__()`: see `__getattr__`.
        self._producer, self._on_delivery = producer, on_delivery

    def __getattr__(self, name: str) -> Any:
        """What `Future.__init__` would have set, whichever of it is looked for first."""
        with _opening:
            if not self._is_open:
                made: Future[RecordMetadata] = Future()
                if isinstance(self._outcome, BaseException):
                    made.set_exception(self._outcome)
                elif self._outcome is not None:
                    made.set_result(self._outcome)
                # All at once, for other threads that look at it now.
                vars(self).update(vars(made))
                self._is_open = True
        return super().__getattribute__(name)

    def cancel(self) -> bool:
        """Never: False."""
        return False

    def cancelled(self) -> bool:
        """Never: False."""
        return False

    def set_result(self, result: RecordMetadata) -> None:
        """The record is as durable as `acks` says."""
        if not self._is_kept(result):
            super().set_result(result)
        self._producer._note(self._on_delivery, None, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """It failed, with a LakeMQError."""
        if not self._is_kept(exception):
            super().set_exception(exception)
        if isinstance(exception, LakeMQError):
            self._producer._note(self._on_delivery, exception, None)

    def _is_kept(self, outcome: RecordMetadata | BaseException | None) -> bool:
        """Keep the outcome for who looks later; False: a caller has looked, and may wait."""
        with _opening:
            if not self._is_open:
                self._outcome = outcome
            return not self._is_open


class SyncProducer:
    """Made by `SyncClient.producer`; a context manager, whose end sends what is left. Threads may
    share one: records of one thread keep their order within a partition."""

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self._portal, self._producer = portal, producer
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._handed: deque[Handed] = deque()
        self._handed_bytes = 0
        self._is_scheduled = False
        self._sender: asyncio.Task[None] | None = None
        self._taken = 0
        """Records that `enqueue` took."""
        self._settled = 0
        """Those of them that have their outcome; written on the event loop alone."""
        self._callbacks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._caller: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._portal.closed:  # its client was closed before, and this with it
            self.close()

    @property
    def counters(self) -> ProducerCounters:
        """As `Producer.counters`."""
        return self._producer.counters

    def enqueue(
        self,
        topic: str,
        record: NewRecord,
        *,
        partition: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Future[RecordMetadata]:
        """Take one record, to be sent with others; the future is its ack. Waits while the buffer is
        full. Raises InvalidRequest, naming what no record can be made of.

        `on_delivery(error, metadata)` is called when the record has its outcome, one of them None.
        Calls come one after the other in a thread of their own, and may use this client.
        """
        record = self._producer.prepared(record)
        delivery = Delivery(self, on_delivery)
        value, key, *_ = record
        size = _RECORD_BYTES + len(value or b"") + len(key or b"")
        with self._lock:
            while self._handed_bytes >= _AHEAD_BYTES:
                self._portal.check()  # closed meanwhile, or the loop would wait for itself
                self._room.wait(1.0)
            self._handed.append((topic, record, partition, delivery))
            self._handed_bytes += size
            self._taken += 1
            if not self._is_scheduled:
                try:
                    self._portal.soon(self._wake)
                except BaseException:
                    self._handed.pop()
                    self._handed_bytes -= size
                    self._taken -= 1
                    raise
                self._is_scheduled = True
        return delivery

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        timestamp_ms: int | datetime | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Produce one record, behind those that were taken before; returns when it is as durable as
        `acks` says."""
        record = NewRecord(value, key, headers, timestamp_ms)
        return self.enqueue(topic, record, partition=partition).result()

    def send_batch(
        self,
        topic: str,
        records: Columns | Sequence[NewRecord],
        *,
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """As `Producer.send_batch`."""
        return self._behind(lambda each: each.send_batch(topic, records, partition=partition))

    def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """As `Producer.send_arrow`."""
        return self._behind(lambda each: each.send_arrow(topic, table, partition=partition))

    def send_pandas(
        self, topic: str, frame: Any, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """As `Producer.send_pandas`."""
        return self._behind(lambda each: each.send_pandas(topic, frame, partition=partition))

    def send_polars(
        self, topic: str, frame: Any, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """As `Producer.send_polars`."""
        return self._behind(lambda each: each.send_polars(topic, frame, partition=partition))

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait until every record taken so far has its outcome and its `on_delivery` has returned,
        for `timeout_s` at most (None: as long as it takes); how many have none yet."""
        wait_s = wait_given("timeout_s", timeout_s)
        until = monotonic() + wait_s
        self._portal.run(lambda: self._flushed(wait_s))
        if self._caller is not None and self._caller is not threading.current_thread():
            called = threading.Event()
            self._callbacks.put(called.set)
            called.wait(None if wait_s == math.inf else max(0.0, until - monotonic()))
        return self._taken - self._settled

    def close(self) -> None:
        """Flush, then stop."""
        try:
            self.flush()
            self._portal.run(self._producer.close)
        finally:
            self._callbacks.put(None)

    # -- on the event loop

    def _behind(self, send: Callable[[Producer], Coroutine[Any, Any, _R]]) -> _R:
        """Send behind what was taken before."""

        async def sent() -> _R:
            await self._handed_over()
            return await send(self._producer)

        return self._portal.run(sent)

    async def _flushed(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                await self._handed_over()
                await self._producer.flush()

    async def _handed_over(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender])

    def _wake(self) -> None:
        self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Take what threads have handed over, until there is nothing left."""
        batch: deque[Handed] = deque()
        try:
            while True:
                with self._lock:
                    batch, self._handed = self._handed, deque()
                    self._handed_bytes = 0
                    self._room.notify_all()
                    if not batch:
                        self._is_scheduled = False
                        return
                await self._producer.enqueue_all(batch)
        except asyncio.CancelledError:  # the client is closed
            with self._lock:
                left = (*batch, *self._handed)
                self._handed = deque()
            for *_, delivery in left:
                delivery.set_exception(InvalidRequest(CLOSED))
            raise

    def _note(
        self,
        on_delivery: DeliveryCallback | None,
        error: LakeMQError | None,
        metadata: RecordMetadata | None,
    ) -> None:
        """A record has its outcome."""
        self._settled += 1
        if on_delivery is None:
            return
        if self._caller is None:
            self._caller = threading.Thread(target=self._call, name="lakemq-delivery", daemon=True)
            self._caller.start()
        self._callbacks.put(lambda: on_delivery(error, metadata))

    # -- in the thread of callbacks

    def _call(self) -> None:
        while (callback := self._callbacks.get()) is not None:
            try:
                callback()
            except Exception:  # the application's own: the others are called all the same
                _log.exception("on_delivery failed")
