"""What a consumer hands to its application: records of one partition at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice, repeat, zip_longest
from operator import length_hint
from typing import TYPE_CHECKING

from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.headers import decode_headers
from lakemq.broker_core.api.types import Headers, TopicPartition
from lakemq.plugins.native.sdk.consumer.fetching import Arrived, Reading
from lakemq.plugins.native.sdk.consumer.positions import Span
from lakemq.plugins.native.sdk.group.membership import Grant
from lakemq.plugins.native.sdk.serializing import DeserializationError
from lakemq.plugins.native.sdk.types import ConsumerRecord
from lakemq.plugins.native.wire.filtering import RecordFilter

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Chunk:
    """Records of one partition, on their way to the application."""

    place: TopicPartition
    grant: Grant
    reading: Reading
    """As it was when they were asked for: another one means that they are out of date."""
    rest: Iterator[ConsumerRecord]
    """Those that were not handed out."""
    end: int
    """Where to go on behind the last."""
    version: int = -1
    check_ms: float = 0.0
    """When to look again whether records may still be handed out."""

    @property
    def is_empty(self) -> bool:
        """Whether all have been handed out."""
        return not length_hint(self.rest)

    def take(self, count: int) -> list[ConsumerRecord]:
        """The next ones, `count` at most."""
        taken: list[ConsumerRecord] = []
        try:
            taken.extend(islice(self.rest, count))
        except DeserializationError:
            # What came before it is handed out first; it comes again with the next call.
            if not taken:
                raise
        return taken

    def span(self, records: Sequence[ConsumerRecord]) -> Span:
        """What `take` gave."""
        end = self.end if self.is_empty else records[-1].offset + 1
        return Span(self.place, records[0].offset, end)


def decoded(
    place: TopicPartition, batch: RecordBatch, first: int, wanted: RecordFilter | None
) -> list[ConsumerRecord]:
    """The wanted records of a batch from offset `first` on, made by columns."""
    heads = batch.encoded_headers()
    headers: Iterable[Headers] = map(decode_headers, heads) if any(heads) else repeat(())
    records = list(
        map(
            ConsumerRecord,
            repeat(place.topic),
            repeat(place.partition),
            batch.offsets(),
            batch.timestamps_ms(),
            batch.keys(),
            batch.values(),
            headers,
        )
    )
    if wanted is not None:
        records = list(compress(records, wanted.rows(batch)))
    if records and records[0].offset < first:
        return [record for record in records if record.offset >= first]
    return records


def with_ends(arrived: Arrived) -> Iterator[tuple[RecordBatch, int]]:
    """Batches, and where to go on behind each."""
    for batch, following in zip_longest(arrived.batches, arrived.batches[1:]):
        yield batch, arrived.next_offset if following is None else following.header.base_offset


def only(found: pa.RecordBatch, wanted: Sequence[bool]) -> pa.RecordBatch:
    """The rows that are wanted; `found` may lack the first of the batch that `wanted` is about."""
    import pyarrow as pa

    return found.filter(pa.array(wanted[len(wanted) - found.num_rows :], pa.bool_()))
