"""Errors of the broker core, translated to protocol codes only at the edges.

LakeMQError
├── ConfigError
├── PluginError
├── StartupError
├── InterceptorFailed
├── InvalidRequest
│   ├── InvalidTopicName
│   ├── CorruptBatch
│   ├── BatchTooLarge
│   ├── InvalidTimestamp
│   ├── IncompatibleSchema
│   └── SchemaMismatch
├── TlsFailed
├── NotAuthenticated
│   └── UnknownMechanism
├── NotAuthorized
├── Undecided
├── UnknownTopic
├── UnknownPartition
├── UnknownSchema
├── TopicExists
├── OffsetOutOfRange
│   └── LogTruncated
├── OutOfOrderSequence
├── ProducerFenced
├── UnknownGroup
├── GroupNotEmpty
├── UnknownMember
├── MemberFenced
├── InstanceInUse
├── UnknownTransaction
├── TransactionAborted
├── BatchCommitted
├── StagingFull
├── LockLost
├── UnknownSchedule
├── UnknownNode
├── UnknownEntry
├── Conflict
├── NotLeader
│   └── StaleEpoch
├── NotEnoughReplicas
├── CorruptLog
├── StorageFenced
├── StorageFull
├── Unavailable
└── OutcomeUnknown
"""

from __future__ import annotations


class LakeMQError(Exception):
    """Root of all errors that the broker core raises to plugins and plugins to it."""

    code: str = "INTERNAL"
    """Stable: protocols send it."""
    retriable: bool = False
    """Whether the same request may succeed later."""


class ConfigError(LakeMQError):
    """The configuration is wrong; names file, line and setting."""

    code = "CONFIG"


class PluginError(LakeMQError):
    """A plugin cannot be loaded or started."""

    code = "PLUGIN"


class StartupError(LakeMQError):
    """The node cannot start: a port is taken, the data folder is locked."""

    code = "STARTUP"


class InterceptorFailed(LakeMQError):
    """An interceptor of a plugin raised; names the plugin and the exception."""

    code = "INTERCEPTOR_FAILED"


class InvalidRequest(LakeMQError):
    """The request itself is wrong; names the field and what it takes."""

    code = "INVALID_REQUEST"


class InvalidTopicName(InvalidRequest):
    """A topic name breaks the rules for topic names."""

    code = "INVALID_TOPIC_NAME"


class CorruptBatch(InvalidRequest):
    """Magic, version, length or a CRC of a record batch is wrong."""

    code = "CORRUPT_BATCH"


class BatchTooLarge(InvalidRequest):
    """A record batch is larger than the topic's `batch_max_bytes`."""

    code = "BATCH_TOO_LARGE"


class InvalidTimestamp(InvalidRequest):
    """A record from before 1970, or too far in the future."""

    code = "INVALID_TIMESTAMP"


class IncompatibleSchema(InvalidRequest):
    """A schema that breaks its subject's compatibility."""

    code = "INCOMPATIBLE_SCHEMA"


class SchemaMismatch(InvalidRequest):
    """A value that does not fit the topic's schema; names the record and the field."""

    code = "SCHEMA_MISMATCH"


class TlsFailed(LakeMQError):
    """Client and broker do not agree on TLS; trying again does not help."""

    code = "TLS_FAILED"


class NotAuthenticated(LakeMQError):
    """The credentials are missing, wrong or expired."""

    code = "NOT_AUTHENTICATED"


class UnknownMechanism(NotAuthenticated):
    """No authentication mechanism of several steps has that name."""

    code = "UNKNOWN_MECHANISM"


class NotAuthorized(LakeMQError):
    """The principal may not do that."""

    code = "NOT_AUTHORIZED"


class Undecided(LakeMQError):
    """An authorizer needs time to answer: await `Broker.decide`, then ask again."""

    code = "UNDECIDED"
    retriable = True


class UnknownTopic(LakeMQError):
    """No topic has that name."""

    code = "UNKNOWN_TOPIC"


class UnknownPartition(LakeMQError):
    """The topic has no such partition."""

    code = "UNKNOWN_PARTITION"


class UnknownSchema(LakeMQError):
    """No schema has that id, or no subject that name or version."""

    code = "UNKNOWN_SCHEMA"


class TopicExists(LakeMQError):
    """A topic of that name exists already."""

    code = "TOPIC_EXISTS"


class OffsetOutOfRange(LakeMQError):
    """The offset is below the log's start or above its high watermark."""

    code = "OFFSET_OUT_OF_RANGE"


class LogTruncated(OffsetOutOfRange):
    """What was read before an offset is no longer in the log: an unclean election took it back
    (KIP-320)."""

    code = "LOG_TRUNCATED"

    def __init__(self, message: str, offset: int = 0) -> None:
        """`offset`: up to where the log still is what was read."""
        super().__init__(message)
        self.offset = offset


class OutOfOrderSequence(LakeMQError):
    """Idempotent producer: a gap in its sequence numbers."""

    code = "OUT_OF_ORDER_SEQUENCE"


class ProducerFenced(LakeMQError):
    """Idempotent producer: a newer producer epoch has written."""

    code = "PRODUCER_FENCED"


class UnknownGroup(LakeMQError):
    """No group has that name."""

    code = "UNKNOWN_GROUP"


class GroupNotEmpty(LakeMQError):
    """The group has members; try again when it has none."""

    code = "GROUP_NOT_EMPTY"


class UnknownMember(LakeMQError):
    """Consumer group: the member's session has ended; join again."""

    code = "UNKNOWN_MEMBER"


class MemberFenced(LakeMQError):
    """Consumer group: the partition is assigned to another member by now."""

    code = "MEMBER_FENCED"


class InstanceInUse(LakeMQError):
    """Consumer group: another process has this instance id; try again."""

    code = "INSTANCE_IN_USE"
    retriable = True


class UnknownTransaction(LakeMQError):
    """No such sink or transactional id: never opened, or deleted since."""

    code = "UNKNOWN_TRANSACTION"


class TransactionAborted(LakeMQError):
    """The staged batches are gone; start the batch again."""

    code = "TRANSACTION_ABORTED"


class BatchCommitted(LakeMQError):
    """This batch id, or a higher one, is committed already."""

    code = "BATCH_COMMITTED"


class StagingFull(LakeMQError):
    """Too much is staged and not committed; try again when there is room."""

    code = "STAGING_FULL"
    retriable = True


class LockLost(LakeMQError):
    """Queue: the record's lock has expired; another consumer may have the record."""

    code = "LOCK_LOST"


class UnknownSchedule(LakeMQError):
    """No scheduled batch has that id; it may have been delivered."""

    code = "UNKNOWN_SCHEDULE"


class UnknownNode(LakeMQError):
    """No node has that id."""

    code = "UNKNOWN_NODE"


class UnknownEntry(LakeMQError):
    """There is no such user, rule, quota or plugin."""

    code = "UNKNOWN_ENTRY"


class Conflict(LakeMQError):
    """It has changed meanwhile, or is there already: look at it, then ask again."""

    code = "CONFLICT"


class NotLeader(LakeMQError):
    """Another node leads the partition, or none does; names the leader as far as it is known."""

    code = "NOT_LEADER"
    retriable = True

    def __init__(self, message: str = "", *, leader: str = "", address: str = "", epoch: int = 0):
        super().__init__(message)
        self.leader = leader
        """Node id; empty: no node leads it, or the leader is unknown."""
        self.address = address
        """`host:port` of its native listener; empty: unknown."""
        self.epoch = epoch
        """Leader epoch."""


class StaleEpoch(NotLeader):
    """The leader epoch of the request is not the current one: refresh the metadata."""

    code = "STALE_EPOCH"


class NotEnoughReplicas(LakeMQError):
    """Fewer replicas are in sync than the topic's minimum: nothing was stored; try again."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True


class CorruptLog(LakeMQError):
    """Stored bytes fail their CRC; names file, position and offsets."""

    code = "CORRUPT_LOG"


class StorageFenced(LakeMQError):
    """A write or fsync failed; the log takes no more appends."""

    code = "STORAGE_FENCED"


class StorageFull(LakeMQError):
    """The disk has no space left; try again when it has."""

    code = "STORAGE_FULL"
    retriable = True


class Unavailable(LakeMQError):
    """Not possible now; try again."""

    code = "UNAVAILABLE"
    retriable = True


class OutcomeUnknown(LakeMQError):
    """The request may or may not have been carried out; repeat it idempotently."""

    code = "OUTCOME_UNKNOWN"
    retriable = True


def _tree(root: type[LakeMQError]) -> list[type[LakeMQError]]:
    found = [root]
    for child in root.__subclasses__():
        found += _tree(child)
    return found


BY_CODE: dict[str, type[LakeMQError]] = {error.code: error for error in _tree(LakeMQError)}
"""Error classes by the code that protocols send."""
