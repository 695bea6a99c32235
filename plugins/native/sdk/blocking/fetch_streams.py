"""Blocking fetch streams, one or several at once: one thread each, one bounded queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.batch import RecordBatch, split
from lakemq.plugins.native.proto import native_pb2 as pb

_Item = tuple[int, RecordBatch | None] | LakeMQError
_POLL_S = 0.1


class FetchCall(Protocol):
    """What of grpc's blocking call is needed here; grpc has no name for it at run time."""

    def cancel(self) -> bool:
        """End the call; whether it was under way."""


class FetchStream:
    """Iterates the batches of one Fetch. `close` (or leaving the context) cancels the call.

    `fetch` gives the answers, and tells every call that it makes to a function of ours.
    `open_batch` opens the batch at a position of an answer; None: it is left out.
    """

    def __init__(
        self,
        fetch: Callable[[Callable[[object], bool]], Iterator[pb.FetchResponse]],
        open_batch: Callable[[bytes | memoryview, int], RecordBatch | None],
    ) -> None:
        self._open_batch = open_batch
        self._call: FetchCall | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._batches = self._read(fetch(self._opened))

    def _opened(self, call: object) -> bool:
        with self._lock:
            self._call = call  # type: ignore[assignment]  # grpc's call can be cancelled
            # Closed before the call was made, by another thread: `close` had no call to cancel.
            if self._closed:
                self._cancel()
            return not self._closed

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the call; iteration ends."""
        with self._lock:
            self._closed = True
            self._cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        return next(self._batches)

    def _read(self, answers: Iterator[pb.FetchResponse]) -> Iterator[RecordBatch]:
        try:
            for answer in answers:
                for position, _ in split(answer.batches):
                    batch = self._open_batch(answer.batches, position)
                    if batch is not None:
                        yield batch
        except LakeMQError:
            # A cancelled call fails; the caller closed the stream: iteration just ends.
            if not self._closed:
                raise
        finally:
            with self._lock:
                self._cancel()


class ParallelFetch:
    """Iterates (partition, batch) as batches arrive; (-1, None) when none came for a moment.

    Ends when all streams have ended. Leaving the context ends the threads.
    """

    def __init__(self, streams: Mapping[int, FetchStream]) -> None:
        self._streams = streams
        # Bounded: threads wait here when the reader is slow, and HTTP/2's window then stops the
        # broker.
        self._arrived: queue.Queue[_Item] = queue.Queue(maxsize=4 * len(streams) + 4)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=each, daemon=True) for each in streams.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for stream in self._streams.values():
            stream.close()

    def __iter__(self) -> Generator[tuple[int, RecordBatch | None], None, None]:
        while True:
            try:
                item = self._arrived.get(timeout=_POLL_S)
            except queue.Empty:
                # Asked only when the queue is empty: what a thread put there before it ended is
                # handed out first.
                if not any(thread.is_alive() for thread in self._threads):
                    return
                yield -1, None
                continue
            if isinstance(item, LakeMQError):
                raise item
            yield item

    def _read(self, partition: int, stream: FetchStream) -> None:
        try:
            for batch in stream:
                self._put((partition, batch))
                if self._ended.is_set():
                    return
        except LakeMQError as error:
            self._put(error)

    def _put(self, item: _Item) -> None:
        """Wait for room, but not for a reader who has left."""
        while not self._ended.is_set():
            try:
                self._arrived.put(item, timeout=_POLL_S)
                return
            except queue.Full:
                continue
