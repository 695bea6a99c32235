"""Values that the SDK gives and takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_core.api.types import Acks, Headers


class NewRecord(NamedTuple):
    """A record to be produced. `timestamp_ms` None: the producer's time of sending."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A partition as its leader describes it. Offsets are record numbers, sizes bytes."""

    partition: int
    log_start_offset: int
    high_watermark: int
    """Readers see offsets below it."""
    size_bytes: int
    state: str = "online"
    log_end_offset: int = 0
    segments: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """A topic and what its partitions hold."""

    name: str
    topic_id: str
    """32 hex digits, new at every creation."""
    partitions: tuple[PartitionOffsets, ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a produced record lies, and how durable it is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    acks: Acks
