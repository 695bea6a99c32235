"""What Spark reads from the broker: views for planning and Arrow batches. Edge: network, clock."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lakemq.broker_core.api.backoff import Backoff
from lakemq.plugins.native.sdk import (
    CorruptBatch,
    LakeMQError,
    OffsetOutOfRange,
    RecordBatch,
    RecordFilter,
    SyncClient,
    TieredSegments,
    Tls,
    TopicOffsets,
    UnknownPartition,
    UnknownTopic,
    connect,
    to_arrow,
)
from lakemq.plugins.native.sdk.consumer.corrupt import TellCorrupt
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import DataLossError
from lakemq.spark_plugin.source.corrupt import OnSkipped, skipped_batches, span_of
from lakemq.spark_plugin.source.planning import OffsetRange, PartitionView, TopicView
from lakemq.spark_plugin.source.tiered import OverGrpc, read_placed, stores
from lakemq.spark_plugin.tiered_options import Tiered

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_log = logging.getLogger("lakemq.spark")

_ANYBODY = Access()
_THROUGH_BROKER = Tiered("never")
_FILTER_MAX_BYTES = 4096
_RETRY_MIN_MS = 250
_RETRY_MAX_MS = 4000

_clients: dict[str | tuple[str, Access], SyncClient] = {}


def client_of(bootstrap: str, access: Access = _ANYBODY) -> SyncClient:
    """This process's client of a broker. Python workers live longer than tasks, so the connection
    is kept; a worker is a process of its own and serves one task at a time."""
    place = bootstrap if access == _ANYBODY else (bootstrap, access)
    if place not in _clients:
        _clients[place] = open_client(bootstrap, access)
    return _clients[place]


def open_client(bootstrap: str, access: Access = _ANYBODY) -> SyncClient:
    """A new client. InvalidRequest, naming a certificate's file that can't be read."""
    tls = None
    if access.tls:
        tls = Tls(
            ca=access.tls_ca or None, certificate=access.tls_cert or None,
            key=access.tls_key or None, server_name=access.tls_server_name or None,
        )  # fmt: skip
    return connect(
        bootstrap, tls=tls, token=access.token or None, username=access.username or None,
        password=access.password or None,
    )  # fmt: skip


class RetryTimer:
    """Pauses between tries of a call that fails for a reason that may pass, with exponential
    backoff, until `timeout_s` have passed without progress."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = 0.0
        self._backoff = Backoff(_RETRY_MIN_MS, _RETRY_MAX_MS, random.Random().random)

    def progressed(self) -> None:
        """The call gave something: the next failure is a first one."""
        self._deadline = 0.0
        self._backoff.reset()

    def pause_after(self, error: LakeMQError) -> None:
        """Wait before the next try. Raises the error if there shall be none."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self._timeout_s
        pause_s = self._backoff.next_s()
        if not error.retriable or now + pause_s > self._deadline:
            raise error
        time.sleep(pause_s)


def retrying(call: Callable[[], T], timeout_s: float) -> T:
    """The result of `call()`, which is repeated for `timeout_s` while its errors are retriable."""
    timer = RetryTimer(timeout_s)
    while True:
        try:
            return call()
        except LakeMQError as error:
            timer.pause_after(error)


def view_of(topics: Sequence[TopicOffsets]) -> dict[str, TopicView]:
    """The broker's answer as planning wants it."""
    return {
        topic.name: TopicView(
            topic.topic_id,
            {
                each.partition: PartitionView(
                    each.log_start_offset, each.high_watermark, each.size_bytes
                )
                for each in topic.partitions
            },
        )
        for topic in topics
    }


def read_batches(
    client: SyncClient,
    wanted: OffsetRange,
    *,
    fetch_bytes: int = 4 << 20,
    retry_timeout_s: float = 60.0,
    fail_on_data_loss: bool = True,
    only: RecordFilter | None = None,
    on_corrupt: TellCorrupt,
) -> Iterator[RecordBatch]:
    """Stored batches that touch the range, each once, in order; a broker that goes away is asked
    again from where it stopped. DataLossError when records of the range are gone. `only`: batches
    without such a record are left out. `on_corrupt`: is told of batches that don't decompress,
    again if they are read again."""
    filtered: dict[str, Any] = {} if only is None else {"wanted": only}
    position, timer = wanted.start, RetryTimer(retry_timeout_s)
    while position < wanted.end:
        before = position
        try:
            for batch in client.fetch_batches(
                wanted.topic, wanted.partition, position, wanted.end,
                topic_id=wanted.topic_id, bytes_max=fetch_bytes, on_corrupt=on_corrupt,
                **filtered,
            ):  # fmt: skip
                position = batch.header.last_offset + 1
                timer.progressed()
                yield batch
            if position == before:  # nothing more came: compacted away, or lost?
                _check_still_held(client, wanted, position)
                return
        except (OffsetOutOfRange, UnknownTopic, UnknownPartition) as error:
            if fail_on_data_loss:
                raise _loss(wanted, position, str(error)) from error
            _log.warning("%s", _loss(wanted, position, str(error)))
            position = _behind_gap(client, wanted, position)
        except LakeMQError as error:
            timer.pause_after(error)


def _loss(wanted: OffsetRange, position: int, why: str) -> DataLossError:
    return DataLossError(
        f"{wanted.topic}-{wanted.partition}: offsets {position} to {wanted.end - 1} can't be read: "
        f"{why}"
    )


def _check_still_held(client: SyncClient, wanted: OffsetRange, position: int) -> None:
    held = view_of([client.describe_topic(wanted.topic)])[wanted.topic]
    ends_at = held.partitions[wanted.partition].high_watermark
    if ends_at < wanted.end:
        raise _loss(wanted, position, f"the journal ends at offset {ends_at}: it lost records")


def _behind_gap(client: SyncClient, wanted: OffsetRange, position: int) -> int:
    """Where reading can go on: the log start if that is ahead, else the end of the range."""
    try:
        held = view_of([client.describe_topic(wanted.topic)])[wanted.topic]
    except UnknownTopic:
        return wanted.end
    here = held.partitions.get(wanted.partition)
    if here is None or held.topic_id != wanted.topic_id or here.log_start <= position:
        return wanted.end
    return min(wanted.end, here.log_start)


def read_arrow(
    client: SyncClient,
    wanted: OffsetRange,
    *,
    columns: Sequence[str],
    batch_rows: int = 16_384,
    batch_bytes: int = 32 << 20,
    fetch_bytes: int = 4 << 20,
    retry_timeout_s: float = 60.0,
    fail_on_data_loss: bool = True,
    keys: frozenset[bytes] | None = None,
    tiered: Tiered = _THROUGH_BROKER,
    on_skipped: OnSkipped | None = None,
) -> Iterator[pa.RecordBatch]:
    """The range's records as Arrow batches of about `batch_rows` rows, or `batch_bytes`; small
    stored batches are put together, since whoever takes them pays for every Arrow batch. With
    `keys` only records that have one of them.

    Stored batches that are corrupt inside are left out, counted and logged; `on_skipped` is told
    of each once. What is wrong with columns that are not asked for is not seen.
    """
    told: set[int] = set()

    def corrupt(first: int, last: int, error: CorruptBatch) -> None:
        span = span_of(first, last, wanted)
        if first in told or span.start >= span.end:
            return
        told.add(first)
        skipped_batches().note(wanted, span, error)
        if on_skipped is not None:
            on_skipped(span)

    asked = tuple(columns) if keys is None or "key" in columns else (*columns, "key")
    gathered: list[pa.RecordBatch] = []
    rows, size, position = 0, 0, wanted.start
    over_grpc = partial(
        read_batches, client, fetch_bytes=fetch_bytes, retry_timeout_s=retry_timeout_s,
        fail_on_data_loss=fail_on_data_loss, only=_filter_of(keys), on_corrupt=corrupt,
    )  # fmt: skip
    for batch in _from_anywhere(client, wanted, tiered, over_grpc, retry_timeout_s, corrupt):
        try:
            arrow = to_arrow(
                batch, topic=wanted.topic, partition=wanted.partition, start=position,
                end=wanted.end, columns=asked,
            )  # fmt: skip
        except CorruptBatch as error:
            corrupt(batch.header.base_offset, batch.header.last_offset, error)
            position = batch.header.last_offset + 1
            continue
        if keys is not None:
            arrow = _with_keys(arrow, keys).select(list(columns))
        position = batch.header.last_offset + 1
        gathered.append(arrow)
        rows += arrow.num_rows
        size += len(batch.view)
        if rows >= batch_rows or size >= batch_bytes:
            yield _put_together(gathered)
            gathered, rows, size = [], 0, 0
    if rows:
        yield _put_together(gathered)


def _from_anywhere(
    client: SyncClient,
    wanted: OffsetRange,
    tiered: Tiered,
    over_grpc: OverGrpc,
    retry_timeout_s: float,
    on_corrupt: TellCorrupt,
) -> Iterator[RecordBatch]:
    """Batches from an object store where one holds them, if `tiered` says so."""
    if tiered.mode == "never":
        return over_grpc(wanted)

    def ask(position: int) -> TieredSegments:
        return client.tiered_segments(
            wanted.topic, wanted.partition, position, wanted.end, topic_id=wanted.topic_id
        )

    def ask_patiently(position: int) -> TieredSegments:
        return retrying(partial(ask, position), retry_timeout_s)

    asks = ask_patiently if tiered.mode == "always" else ask
    return read_placed(wanted, tiered, asks, over_grpc, here=stores(), on_corrupt=on_corrupt)


def _filter_of(keys: frozenset[bytes] | None) -> RecordFilter | None:
    """What the broker can tell batches apart by: one key."""
    if keys is None or len(keys) != 1:
        return None
    (key,) = keys
    return RecordFilter.of(key=key) if len(key) <= _FILTER_MAX_BYTES else None


def _with_keys(batch: pa.RecordBatch, keys: frozenset[bytes]) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import compute

    wanted = pa.array(sorted(keys), pa.binary())
    return batch.filter(compute.is_in(batch.column("key"), value_set=wanted))


def _put_together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
