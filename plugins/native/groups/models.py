"""What the admin API takes and answers about consumer groups."""

from __future__ import annotations

from pydantic import Field

from lakemq.broker_core.api.administration.routes import Answer, Body

OFFSET_TO = r"^(earliest|latest|time:[0-9]{1,15}|[0-9]{1,18})$"
"""`earliest`, `latest`, `time:MS` or an offset."""


class GroupRow(Answer):
    """A consumer group in a list."""

    node: str
    """Whose group it is: a client finds its group at the node that it was given."""
    name: str
    state: str
    """`empty`, `rebalancing` or `stable`."""
    epoch: int
    members: int
    topics: list[str]
    """Of which offsets were committed or are read."""
    lag: int | None
    """Records that were not committed yet, of partitions whose leader answered; null: of none."""


class AssignedPartition(Answer):
    """A partition that a member reads."""

    topic: str
    partition: int


class GroupMemberAnswer(Answer):
    """A member of a group."""

    member_id: str
    instance_id: str
    epoch: int
    topics: list[str]
    partitions: list[AssignedPartition]


class GroupOffsetAnswer(Answer):
    """Where a group is in a partition."""

    topic: str
    partition: int
    committed_offset: int | None
    """Null: nothing was committed."""
    log_start_offset: int | None
    high_watermark: int | None
    """Null: no node leads the partition, or its leader did not answer."""
    lag: int | None
    committed_ms: int | None
    """When (ms since 1970, UTC)."""
    metadata: str


class GroupAnswer(GroupRow):
    """A group, its members and offsets."""

    group_members: list[GroupMemberAnswer]
    offsets: list[GroupOffsetAnswer]


class ResetBody(Body):
    """Where a group without members shall go on."""

    topic: str = Field(min_length=1, max_length=249)
    to: str = Field(pattern=OFFSET_TO)
    """`earliest`, `latest`, an offset, or `time:MS` (since 1970, UTC)."""
    partition: int | None = Field(default=None, ge=0, le=10_000)
    """Left out: all partitions."""


class ResetRow(Answer):
    """A partition whose committed offset is changed."""

    partition: int
    before: int | None
    after: int


class Reset(Answer):
    """What a reset changes, or would."""

    name: str
    topic: str
    offsets: list[ResetRow]


class DeletedGroup(Answer):
    """A group that was deleted, or would be."""

    name: str
    offsets: int
    """Committed ones that go with it."""
