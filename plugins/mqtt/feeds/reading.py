"""Reads what can be read of stored batches, and counts the rest.

What cannot be read is left out, counted and named in the log by its offset: no record ends a
start, or keeps what comes after it from anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import CommittedBatch
from lakemq.plugins.mqtt.state.counters import Counters
from lakemq.plugins.mqtt.state.records import Meta, Names, RecordReader
from lakemq.plugins.mqtt.wire.messages import Message, Place

log = logging.getLogger(__name__)
_REPEATED: Final = 4
"""Records to a topic name from which on a look at the names alone takes less."""


class Salvage:
    """Reads what can be read of batches, and keeps count of the rest."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def messages(
        self,
        reader: RecordReader,
        batch: CommittedBatch,
        heard: Callable[[str], bool] | None = None,
        at: Collection[int] | None = None,
    ) -> Iterator[tuple[Message, Meta]]:
        """As `RecordReader.read`; nothing of a batch that is corrupt inside."""
        # Columns are as they were appended: no bytes are decoded that could be corrupt.
        if batch.columns is not None:
            names_repeat = _REPEATED * len(set(batch.columns.keys or ())) <= len(
                batch.columns.values
            )
            if heard is not None and names_repeat and not _any_heard(reader.names(batch), heard):
                return iter(())
            return reader.read(batch, heard, at=at)
        return self._messages(reader, batch, heard, at)

    def _messages(
        self,
        reader: RecordReader,
        batch: CommittedBatch,
        heard: Callable[[str], bool] | None,
        at: Collection[int] | None,
    ) -> Iterator[tuple[Message, Meta]]:
        try:
            opened = RecordBatch(batch.data)
            if heard is None or _any_heard(reader.names(batch, opened), heard):
                yield from reader.read(batch, heard, opened, at)
        except CorruptBatch as error:
            self._left_out(batch, error)

    def opened(self, batch: CommittedBatch) -> RecordBatch | None:
        """None: it is corrupt inside."""
        try:
            return RecordBatch(batch.data)
        except CorruptBatch as error:
            self._left_out(batch, error)
            return None

    def refused(self, place: Place, error: Exception) -> None:
        """A record of our own topics says nothing that can be read."""
        self._counters.records_unreadable += 1
        log.error("%s-%d offset %d is unreadable and left out: %s", *place, error)

    def _left_out(self, batch: CommittedBatch, error: CorruptBatch) -> None:
        self._counters.batches_corrupt += 1
        place = (batch.topic, batch.partition, batch.base_offset)
        log.error("%s-%d offset %d: the batch is corrupt and left out: %s", *place, error)


def _any_heard(names: Names, heard: Callable[[str], bool]) -> bool:
    """Whether a batch is to be looked through; most are not, of what clients of other nodes publish
    or has no subscriber."""
    return names is None or "" in names or any(map(heard, names))
