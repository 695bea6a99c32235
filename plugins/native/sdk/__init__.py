"""The Python SDK of LakeMQ's native protocol; `import lakemq` re-exports it."""

from lakemq.broker_core.api.errors import (
    BatchCommitted,
    BatchTooLarge,
    CorruptBatch,
    CorruptLog,
    GroupNotEmpty,
    IncompatibleSchema,
    InstanceInUse,
    InvalidRequest,
    InvalidTimestamp,
    InvalidTopicName,
    LakeMQError,
    LockLost,
    LogTruncated,
    MemberFenced,
    NotAuthenticated,
    NotAuthorized,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    SchemaMismatch,
    StagingFull,
    StaleEpoch,
    StorageFenced,
    StorageFull,
    TlsFailed,
    TopicExists,
    TransactionAborted,
    Unavailable,
    UnknownGroup,
    UnknownMember,
    UnknownPartition,
    UnknownSchedule,
    UnknownSchema,
    UnknownTopic,
    UnknownTransaction,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.records.tiered import TieredSegment, TieredSegments
from lakemq.broker_core.api.schemas.types import SchemaInfo, SubjectInfo
from lakemq.broker_core.api.transactions.types import CommitOutcome
from lakemq.broker_core.api.types import (
    Acks,
    Columns,
    Compression,
    Headers,
    Record,
    TopicPartition,
)
from lakemq.plugins.native.sdk.admin import Admin
from lakemq.plugins.native.sdk.arrow import from_arrow, to_arrow
from lakemq.plugins.native.sdk.blocking.client import SyncClient, connect
from lakemq.plugins.native.sdk.blocking.consumer import SyncConsumer
from lakemq.plugins.native.sdk.blocking.producer import SyncProducer
from lakemq.plugins.native.sdk.blocking.queue import SyncQueue, SyncQueueRecord
from lakemq.plugins.native.sdk.blocking.scan import TopicScan
from lakemq.plugins.native.sdk.blocking.services import SyncAdmin, SyncSchedules, SyncSchemas
from lakemq.plugins.native.sdk.blocking.staging import (
    SyncStagedWriter,
    SyncStaging,
    SyncTransaction,
    SyncTransactionalProducer,
)
from lakemq.plugins.native.sdk.client.client import Client
from lakemq.plugins.native.sdk.consumer.consumer import Consumer, ConsumerOptions
from lakemq.plugins.native.sdk.consumer.corrupt import OnCorrupt
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters, ProducerCounters
from lakemq.plugins.native.sdk.consumer.options import AssignOptions
from lakemq.plugins.native.sdk.net.tls import Tls
from lakemq.plugins.native.sdk.producer.options import ProducerOptions
from lakemq.plugins.native.sdk.producer.producer import Producer
from lakemq.plugins.native.sdk.queue.queue import Queue, QueueOptions
from lakemq.plugins.native.sdk.queue.record import QueueRecord
from lakemq.plugins.native.sdk.schedules import Scheduled, Schedules
from lakemq.plugins.native.sdk.schemas import Schemas, Serializer
from lakemq.plugins.native.sdk.serializing import DeserializationError
from lakemq.plugins.native.sdk.telemetry import Telemetry
from lakemq.plugins.native.sdk.tiered import stored_batches
from lakemq.plugins.native.sdk.tracing import trace_context
from lakemq.plugins.native.sdk.transactions.staging import (
    CommitResult,
    SinkHandle,
    StagedWinner,
    StagedWriter,
    Staging,
    StagingOwner,
)
from lakemq.plugins.native.sdk.transactions.transaction import Transaction, TransactionalProducer
from lakemq.plugins.native.sdk.types import (
    ClusterDescription,
    ConsumerRecord,
    GroupDescription,
    GroupMember,
    GroupOffset,
    NewRecord,
    NodeDescription,
    PartitionOffsets,
    PluginDescription,
    QueueDescription,
    QueuePartitionDescription,
    RecordMetadata,
    TopicOffsets,
)
from lakemq.plugins.native.wire.filtering import Condition, RecordFilter

__all__ = [
    "Acks",
    "Admin",
    "AssignOptions",
    "BatchCommitted",
    "BatchTooLarge",
    "Client",
    "ClusterDescription",
    "Columns",
    "CommitOutcome",
    "CommitResult",
    "Compression",
    "Condition",
    "Consumer",
    "ConsumerCounters",
    "ConsumerOptions",
    "ConsumerRecord",
    "CorruptBatch",
    "CorruptLog",
    "DeserializationError",
    "GroupDescription",
    "GroupMember",
    "GroupNotEmpty",
    "GroupOffset",
    "Headers",
    "IncompatibleSchema",
    "InstanceInUse",
    "InvalidRequest",
    "InvalidTimestamp",
    "InvalidTopicName",
    "LakeMQError",
    "LockLost",
    "MemberFenced",
    "NewRecord",
    "NodeDescription",
    "NotAuthenticated",
    "NotAuthorized",
    "NotEnoughReplicas",
    "NotLeader",
    "LogTruncated",
    "OffsetOutOfRange",
    "OnCorrupt",
    "OutOfOrderSequence",
    "OutcomeUnknown",
    "PartitionOffsets",
    "PluginDescription",
    "Producer",
    "ProducerCounters",
    "ProducerFenced",
    "ProducerOptions",
    "Queue",
    "QueueDescription",
    "QueueRecord",
    "QueueOptions",
    "QueuePartitionDescription",
    "Record",
    "RecordBatch",
    "RecordFilter",
    "RecordMetadata",
    "Scheduled",
    "Schedules",
    "StagedWinner",
    "StagedWriter",
    "Staging",
    "StagingFull",
    "StagingOwner",
    "SinkHandle",
    "SchemaInfo",
    "SchemaMismatch",
    "Schemas",
    "Serializer",
    "StaleEpoch",
    "StorageFenced",
    "StorageFull",
    "SubjectInfo",
    "SyncAdmin",
    "SyncClient",
    "SyncConsumer",
    "SyncProducer",
    "SyncQueue",
    "SyncQueueRecord",
    "SyncSchedules",
    "SyncSchemas",
    "SyncStagedWriter",
    "SyncStaging",
    "SyncTransaction",
    "SyncTransactionalProducer",
    "TieredSegment",
    "TieredSegments",
    "Telemetry",
    "Tls",
    "TlsFailed",
    "TopicExists",
    "TopicOffsets",
    "TopicScan",
    "TopicPartition",
    "Transaction",
    "TransactionAborted",
    "TransactionalProducer",
    "Unavailable",
    "UnknownGroup",
    "UnknownMember",
    "UnknownPartition",
    "UnknownSchedule",
    "UnknownSchema",
    "UnknownTopic",
    "UnknownTransaction",
    "connect",
    "from_arrow",
    "stored_batches",
    "to_arrow",
    "trace_context",
]
