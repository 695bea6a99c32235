"""Implements `ClusterOperations` over the MetaService and this node's rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from lakemq.broker_core.administration.key_store import KeyStore
from lakemq.broker_core.administration.partition_changes import (
    PartitionNow,
    changed,
    check_move,
)
from lakemq.broker_core.administration.reports import node_reports
from lakemq.broker_core.administration.translation import translated
from lakemq.broker_core.administration.unclean import unclean_leader
from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource, Rule
from lakemq.broker_core.api.administration.operations import (
    KeyReport,
    NodeReport,
    RebalanceAction,
    UserReport,
    Verdict,
)
from lakemq.broker_core.api.errors import (
    Conflict,
    InvalidRequest,
    UnknownEntry,
    UnknownNode,
    UnknownPartition,
)
from lakemq.broker_core.api.leadership import check_partition, leadership
from lakemq.broker_core.api.types import Leadership, TopicInfo
from lakemq.broker_core.security.authn.api_keys import is_key
from lakemq.broker_core.security.authn.passwords import with_password
from lakemq.broker_core.security.authn.users import UserRecord, check_roles, check_user_name
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.broker_core.security.authz.rules import check_rule
from lakemq.broker_core.security.catalog_forms import acl_rules_of, record_of, rule_of, user_of
from lakemq.meta_service.api.auth import Quota
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import (
    ClusterLoad,
    MetaStatus,
    Rebalance,
)

_STRIDE: Final = 500
"""Topics that are counted before others have their turn."""
_LOOKS: Final = 20
_LOOK_S: Final = 0.05


class Catalog(Protocol):
    """This node's copy of the catalog."""

    def topics(self) -> Sequence[TopicInfo]:
        """All topics."""

    def topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""


class Operations:
    """All of it goes to the MetaService, from whatever node."""

    def __init__(
        self, control: RemoteClient, catalog: Catalog, rules: RuleBook, keys: KeyStore
    ) -> None:
        """`catalog`: this node's copy of it."""
        self._control = control
        self._keys = keys
        self._catalog = catalog
        self._rules = rules

    # -- the cluster

    async def status(self) -> MetaStatus:
        """Of the MetaService. Raises Unavailable."""
        with translated(UnknownNode):
            return await self._control.status()

    async def loads(self) -> ClusterLoad:
        """What the MetaService's leader has heard from nodes, and advice. Raises Unavailable."""
        with translated(UnknownNode):
            return await self._control.loads()

    async def nodes(self) -> Sequence[NodeReport]:
        """All registered nodes, by id. Raises Unavailable."""
        with translated(UnknownNode):
            nodes, loads = await asyncio.gather(self._control.nodes(), self._control.loads())
        led, held = Counter[str | None](), Counter[str]()
        for number, topic in enumerate(self._catalog.topics()):
            for each in topic.leaders:
                led[each.leader] += 1
                held.update(each.replicas)
            if number % _STRIDE == _STRIDE - 1:
                await asyncio.sleep(0)
        return node_reports(nodes, {each.node_id: each for each in loads.nodes}, led, held)

    async def drain(self, node: str) -> None:
        """Raises UnknownNode."""
        with translated(UnknownNode):
            await self._control.drain_node(node)

    async def undrain(self, node: str) -> None:
        """Raises UnknownNode, InvalidRequest: it is fenced."""
        with translated(UnknownNode):
            await self._control.undrain_node(node)

    async def remove(self, node: str) -> None:
        """Raises UnknownNode, InvalidRequest: it is alive, or holds replicas."""
        with translated(UnknownNode):
            await self._control.remove_node(node)

    async def rebalance(
        self, action: RebalanceAction, *, leaving: Sequence[str] = (), at_once: int = 20
    ) -> Rebalance:
        """Raises InvalidRequest."""
        with translated(UnknownNode):
            return await self._control.rebalance(action, leaving=leaving, at_once=at_once)

    # -- partitions

    def _now(self, topic: str, partition: int) -> PartitionNow:
        """Raises UnknownTopic, UnknownPartition."""
        info = self._catalog.topic(topic)
        check_partition(info, partition)
        held = leadership(info, partition)
        return PartitionNow(
            topic,
            partition,
            info.topic_id,
            held.leader,
            held.replicas,
            held.partition_epoch,
            info.replication,
        )

    async def move(
        self, topic: str, partition: int, target: Sequence[str], *, dry_run: bool = False
    ) -> Leadership:
        """Raises UnknownTopic, UnknownPartition, UnknownNode, InvalidRequest, Conflict."""
        found = self._now(topic, partition)
        before = leadership(self._catalog.topic(topic), partition)
        check_move(found, target)
        with translated(UnknownNode):
            if dry_run:
                known = {each.node_id for each in await self._control.nodes()}
                if unknown := sorted(set(target) - known):
                    raise UnknownNode(f"no such node: {', '.join(unknown)}")
            elif not await self._control.move([(topic, partition, found.partition_epoch, target)]):
                raise Conflict(changed(found))
        return before

    async def elect(self, topic: str, partition: int) -> Leadership:
        """Raises UnknownTopic, UnknownPartition."""
        found = self._now(topic, partition)
        with translated(UnknownPartition):
            await self._control.elect_preferred(topic, partition)
        # Told when this node's copy of the catalog has it, or soon: it may lead already.
        for _ in range(_LOOKS):
            held = leadership(self._catalog.topic(topic), partition)
            if held.partition_epoch != found.partition_epoch or held.replicas[:1] == (held.leader,):
                break
            await asyncio.sleep(_LOOK_S)
        return leadership(self._catalog.topic(topic), partition)

    async def elect_unclean(
        self, topic: str, partition: int, to: str, *, dry_run: bool = False
    ) -> tuple[str, int]:
        """Raises UnknownTopic, UnknownPartition, InvalidRequest, Conflict."""
        found = self._now(topic, partition)
        with translated(UnknownPartition):
            node, _ = await unclean_leader(self._control, found, to)
            if dry_run:
                return node, 0
            epoch = await self._control.elect_unclean(
                topic, partition, partition_epoch=found.partition_epoch, node_id=node
            )
            return node, epoch

    # -- who may do what

    async def users(self) -> Sequence[UserReport]:
        """By name. Raises Unavailable."""
        with translated(UnknownEntry):
            users = [each for each in await self._control.users() if not is_key(each.attributes)]
        return [_user_report(record_of(each)) for each in users]

    async def put_user(
        self,
        name: str,
        *,
        create: bool,
        password: str | None,
        roles: Sequence[str] | None,
        disabled: bool | None,
    ) -> tuple[UserReport | None, UserReport]:
        """Raises InvalidRequest, UnknownEntry, Conflict: it is there already, or has changed."""
        check_user_name(name)
        check_roles(roles or ())
        with translated(UnknownEntry):
            kept = await self._control.user(name)
        if create and kept is not None:
            raise Conflict(f"user {name} exists already")
        if not create and kept is None:
            raise UnknownEntry(f"there is no user {name}")
        before = None if kept is None else record_of(kept)
        after = before or UserRecord(name)
        if create and not password:
            raise InvalidRequest("a new user needs a password")
        if roles is not None:
            after = replace(after, roles=tuple(dict.fromkeys(roles)))
        if disabled is not None:
            after = replace(after, disabled=disabled)
        if password is not None:
            if not password:
                raise InvalidRequest("the password is empty")
            # Slow on purpose: not on the event loop.
            after = await asyncio.to_thread(with_password, after, password)
        with translated(UnknownEntry):
            await self._control.put_user(
                user_of(after), expected_revision=0 if kept is None else kept.revision
            )
        return (None if before is None else _user_report(before)), _user_report(after)

    async def delete_user(self, name: str) -> None:
        """Raises UnknownEntry."""
        with translated(UnknownEntry):
            await self._control.delete_user(name)

    async def keys(self) -> Sequence[KeyReport]:
        """By id. Raises Unavailable."""
        with translated(UnknownEntry):
            return await self._keys.list_all()

    def key_uses(self) -> Mapping[str, int]:
        """See `ClusterOperations`."""
        return self._keys.uses()

    async def add_key(
        self, says: str, roles: Sequence[str], made_by: str, expires_ms: int | None
    ) -> tuple[KeyReport, str]:
        """Raises InvalidRequest, Unavailable."""
        check_roles(roles)
        with translated(UnknownEntry):
            return await self._keys.add(says, roles, made_by, expires_ms)

    async def delete_key(self, key_id: str) -> None:
        """Raises UnknownEntry."""
        with translated(UnknownEntry):
            await self._keys.delete(key_id)

    async def rules(self) -> Sequence[Rule]:
        """By id. Raises Unavailable."""
        with translated(UnknownEntry):
            return [rule_of(each) for each in await self._control.rules()]

    async def put_rule(self, rule: Rule) -> Sequence[str]:
        """Raises InvalidRequest."""
        if complaint := check_rule(rule):
            raise InvalidRequest(complaint)
        made = acl_rules_of(rule)
        with translated(UnknownEntry):
            for each in made:
                await self._control.put_rule(each)
        return [each.rule_id for each in made]

    async def delete_rule(self, rule_id: str) -> None:
        """Raises UnknownEntry."""
        with translated(UnknownEntry):
            await self._control.delete_rule(rule_id)

    def verdict(
        self, principal: Principal, operation: Operation, resource: Resource, context: AccessContext
    ) -> Verdict:
        """By the rules of this node; authorizers of plugins and web services are not asked."""
        question = (principal, operation, resource, context)
        return Verdict(self._rules.authorize(*question), self._rules.reason(*question))

    async def quotas(self) -> Sequence[Quota]:
        """By whom they are for. Raises Unavailable."""
        with translated(UnknownEntry):
            kept = await self._control.quotas()
        return [replace(each, principal="any") if each.principal == "*" else each for each in kept]

    async def put_quota(self, quota: Quota) -> None:
        """Raises InvalidRequest."""
        with translated(UnknownEntry):
            await self._control.put_quota(replace(quota, principal=_star(quota.principal)))

    async def delete_quota(self, who: str) -> None:
        """Raises UnknownEntry."""
        with translated(UnknownEntry):
            await self._control.delete_quota(_star(who))


def _star(who: str) -> str:
    return "*" if who == "any" else who


def _user_report(user: UserRecord) -> UserReport:
    ways = ["password"] * bool(user.password_hash) + [keys.mechanism for keys in user.scram]
    return UserReport(user.name, user.roles, user.disabled, ways)
