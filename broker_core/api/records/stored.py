"""Opens stored batches for reading and skips those that are corrupt inside.

A batch is checked when it is appended (`lakemq.broker_core.publishing.batch_check`), but a log may
hold some that an older version accepted: valid header and CRC, so the journal serves them, but a
body that can't be decoded. Neither a start nor a reader may fail because of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch, read_header, split

_SEEN_MAX: Final = 10_000


class CorruptBatches:
    """Counts and logs skipped batches, each once however often it is read."""

    def __init__(self, log: logging.Logger, level: int = logging.ERROR) -> None:
        self.count = 0
        """Batches so far."""
        self._log = log
        self._level = level
        self._seen: dict[tuple[str, int, int], None] = {}

    def note(self, topic: str, partition: int, offset: int, error: CorruptBatch) -> None:
        """`offset`: of the first record of the batch."""
        place = (topic, partition, offset)
        if place in self._seen:
            return
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen[place] = None
        self.count += 1
        self._log.log(
            self._level,
            "topic %s partition %d offset %d: skipping a corrupt batch: %s",
            topic,
            partition,
            offset,
            error,
        )


SKIPPED: Final = CorruptBatches(logging.getLogger(__name__))
"""Of this process."""


def open_stored(
    data: bytes | memoryview, topic: str, partition: int, position: int = 0
) -> RecordBatch | None:
    """The batch at `position`, which is whole outside; None: it is corrupt inside, and noted."""
    try:
        return RecordBatch(data, position)
    except CorruptBatch as error:
        SKIPPED.note(topic, partition, read_header(data, position).base_offset, error)
        return None


def readable_batches(
    data: bytes, topic: str, partition: int, *, start: int = 0
) -> Iterator[RecordBatch]:
    """Batches of user records in fetched `data` that reach offset `start`, but corrupt ones."""
    for position, header in split(data):
        if not header.attributes & CONTROL and header.last_offset >= start:
            opened = open_stored(data, topic, partition, position)
            if opened is not None:
                yield opened
