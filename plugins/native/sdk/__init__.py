"""The Python SDK of LakeMQ's native protocol; `import lakemq` re-exports it."""

from broker_core.api.errors import (
    BatchTooLarge,
    CorruptBatch,
    CorruptLog,
    InvalidRequest,
    InvalidTopicName,
    LakeMQError,
    NotAuthenticated,
    NotAuthorized,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFenced,
    StorageFull,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from broker_core.api.record_batch import RecordBatch
from broker_core.api.types import Acks, Columns, Compression, Headers, Record
from plugins.native.sdk.arrow import from_arrow, to_arrow
from plugins.native.sdk.client import Client
from plugins.native.sdk.producer import Producer
from plugins.native.sdk.sync_client import SyncClient, connect
from plugins.native.sdk.types import NewRecord, PartitionOffsets, RecordMetadata, TopicOffsets

__all__ = [
    "Acks",
    "BatchTooLarge",
    "Client",
    "Columns",
    "Compression",
    "CorruptBatch",
    "CorruptLog",
    "Headers",
    "InvalidRequest",
    "InvalidTopicName",
    "LakeMQError",
    "NewRecord",
    "NotAuthenticated",
    "NotAuthorized",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "OutcomeUnknown",
    "PartitionOffsets",
    "Producer",
    "ProducerFenced",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "StorageFenced",
    "StorageFull",
    "SyncClient",
    "TopicExists",
    "TopicOffsets",
    "Unavailable",
    "UnknownPartition",
    "UnknownTopic",
    "connect",
    "from_arrow",
    "to_arrow",
]
