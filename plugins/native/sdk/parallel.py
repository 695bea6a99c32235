"""Blocking fetch streams, one or several at once: one thread each, one bounded queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import grpc

from broker_core.api.errors import LakeMQError
from broker_core.api.record_batch import RecordBatch, split
from plugins.native import native_pb2 as pb
from plugins.native.sdk import wire

_Item = tuple[int, RecordBatch | None] | LakeMQError
_POLL_S = 0.1


class FetchCall(Protocol):
    """What grpc's blocking stub gives for a Fetch; grpc has no name for it at run time."""

    def __iter__(self) -> Iterator[pb.FetchResponse]: ...
    def cancel(self) -> bool: ...


class FetchStream:
    """Iterates the batches of one Fetch call. `close` (or leaving the context) cancels the call."""

    def __init__(self, call: FetchCall, bootstrap: str) -> None:
        self._call = call
        self._bootstrap = bootstrap
        self._closed = False
        self._batches = self._read()

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
        self._closed = True
        self._call.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        return next(self._batches)

    def _read(self) -> Iterator[RecordBatch]:
        try:
            for answer in self._call:
                for position, _ in split(answer.batches):
                    yield RecordBatch(answer.batches, position)
        except grpc.RpcError as error:
            if self._closed:
                return
            wire.raise_for(error, self._bootstrap)
        finally:
            self._call.cancel()


class ParallelFetch:
    """Iterates (partition, batch) as batches arrive; (-1, None) when none came for a moment.

    Ends when all streams have ended. Leaving the context ends the threads.
    """

    def __init__(self, streams: Mapping[int, FetchStream]) -> None:
        self._streams = streams
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
