"""Errors of the broker core, translated to protocol codes only at the edges.

    LakeMQError
    ├── ConfigError              the configuration is wrong: names file, line, key
    ├── PluginError              a plugin cannot be loaded or started
    ├── StartupError             the node cannot start: port taken, data folder locked
    ├── InterceptorFailed        a plugin's interceptor raised: names plugin and exception
    ├── InvalidRequest           the request itself is wrong: names the field
    │   ├── InvalidTopicName
    │   ├── CorruptBatch         magic, version, length or CRC of a record batch is wrong
    │   ├── BatchTooLarge
    │   ├── InvalidTimestamp     a record from before 1970, or too far in the future
    │   ├── IncompatibleSchema   a schema that breaks the subject's compatibility
    │   └── SchemaMismatch       a value that does not fit the topic's schema: names record, field
    ├── TlsFailed                client and broker do not agree on TLS; trying again won't help
    ├── NotAuthenticated
    │   └── UnknownMechanism     no such way to authenticate in several steps
    ├── NotAuthorized
    ├── Undecided                somebody is to be asked first: `Broker.decide`, then again
    ├── UnknownTopic
    ├── UnknownPartition
    ├── UnknownSchema
    ├── TopicExists
    ├── OffsetOutOfRange
    ├── OutOfOrderSequence       idempotent producer: a gap in sequence numbers
    ├── ProducerFenced           idempotent producer: an older epoch
    ├── UnknownGroup
    ├── GroupNotEmpty            the group has members; ask again when it has none
    ├── UnknownMember            consumer group: the session has ended; join again
    ├── MemberFenced             consumer group: the partition is another member's by now
    ├── InstanceInUse            consumer group: another process has this instance id; try again
    ├── UnknownTransaction       nobody opened this sink or transactional id, or it was forgotten
    ├── TransactionAborted       what was staged is not there any more; begin the batch anew
    ├── BatchCommitted           this batch id, or a higher one, is committed already
    ├── StagingFull              too much is staged and not committed; try again when there is room
    ├── LockLost                 queue: the record's lock has ended; another consumer may have it
    ├── UnknownSchedule          no such record waits for its time; it may have been delivered
    ├── NotLeader                another node leads the partition: ask there
    │   └── StaleEpoch           the leader has been replaced, or has not heard so yet
    ├── CorruptLog               stored bytes fail their CRC: names file, position, offsets
    ├── StorageFenced            a write or fsync failed; this log takes no more appends
    ├── StorageFull              no space; try again when there is
    ├── Unavailable              not now; try again
    └── OutcomeUnknown           may or may not have happened; ask again idempotently

`retriable` tells a client whether the same request may succeed later.
"""

from __future__ import annotations


class LakeMQError(Exception):
    """Root of all errors that cross the door. `code` is stable and goes over the wire."""

    code: str = "INTERNAL"
    retriable: bool = False


class ConfigError(LakeMQError):
    code = "CONFIG"


class PluginError(LakeMQError):
    code = "PLUGIN"


class StartupError(LakeMQError):
    code = "STARTUP"


class InterceptorFailed(LakeMQError):
    code = "INTERCEPTOR_FAILED"


class InvalidRequest(LakeMQError):
    code = "INVALID_REQUEST"


class InvalidTopicName(InvalidRequest):
    code = "INVALID_TOPIC_NAME"


class CorruptBatch(InvalidRequest):
    code = "CORRUPT_BATCH"


class BatchTooLarge(InvalidRequest):
    code = "BATCH_TOO_LARGE"


class InvalidTimestamp(InvalidRequest):
    code = "INVALID_TIMESTAMP"


class IncompatibleSchema(InvalidRequest):
    code = "INCOMPATIBLE_SCHEMA"


class SchemaMismatch(InvalidRequest):
    code = "SCHEMA_MISMATCH"


class TlsFailed(LakeMQError):
    code = "TLS_FAILED"


class NotAuthenticated(LakeMQError):
    code = "NOT_AUTHENTICATED"


class UnknownMechanism(NotAuthenticated):
    code = "UNKNOWN_MECHANISM"


class NotAuthorized(LakeMQError):
    code = "NOT_AUTHORIZED"


class Undecided(LakeMQError):
    code = "UNDECIDED"
    retriable = True


class UnknownTopic(LakeMQError):
    code = "UNKNOWN_TOPIC"


class UnknownPartition(LakeMQError):
    code = "UNKNOWN_PARTITION"


class UnknownSchema(LakeMQError):
    code = "UNKNOWN_SCHEMA"


class TopicExists(LakeMQError):
    code = "TOPIC_EXISTS"


class OffsetOutOfRange(LakeMQError):
    code = "OFFSET_OUT_OF_RANGE"


class OutOfOrderSequence(LakeMQError):
    code = "OUT_OF_ORDER_SEQUENCE"


class ProducerFenced(LakeMQError):
    code = "PRODUCER_FENCED"


class UnknownGroup(LakeMQError):
    code = "UNKNOWN_GROUP"


class GroupNotEmpty(LakeMQError):
    code = "GROUP_NOT_EMPTY"


class UnknownMember(LakeMQError):
    code = "UNKNOWN_MEMBER"


class MemberFenced(LakeMQError):
    code = "MEMBER_FENCED"


class InstanceInUse(LakeMQError):
    code = "INSTANCE_IN_USE"
    retriable = True


class UnknownTransaction(LakeMQError):
    code = "UNKNOWN_TRANSACTION"


class TransactionAborted(LakeMQError):
    code = "TRANSACTION_ABORTED"


class BatchCommitted(LakeMQError):
    code = "BATCH_COMMITTED"


class StagingFull(LakeMQError):
    code = "STAGING_FULL"
    retriable = True


class LockLost(LakeMQError):
    code = "LOCK_LOST"


class UnknownSchedule(LakeMQError):
    code = "UNKNOWN_SCHEDULE"


class NotLeader(LakeMQError):
    """Names who leads, if anybody is known to."""

    code = "NOT_LEADER"
    retriable = True

    def __init__(self, message: str = "", *, leader: str = "", address: str = "", epoch: int = 0):
        super().__init__(message)
        self.leader = leader
        """Node id; empty: nobody, or not known."""
        self.address = address
        """`host:port` of its native listener; empty: not known."""
        self.epoch = epoch


class StaleEpoch(NotLeader):
    code = "STALE_EPOCH"


class CorruptLog(LakeMQError):
    code = "CORRUPT_LOG"


class StorageFenced(LakeMQError):
    code = "STORAGE_FENCED"


class StorageFull(LakeMQError):
    code = "STORAGE_FULL"
    retriable = True


class Unavailable(LakeMQError):
    code = "UNAVAILABLE"
    retriable = True


class OutcomeUnknown(LakeMQError):
    code = "OUTCOME_UNKNOWN"
    retriable = True


def _tree(root: type[LakeMQError]) -> list[type[LakeMQError]]:
    found = [root]
    for child in root.__subclasses__():
        found += _tree(child)
    return found


BY_CODE: dict[str, type[LakeMQError]] = {error.code: error for error in _tree(LakeMQError)}
"""Error classes by the code that stands for them on the wire."""
