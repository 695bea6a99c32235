"""What operators do to a cluster as a whole: nodes, partitions, users, rules, quotas.

The command line and the admin API both come through here (`broker_core.administration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource, Rule
from lakemq.broker_core.api.access import Verdict as Verdict
from lakemq.broker_core.api.types import Leadership
from lakemq.meta_service.api.auth import Quota as Quota
from lakemq.meta_service.api.types import ClusterLoad as ClusterLoad
from lakemq.meta_service.api.types import MetaStatus as MetaStatus
from lakemq.meta_service.api.types import Rebalance as Rebalance

RebalanceAction = Literal["plan", "start", "stop"]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node as `lakemq node list` shows it."""

    node: str
    state: str
    rack: str
    leads: int
    replicas: int
    figures: Mapping[str, float]
    """Of its last heartbeat, such as `disk_used_ratio`."""
    silent_s: float | None
    """Since that heartbeat; None: the MetaService's leader has heard of none."""
    version: str
    broker_epoch: int
    roles: Sequence[str]
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UserReport:
    """A user that the MetaService keeps, without anything secret."""

    name: str
    roles: Sequence[str]
    disabled: bool
    login: Sequence[str]
    """`password` and SCRAM mechanisms."""


@dataclass(frozen=True, slots=True)
class KeyReport:
    """An API key that the MetaService keeps, without what one could log in with."""

    key_id: str
    says: str
    """What it is for."""
    roles: Sequence[str]
    made_by: str
    made_ms: int
    expires_ms: int | None
    """None: never."""


class ClusterOperations(Protocol):
    """Errors of the MetaService are LakeMQErrors here: InvalidRequest, NotFound ones by their
    kind, Conflict, Unavailable, OutcomeUnknown."""

    async def status(self) -> MetaStatus:
        """Of the MetaService."""

    async def loads(self) -> ClusterLoad:
        """What its leader has heard from nodes, and advice."""

    async def nodes(self) -> Sequence[NodeReport]:
        """All registered nodes, by id."""

    async def drain(self, node: str) -> None:
        """Move leadership away, place nothing new there."""

    async def undrain(self, node: str) -> None:
        """End it."""

    async def remove(self, node: str) -> None:
        """Forget a node that is gone and holds no replica."""

    async def rebalance(
        self, action: RebalanceAction, *, leaving: Sequence[str] = (), at_once: int = 20
    ) -> Rebalance:
        """Plan, start or stop moving replicas."""

    async def move(
        self, topic: str, partition: int, target: Sequence[str], *, dry_run: bool = False
    ) -> Leadership:
        """Begin to move a partition; what it was before."""

    async def elect(self, topic: str, partition: int) -> Leadership:
        """Let the preferred replica lead; what the partition is now."""

    async def elect_unclean(
        self, topic: str, partition: int, to: str, *, dry_run: bool = False
    ) -> tuple[str, int]:
        """Let a replica lead that may lack acknowledged records: (node, leader epoch, 0 where
        nothing was done)."""

    async def users(self) -> Sequence[UserReport]:
        """By name."""

    async def put_user(
        self,
        name: str,
        *,
        create: bool,
        password: str | None,
        roles: Sequence[str] | None,
        disabled: bool | None,
    ) -> tuple[UserReport | None, UserReport]:
        """Create or change a user: (before, after). None: as it is."""

    async def delete_user(self, name: str) -> None:
        """Delete a user."""

    async def keys(self) -> Sequence[KeyReport]:
        """API keys, by id."""

    def key_uses(self) -> Mapping[str, int]:
        """Id -> when this node was shown a key last (ms since 1970, UTC), since it started."""

    async def add_key(
        self, says: str, roles: Sequence[str], made_by: str, expires_ms: int | None
    ) -> tuple[KeyReport, str]:
        """A new key, and its text: it is never told again."""

    async def delete_key(self, key_id: str) -> None:
        """Revoke a key, at once and on all nodes."""

    async def rules(self) -> Sequence[Rule]:
        """Those that the MetaService keeps, by id."""

    async def put_rule(self, rule: Rule) -> Sequence[str]:
        """Add or replace rules, one for each principal and operation; their ids."""

    async def delete_rule(self, rule_id: str) -> None:
        """Delete a rule."""

    def verdict(
        self, principal: Principal, operation: Operation, resource: Resource, context: AccessContext
    ) -> Verdict:
        """What this node would decide."""

    async def quotas(self) -> Sequence[Quota]:
        """Those that the MetaService keeps; `principal` is `any` for each other one."""

    async def put_quota(self, quota: Quota) -> None:
        """Set a quota, in place of the one there is."""

    async def delete_quota(self, who: str) -> None:
        """Delete a quota."""
