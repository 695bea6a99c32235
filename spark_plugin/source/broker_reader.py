"""What Spark reads from brokers: topic views for planning, and records as Arrow batches."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
    Unavailable,
    UnknownPartition,
    UnknownTopic,
    connect,
    to_arrow,
)
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptCallback
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.errors import DataLossError
from lakemq.spark_plugin.source.corrupt import OnSkipped, skipped_batches, span_of
from lakemq.spark_plugin.source.kept_batches import KeptBatches
from lakemq.spark_plugin.source.planning import OffsetRange, PartitionView, TopicView
from lakemq.spark_plugin.source.tiered import OverGrpc, read_placed, stores
from lakemq.spark_plugin.tiered_options import Tiered

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_log = logging.getLogger("lakemq.spark")

_ANONYMOUS = Access()
_THROUGH_BROKER = Tiered("never")
_TIMEOUT_S = 30.0
_FILTER_MAX_BYTES = 4096
_RETRY_MIN_MS = 250
_RETRY_MAX_MS = 4000

_clients: dict[str | tuple[str, Access], SyncClient] = {}
_kept: dict[tuple[str, Access], KeptBatches] = {}


def client_of(bootstrap: str, access: Access = _ANONYMOUS) -> SyncClient:
    """This process's client of a broker. Python workers live longer than tasks, so the connection
    is kept; a worker is a process of its own and serves one task at a time."""
    key = bootstrap if access == _ANONYMOUS else (bootstrap, access)
    # No lock: a Python worker of Spark runs one task at a time, in one thread.
    if key not in _clients:
        _clients[key] = open_client(bootstrap, access)
    return _clients[key]


def kept_for(bootstrap: str, access: Access) -> KeptBatches:
    """What this process has kept of the batches that these credentials gave it; for one thread, as
    `client_of`."""
    return _kept.setdefault((bootstrap, access), KeptBatches())


def open_client(
    bootstrap: str, access: Access = _ANONYMOUS, *, timeout_s: float = _TIMEOUT_S
) -> SyncClient:
    """A new client. InvalidRequest, naming a certificate's file that can't be read."""
    tls = None
    if access.tls:
        tls = Tls(
            ca=access.tls_ca or None, certificate=access.tls_cert or None,
            key=access.tls_key or None, server_name=access.tls_server_name or None,
        )  # fmt: skip
    return connect(
        bootstrap, timeout_s=timeout_s, tls=tls, token=access.token or None,
        username=access.username or None, password=access.password or None,
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
        # Counted from the first failure without progress, not from the start: a long range may take
        # hours.
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


_NOT_DESCRIBED: Final = ("remote", "offline")


def view_of(topics: Sequence[TopicOffsets]) -> dict[str, TopicView]:
    """The broker's answer in the form that planning uses."""
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


def described(client: SyncClient, name: str) -> TopicView:
    """One topic, as the leaders of all its partitions describe it. Raises UnknownTopic,
    Unavailable."""
    topic = client.describe_topic(name)
    check_described([topic])
    return view_of([topic])[name]


def check_described(topics: Sequence[TopicOffsets]) -> None:
    """Raises Unavailable when a partition was not described by its leader: where it ends is not
    known then, nor that anything is lost."""
    for topic in topics:
        for each in topic.partitions:
            if each.state in _NOT_DESCRIBED:
                raise Unavailable(
                    f"{topic.name}-{each.partition} is {each.state}: {each.detail or 'no leader'}"
                )


def read_batches(
    client: SyncClient,
    wanted: OffsetRange,
    *,
    fetch_bytes: int = 4 << 20,
    retry_timeout_s: float = 60.0,
    fail_on_data_loss: bool = True,
    only: RecordFilter | None = None,
    on_corrupt: CorruptCallback,
) -> Iterator[RecordBatch]:
    """Stored batches that touch the range, each once, in order; a broker that goes away is asked
    again from where it stopped. DataLossError when records of the range are gone. `only`: batches
    without such a record are skipped. `on_corrupt`: is called with batches that do not decompress,
    again if they are read again."""
    filtered: dict[str, Any] = {} if only is None else {"wanted": only}
    offset, timer = wanted.start, RetryTimer(retry_timeout_s)
    while offset < wanted.end:
        before = offset
        try:
            for batch in client.fetch_batches(
                wanted.topic, wanted.partition, offset, wanted.end,
                topic_id=wanted.topic_id, bytes_max=fetch_bytes, on_corrupt=on_corrupt,
                **filtered,
            ):  # fmt: skip
                # Before the yield: a failure later on asks from behind this batch, which the caller
                # has.
                offset = batch.header.last_offset + 1
                timer.progressed()
                yield batch
            if offset == before:  # no more batches: compacted away, or lost?
                _check_still_held(client, wanted, offset)
                return
        except (OffsetOutOfRange, UnknownTopic, UnknownPartition) as error:
            # Records of a planned range are gone: retention or a deletion was quicker than the
            # task.
            if fail_on_data_loss:
                raise _loss(wanted, offset, str(error)) from error
            _log.warning("%s", _loss(wanted, offset, str(error)))
            offset = _end_of_gap(client, wanted, offset)
        except LakeMQError as error:
            timer.pause_after(error)


def _loss(wanted: OffsetRange, offset: int, why: str) -> DataLossError:
    return DataLossError(
        f"{wanted.topic}-{wanted.partition}: offsets {offset} to {wanted.end - 1} cannot be read: "
        f"{why}"
    )


def _check_still_held(client: SyncClient, wanted: OffsetRange, offset: int) -> None:
    held = described(client, wanted.topic)
    ends_at = held.partitions[wanted.partition].high_watermark
    if ends_at < wanted.end:
        raise _loss(wanted, offset, f"the journal ends at offset {ends_at}: it lost records")


def _end_of_gap(client: SyncClient, wanted: OffsetRange, offset: int) -> int:
    """The offset to continue at: the log start if that is higher, else the end of the range."""
    try:
        held = described(client, wanted.topic)
    except UnknownTopic:
        return wanted.end
    here = held.partitions.get(wanted.partition)
    if here is None or held.topic_id != wanted.topic_id or here.log_start <= offset:
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
    kept: KeptBatches | None = None,
) -> Iterator[pa.RecordBatch]:
    """The range's records as Arrow batches of about `batch_rows` rows, or `batch_bytes`; small
    stored batches are concatenated, since every Arrow batch has a cost of its own. With
    `keys` only records that have one of them. `kept`: where the first stored batch may be and the
    last one is left; not with `keys`.

    Corrupt batches are skipped, counted and logged; `on_skipped` is called once for each. Damage in
    columns that are not read is not noticed.
    """
    reported: set[int] = set()

    def corrupt(first: int, last: int, error: CorruptBatch) -> None:
        span = span_of(first, last, wanted)
        # A retry reads the batch again; one outside the range is for the task that has its offsets.
        if first in reported or span.start >= span.end:
            return
        reported.add(first)
        skipped_batches().record(wanted, span, error)
        if on_skipped is not None:
            on_skipped(span)

    # The broker's filter works on whole batches, so keys are compared here once more.
    asked = tuple(columns) if keys is None or "key" in columns else (*columns, "key")
    gathered: list[pa.RecordBatch] = []
    rows, size, offset = 0, 0, wanted.start
    over_grpc = partial(
        read_batches, client, fetch_bytes=fetch_bytes, retry_timeout_s=retry_timeout_s,
        fail_on_data_loss=fail_on_data_loss, only=_filter_of(keys), on_corrupt=corrupt,
    )  # fmt: skip

    def stored(part: OffsetRange) -> Iterator[RecordBatch]:
        return _stored_batches(client, part, tiered, over_grpc, retry_timeout_s, corrupt)

    for batch in kept.through(wanted, stored) if kept is not None else stored(wanted):
        try:
            arrow = to_arrow(
                batch, topic=wanted.topic, partition=wanted.partition, start=offset,
                end=wanted.end, columns=asked,
            )  # fmt: skip
        except CorruptBatch as error:
            corrupt(batch.header.base_offset, batch.header.last_offset, error)
            offset = batch.header.last_offset + 1
            continue
        if keys is not None:
            arrow = _with_keys(arrow, keys).select(list(columns))
        offset = batch.header.last_offset + 1
        gathered.append(arrow)
        rows += arrow.num_rows
        size += len(batch.view)
        if rows >= batch_rows or size >= batch_bytes:
            yield _concatenated(gathered)
            gathered, rows, size = [], 0, 0
    if rows:
        yield _concatenated(gathered)


def _stored_batches(
    client: SyncClient,
    wanted: OffsetRange,
    tiered: Tiered,
    over_grpc: OverGrpc,
    retry_timeout_s: float,
    on_corrupt: CorruptCallback,
) -> Iterator[RecordBatch]:
    """Batches from the broker, or where `tiered` allows it from the store that holds them."""
    if tiered.mode == "never":
        return over_grpc(wanted)

    def find(offset: int) -> TieredSegments:
        return client.tiered_segments(
            wanted.topic, wanted.partition, offset, wanted.end, topic_id=wanted.topic_id
        )

    def find_with_retries(offset: int) -> TieredSegments:
        return retrying(partial(find, offset), retry_timeout_s)

    find_segments = find_with_retries if tiered.mode == "always" else find
    return read_placed(
        wanted, tiered, find_segments, over_grpc, here=stores(), on_corrupt=on_corrupt
    )


def _filter_of(keys: frozenset[bytes] | None) -> RecordFilter | None:
    """The filter that the broker applies to batches: one key; None: it cannot filter."""
    if keys is None or len(keys) != 1:
        return None
    (key,) = keys
    return RecordFilter.of(key=key) if len(key) <= _FILTER_MAX_BYTES else None


def _with_keys(batch: pa.RecordBatch, keys: frozenset[bytes]) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import compute

    wanted = pa.array(sorted(keys), pa.binary())
    return batch.filter(compute.is_in(batch.column("key"), value_set=wanted))


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
