"""What a reader does with a stored batch that is corrupt inside: leave it out, or raise.

The broker checks batches when they are appended; a log may hold some that an older version took.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, get_args

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import RecordBatch, read_header
from lakemq.broker_core.api.records.stored import CorruptBatches
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters

OnCorrupt = Literal["skip", "raise"]
"""`skip`: leave such a batch out, count it, and log it once a reader, at WARNING to `lakemq`;
`raise`: raise CorruptBatch, naming topic, partition and offset."""
CorruptCallback = Callable[[int, int, CorruptBatch], None]
"""Called with first and last offset of such a batch, which is left out, and the error."""


class CorruptPolicy:
    """`on_corrupt` of one reader. InvalidRequest: neither of its words."""

    def __init__(
        self, on_corrupt: OnCorrupt | CorruptCallback, counters: ConsumerCounters | None = None
    ) -> None:
        self._tell = on_corrupt if callable(on_corrupt) else None
        if self._tell is None and on_corrupt not in get_args(OnCorrupt):
            raise InvalidRequest(f"on_corrupt is {on_corrupt!r}; it takes 'skip' or 'raise'")
        self._raises = on_corrupt == "raise"
        self._skipped = CorruptBatches(logging.getLogger("lakemq"), logging.WARNING)
        self._counters = counters

    def note(self, topic: str, partition: int, offset: int, error: CorruptBatch) -> None:
        """A batch that begins at `offset` can't be read."""
        if self._raises:
            raise CorruptBatch(
                f"topic {topic} partition {partition} offset {offset}: {error}"
            ) from None
        self._skipped.note(topic, partition, offset, error)
        if self._counters is not None:
            self._counters.corrupt_batches = self._skipped.count

    def open(
        self, data: bytes | memoryview, position: int, topic: str, partition: int
    ) -> RecordBatch | None:
        """The batch at `position`, its columns to be looked at later; None: it is left out."""
        try:
            return RecordBatch(data, position, columns_later=True)
        except CorruptBatch as error:
            # The header has a check of its own: offsets of a batch that is corrupt inside can be
            # trusted.
            header = read_header(data, position)
            if self._tell is not None:
                self._tell(header.base_offset, header.last_offset, error)
            else:
                self.note(topic, partition, header.base_offset, error)
            return None
