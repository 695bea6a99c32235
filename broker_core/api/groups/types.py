"""Consumer groups: values that protocols and coordinators exchange. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.types import TopicPartition

GROUP_NAME_MAX_BYTES: Final = 249
METADATA_MAX_BYTES: Final = 4096
NOTHING: Final[frozenset[TopicPartition]] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits and times of all groups of a node."""

    groups_max: int = 10_000
    """Groups that have members."""
    user_share_max: float = 0.5
    """Share of `groups_max` that one user may take up."""
    members_max: int = 1000
    """Of one group."""
    session_timeout_ms: int = 10_000
    """Of members that ask for none; and how long a new coordinator waits for members of the former
    one."""
    session_timeout_min_ms: int = 1000
    session_timeout_max_ms: int = 1_800_000
    heartbeat_interval_ms: int = 2000
    rebalance_timeout_ms: int = 60_000
    """Of members that ask for none."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """A group without members and commits is deleted after so long."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a member says (KIP-848)."""

    member_id: str
    """1 to 64 characters, chosen by the member, another one for each joining."""
    sequence: int
    """Grows with every heartbeat of a member, which shows which ones come late."""
    joining: bool = False
    """True until the member has got its first assignment."""
    topics: frozenset[str] = frozenset()
    holds: frozenset[TopicPartition] = NOTHING
    """Partitions that it may still hand out records of."""
    revision: int = 0
    """Of the newest assignment that it has seen."""
    instance_id: str = ""
    """Names a static member across restarts (KIP-345); empty: not static."""
    session_timeout_ms: int = 0
    """0: `GroupSettings.session_timeout_ms`."""
    rebalance_timeout_ms: int = 0
    """0: `GroupSettings.rebalance_timeout_ms`."""
    claims: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Those of `holds` that were given to it by this coordinator or the one before, with the epoch
    in which they were: its lease lasts, and the newest answer did not say `alone`."""


class AssignedPartition(NamedTuple):
    """A partition that a member reads."""

    topic: str
    partition: int
    epoch: int
    """In which it was given. A partition whose epoch changed was another member's in between."""
    committed_offset: int
    """Where to begin; -1: nothing was committed."""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """All the partitions that a member may read, until a newer one comes or its session ends."""

    member_id: str
    member_epoch: int
    """Its commits carry it."""
    revision: int
    """Grows with every change; older ones are to be ignored."""
    sequence: int
    """Of the newest heartbeat that was accepted."""
    partitions: Sequence[AssignedPartition]
    heartbeat_interval_ms: int
    session_timeout_ms: int
    takeover_ms: int
    """A new coordinator waits so long for members of the former one: no member hands out records
    for longer without an answer."""
    alone: bool = False
    """No coordinator after this one waits, as no other node has a copy of the group's offsets now:
    a member that is told so makes no `claims`."""


class OffsetToCommit(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    """Of the next record to read; -1: forget the committed offset."""
    metadata: str = ""
    """The member's own words, `METADATA_MAX_BYTES` at most."""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """Offsets to commit, all or none."""

    group: str
    offsets: Mapping[TopicPartition, OffsetToCommit]
    member_id: str = ""
    """Empty: an operator's, who sets the offsets of a group without members."""
    member_epoch: int = 0
    """Of the member when it read the records."""
    sequence: int = 0
    """Grows with every commit of a member."""


class CommittedOffset(NamedTuple):
    """What was committed last of a partition."""

    offset: int
    committed_ms: int
    """When (ms since 1970, UTC)."""
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member, as operators see it."""

    member_id: str
    instance_id: str
    member_epoch: int
    topics: Sequence[str]
    partitions: Sequence[AssignedPartition]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group is in a partition that it reads or has committed."""

    topic: str
    partition: int
    committed_offset: int
    """-1: none."""
    log_start_offset: int
    """-1: another node leads the partition."""
    high_watermark: int
    """-1: the coordinator has no replica of the partition."""
    committed_ms: int
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, as operators see it."""

    name: str
    state: str
    """`empty`, `rebalancing` or `stable`."""
    epoch: int
    members: Sequence[GroupMember]
    offsets: Sequence[GroupOffset]


class GroupCounters(NamedTuple):
    """Since the start, for metrics."""

    commits: int
    rebalances: int
    """Of the groups that are in memory."""


def check_group_name(name: str) -> None:
    """Raises InvalidRequest unless the name has 1 to 249 bytes and is printable."""
    if not name.isprintable() or not 1 <= len(name.encode()) <= GROUP_NAME_MAX_BYTES:
        raise InvalidRequest(f"group is {name[:300]!r}; it takes 1 to 249 printable characters")
