"""One produce stream to one node."""

from __future__ import annotations

import asyncio

from lakemq.plugins.native.sdk.net.channels import AsyncStream
from lakemq.plugins.native.sdk.producer.accumulator import ProducerBatch


class ProduceStream:
    """What is to be sent to a node, and the task that does."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Empty: the node that the client is connected to."""
        self.outgoing: asyncio.Queue[ProducerBatch] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self.call: AsyncStream | None = None
        """Under way; None: between two."""
        self.led_elsewhere = asyncio.Event()
        """Set when other nodes lead what waits for the next call."""
