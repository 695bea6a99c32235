"""What the admin API takes and answers about queues."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakemq.broker_core.api.administration.routes import Answer, Body, OwnChangeQuery, Whole

OFFSET_TO = r"^(earliest|latest|time:[0-9]{1,15}|[0-9]{1,18})$"
_TIME_MAX = 12 * 3_600_000


class QueuePart(Answer):
    """A queue in one partition."""

    partition: int
    start_offset: int
    """Every record below is finished."""
    high_watermark: int
    held: int
    """Records that consumers have now."""
    backlog: int
    """Records that are not finished, at most."""
    dead_letters: int
    """Records on their way to the dead letters."""


class QueueRow(Answer):
    """A queue. It is on the node that leads its topic."""

    node: str
    group: str
    topic: str
    consumers: int
    held: int
    backlog: int
    dead_letters: int
    dead_letter_topic: str
    """Empty: there is none."""


class QueueSettingsAnswer(Answer):
    """Settings of a queue."""

    lock_ms: int
    attempts_max: int
    dead_letter: str
    order: str
    backoff_ms: int
    backoff_ms_max: int
    start: str


class QueueAnswer(QueueRow):
    """A queue, its partitions and settings."""

    partitions: list[QueuePart]
    settings: QueueSettingsAnswer


class QueueBody(Body):
    """Settings that are to be changed; what is left out stays. A queue that is not there is
    created."""

    lock_ms: int | None = Field(default=None, ge=100, le=_TIME_MAX)
    attempts_max: int | None = Field(default=None, ge=0, le=1000)
    dead_letter: str | None = Field(default=None, max_length=249)
    order: Literal["none", "key"] | None = None
    backoff_ms: int | None = Field(default=None, ge=0, le=2 * _TIME_MAX)
    backoff_ms_max: int | None = Field(default=None, ge=0, le=2 * _TIME_MAX)
    start: Literal["earliest", "latest"] | None = None


class QueueReset(Body):
    """Where a queue without consumers shall go on."""

    to: str = Field(pattern=OFFSET_TO)
    """`earliest`, `latest`, an offset, or `time:MS` (since 1970, UTC)."""
    partition: int | None = Field(default=None, ge=0, le=10_000)
    """Left out: all partitions."""


class QueueOffsets(Answer):
    """Where a queue goes on, or would."""

    group: str
    topic: str
    offsets: dict[int, int]
    """By partition."""


class DeletedQueue(Answer):
    """A queue that was deleted, or would be."""

    group: str
    topic: str


class RedriveQuery(OwnChangeQuery):
    """Which dead letters are published again; after them, go on with `next_offset`."""

    partition: Whole = Field(default=0, ge=0, le=10_000)
    """Of the topic of dead letters."""
    offset: Whole = Field(default=0, ge=0, le=2**62)
    """From this one on."""
    limit: Whole = Field(default=100, ge=1, le=500)
    """Dead letters that are looked at."""


class Redriven(Answer):
    """Dead letters that were published to their topic again, or would be. They stay where they are,
    too."""

    dead_letter_topic: str
    partition: int
    next_offset: int
    high_watermark: int
    looked_at: int
    published: int
    """Those of this queue; each is appended to its topic behind all others."""
    offsets: list[int]
    """Of them, in the topic of dead letters."""
