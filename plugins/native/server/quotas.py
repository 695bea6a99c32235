"""Quotas of native clients: who used more than its share is read from, or answered, later."""

from __future__ import annotations

import asyncio

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import read_header, split
from lakemq.broker_core.api.types import Principal


async def wait_to_write(broker: Broker, principal: Principal) -> None:
    """Wait until the client may send more; before a batch is taken, so that a new stream for each
    batch gains nothing. gRPC's flow control makes the client wait."""
    wait_ms = broker.charge(principal)
    if wait_ms:
        await asyncio.sleep(wait_ms / 1000)


def pay_for_writing(broker: Broker, principal: Principal, batch: bytes) -> None:
    """Note a batch that the client sent."""
    try:
        records = read_header(batch).record_count
    except LakeMQError:
        # The append refuses such a batch; its bytes count all the same.
        records = 0
    broker.charge(principal, bytes_in=len(batch), records_in=records)


async def pay_for_reading(broker: Broker, principal: Principal, batches: bytes) -> None:
    """Note what the client is about to get; wait until it may have it."""
    if not batches:
        return
    records = sum(header.record_count for _, header in split(batches))
    wait_ms = broker.charge(principal, bytes_out=len(batches), records_out=records)
    if wait_ms:
        await asyncio.sleep(wait_ms / 1000)
