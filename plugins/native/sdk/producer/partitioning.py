"""Which partition a record goes to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import Columns


class StickyPartitioner:
    """Keys by Kafka's murmur2; records without a key to one partition per batch, in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def of(self, key: bytes | None, partitions: int) -> int:
        """Partition of a record: by hash of its key, or the sticky one without a key."""
        if key is not None and partitions > 1:
            return partition_of(bytes(key), partitions)
        return self._turn % partitions

    def next_batch(self) -> None:
        """Move keyless records on to the next partition."""
        self._turn += 1

    def split(self, columns: Columns, partitions: int) -> dict[int, Columns]:
        """Columns -> columns per partition, order kept."""
        # All of it to one partition, and no copy: most batches have no keys.
        if partitions == 1 or columns.keys is None:
            self._turn += 1
            return {(self._turn - 1) % partitions: columns}
        # One turn for the whole call: keyless records among keyed ones share a partition.
        homes = [self.of(key, partitions) for key in columns.keys]
        self._turn += 1
        return {home: _only(columns, [each == home for each in homes]) for home in set(homes)}


def _only(columns: Columns, wanted: Sequence[bool]) -> Columns:
    values, keys, headers, times = columns
    return Columns(
        list(compress(values, wanted)),
        None if keys is None else list(compress(keys, wanted)),
        None if headers is None else list(compress(headers, wanted)),
        None if times is None else list(compress(times, wanted)),
    )
