"""The options of a producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Acks, Compression
from lakemq.plugins.native.sdk.serializing import Serializing
from lakemq.plugins.native.sdk.types import RecordMetadata

DeliveryCallback = Callable[[LakeMQError | None, RecordMetadata | None], object]
"""Called with the error, or with the place of the record; the other one is None."""


class ProducerOptions(TypedDict, total=False):
    """Options of `producer`."""

    acks: Acks | str
    """An `Acks` or its name; `all`, Kafka's word, means `replicated`. `leader` by default."""
    compression: Compression | str
    """`none` (the default), `lz4` or `zstd`."""
    linger_ms: int
    """How long a batch waits for more records (0). Batches grow under load without it too."""
    batch_max_bytes: int
    """Of one batch of single records (1 MiB)."""
    buffer_max_bytes: int
    """Of records without an outcome (64 MiB): more have to wait."""
    delivery_timeout_ms: int
    """Until a record that gets no ack fails (120 s)."""
    key_serializer: Serializing
    """Makes bytes of keys: a function, `json`, `string`, a class."""
    value_serializer: Serializing
    """Makes bytes of values. Arrow tables and `Columns` are sent as they are."""
