"""The options of a member of a consumer group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypedDict

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.consumer.corrupt import OnCorrupt
from lakemq.plugins.native.sdk.consumer.starts import Start
from lakemq.plugins.native.sdk.serializing import Deserializing
from lakemq.plugins.native.wire.filtering import RecordFilter

Partitions = frozenset[TopicPartition]
Callback = Callable[[Partitions], Awaitable[None] | None]
"""Called with the partitions that came or went."""


class ConsumerOptions(TypedDict, total=False):
    """Options of `subscribe`."""

    wanted: RecordFilter
    """Only such records; the others count as handled."""
    start: Start
    """Where to begin without a committed offset: `earliest` (the default), `latest`, a datetime, or
    for each `TopicPartition` one of these or an offset (others begin at `earliest`). When what was
    committed is not there any more, `latest` leads to the end, all else to what is left."""
    auto_commit: bool
    """Commit what the application has come back from, every `auto_commit_interval_ms`, before a
    partition is given up and at the end. Off by default."""
    auto_commit_interval_ms: int
    """5 s by default."""
    on_corrupt: OnCorrupt
    """A stored batch that is corrupt inside: `skip` (the default) leaves it out, counts it and logs
    it once at WARNING; `raise` raises CorruptBatch."""
    instance_id: str
    """Makes this a static member: a restart within the session time-out moves no partition."""
    session_timeout_ms: int
    """After this time without contact others get this member's partitions. 10 s by default."""
    rebalance_timeout_ms: int
    """How long one record may take while a rebalance waits for it. 60 s by default."""
    pattern: str
    """Read all topics whose whole name matches this regular expression, also those that come
    later, in place of `topics`. Internal topics never match."""
    pattern_interval_ms: int
    """How often to look for topics that match (5 s by default)."""
    key_deserializer: Deserializing
    """Makes what the application works with of keys: a function, `json`, `string`, a class."""
    value_deserializer: Deserializing
    """As of keys; `schema`: what the schema registry says of each value. When a value does not fit,
    the consumer raises DeserializationError and stays before it. Arrow tables stay as stored."""
    on_assigned: Callback
    """Partitions have come; called, as the other two, between two records."""
    on_revoked: Callback
    """Before partitions are given up: `commit` still works."""
    on_lost: Callback
    """Partitions are gone, and others may have read on from the committed offsets."""


class AssignOptions(TypedDict, total=False):
    """Options of `assign`; those without a text are as in `ConsumerOptions`."""

    wanted: RecordFilter
    start: Start
    auto_commit: bool
    """As of `subscribe`; needs a group."""
    auto_commit_interval_ms: int
    on_corrupt: OnCorrupt
    key_deserializer: Deserializing
    value_deserializer: Deserializing


def commit_interval(group: str, auto_commit: bool, interval_ms: int) -> int | None:
    """Milliseconds between automatic commits; None: there are none. Raises InvalidRequest."""
    if auto_commit and not group:
        raise InvalidRequest("auto_commit needs a group")
    return interval_ms if auto_commit else None
