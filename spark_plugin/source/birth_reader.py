"""Births of Sparkplug B, read from the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lakemq.plugins.native.sdk import SyncClient
from lakemq.spark_plugin.access import Access
from lakemq.spark_plugin.export.decoding.births import (
    BirthCache,
    BirthLog,
    KnownBirths,
    StoredBirth,
)
from lakemq.spark_plugin.export.decoding.topic_names import topic_names
from lakemq.spark_plugin.source.broker_reader import client_of, described, read_arrow, retrying
from lakemq.spark_plugin.source.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Final = ("offset", "key", "value", "headers")
RETRY_TIMEOUT_S: Final = 60.0
_cache: Final = BirthCache()
"""Of this process: Python workers live longer than tasks."""


class JournalBirths:
    """Implements `BirthReader`. Reading raises what `read_arrow` does."""

    def __init__(
        self, client: SyncClient, records: OffsetRange, access: Access, retry_timeout_s: float
    ) -> None:
        """`records`: a range of the partition."""
        self._client = client
        self._records = records
        self._access = access
        self._retry_timeout_s = retry_timeout_s

    def log_start(self) -> int:
        """See `BirthReader`."""
        topic, partition = self._records.topic, self._records.partition
        view = retrying(lambda: described(self._client, topic), self._retry_timeout_s)
        return view.partitions[partition].log_start

    def births(self, start: int, end: int) -> Iterator[StoredBirth]:
        """See `BirthReader`."""
        batches = read_arrow(
            self._client, self._records._replace(start=start, end=end), columns=_COLUMNS,
            retry_timeout_s=self._retry_timeout_s,
            # What retention deletes meanwhile is no birth that anything here could follow.
            fail_on_data_loss=False, tiered=self._access.tiered,
        )  # fmt: skip
        for batch in batches:
            yield from _births_in(batch)


def _births_in(batch: pa.RecordBatch) -> Iterator[StoredBirth]:
    from pyarrow import compute

    names = topic_names(batch)
    wanted = compute.fill_null(compute.match_substring(names, "BIRTH/"), False)
    columns = [batch.column("offset"), names, batch.column("value")]
    for offset, name, value in zip(
        *(each.filter(wanted).to_pylist() for each in columns), strict=True
    ):
        if value is not None:
            yield StoredBirth(offset, name, value)


def birth_log(
    client: SyncClient,
    records: OffsetRange,
    access: Access,
    retry_timeout_s: float = RETRY_TIMEOUT_S,
    known: KnownBirths | None = None,
) -> BirthLog:
    """The births that records of a range follow."""
    reader = JournalBirths(client, records, access, retry_timeout_s)
    partition = (records.topic_id, records.partition)
    return BirthLog(reader, records.start, known, partition, _cache)


class BirthsOf:
    """`FindBirths` for records of ranges, of which each partition's come in order without gaps,
    wherever they begin. Travels to executors."""

    def __init__(
        self, ranges: Sequence[OffsetRange], access: Access, client: SyncClient | str
    ) -> None:
        """`client`: or the address of a broker, of which this process has one."""
        self._ranges = {each.partition: each for each in ranges}
        self._access = access
        self._client = client
        self._logs: dict[int, BirthLog] = {}

    def __call__(self, partition: int, offset: int) -> BirthLog:
        """The births that the record may follow."""
        log = self._logs.get(partition)
        if log is None:
            client = self._client
            if isinstance(client, str):
                client = client_of(client, self._access)
            records = self._ranges[partition]._replace(start=offset)
            log = self._logs[partition] = birth_log(client, records, self._access)
        return log
