"""Reading a topic that the broker keeps for itself, at start. Edge: awaits the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from broker_core.api.ports import Broker
from broker_core.api.stored_batches import readable_batches

_READ_BYTES: Final = 4 * 1024 * 1024


async def records_of(
    broker: Broker, topic: str
) -> AsyncIterator[tuple[bytes | None, bytes | None]]:
    """(key, value) of every record, partition by partition, in order; none if the topic is not
    there. Raises what `PartitionLog.fetch` does."""
    found = next((each for each in broker.topics() if each.name == topic), None)
    for number in range(found.partitions if found is not None else 0):
        log = broker.partition(topic, number)
        offset = log.log_start_offset
        while (got := await log.fetch(offset, bytes_max=_READ_BYTES)).data:
            for batch in readable_batches(got.data, topic, number):
                for key, value in zip(batch.keys(), batch.values(), strict=True):
                    yield key, value
            offset = got.next_offset
