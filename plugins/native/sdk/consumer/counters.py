"""What producers and consumers count: plain numbers, for whatever monitoring there is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProducerCounters:
    """Since the producer was made."""

    records_taken: int = 0
    """Acknowledged by the broker."""
    records_failed: int = 0
    batches_sent: int = 0
    """Repetitions included."""
    bytes_sent: int = 0
    retries: int = 0
    """Batches sent again: after a refusal that may pass, or on a new connection."""
    reconnects: int = 0


@dataclass(slots=True)
class ConsumerCounters:
    """Since the consumer was made."""

    batches: int = 0
    bytes: int = 0
    """Of record batches, as stored."""
    records: int = 0
    """Decoded for the application; of Arrow, handed to it."""
    commits: int = 0
    rebalances: int = 0
    """Times that partitions came or went."""
    partitions_lost: int = 0
    corrupt_batches: int = 0
    """Left out: corrupt inside, though their CRCs are right."""
