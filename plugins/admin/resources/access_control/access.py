"""Who may do what: users, rules, quotas, and what a rule decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.administration.operations import Quota, UserReport
from lakemq.broker_core.api.administration.routes import (
    EACH,
    AdminListing,
    AdminRequest,
    AdminRoute,
    Answer,
    AnyRoute,
    Body,
    ChangeQuery,
    Need,
    NoQuery,
    PageQuery,
    Query,
    expect,
)
from lakemq.broker_core.api.errors import InvalidRequest, UnknownEntry
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    AccessContext,
    Operation,
    Principal,
    Resource,
    Rule,
)
from lakemq.plugins.admin.resources.rights import may

_WHO = r"^(user:.+|role:.+|anonymous|any)$"
_RATE_MAX = 2**50
_GRANT = Need(Operation.CREATE)
Effect = Literal["allow", "deny"]


class UserAnswer(Answer):
    """A user that the MetaService keeps; never its password or keys."""

    name: str
    roles: list[str]
    disabled: bool
    login: list[str]
    """How it can log in."""


class NewUser(Body):
    """A user to be added."""

    name: str = Field(min_length=1, max_length=249)
    password: str = Field(min_length=1, max_length=1024)
    roles: list[str] = Field(default_factory=list, max_length=100)


class UserChanges(Body):
    """What is to be changed; what is left out stays."""

    password: str | None = Field(default=None, min_length=1, max_length=1024)
    roles: list[str] | None = Field(default=None, max_length=100)
    """In place of those that it has."""
    disabled: bool | None = None


class RuleAnswer(Answer):
    """A rule that the MetaService keeps."""

    id: str
    effect: Effect
    who: list[str]
    operations: list[str]
    resource: str
    """`KIND:NAME`."""
    qos: list[int]
    retain: bool | None
    exact: bool


class NewRule(Body):
    """A rule to be added; the same one twice is one."""

    who: list[str] = Field(min_length=1, max_length=100)
    """`user:NAME`, `role:NAME`, `anonymous` or `any`."""
    operations: list[str] = Field(min_length=1, max_length=10)
    """`publish`, `subscribe`, `read`, ... or `all`."""
    resource: str = Field(min_length=3, max_length=65_600)
    """`topic:NAME`, `topic_name:FILTER`, `cluster:*`, ..."""
    effect: Effect = "allow"
    qos: list[int] = Field(default_factory=list, max_length=3)
    retain: bool | None = None
    exact: bool = False
    id: str = Field(default="", max_length=200)
    """Names the rule; left out: made of what it says."""


class RulesMade(Answer):
    """Rules that were put, one for each principal and operation."""

    ids: list[str]


class RulesQuery(PageQuery):
    """Parameters of the list of rules."""

    who: str = Field(default="", max_length=256)
    """Only rules about this one."""


class QuotaAnswer(Answer):
    """A quota on each node; null: without limit."""

    who: str
    bytes_in_per_s: int | None
    bytes_out_per_s: int | None
    records_per_s: int | None


class QuotaBody(Body):
    """Limits; what is left out has none."""

    bytes_in_per_s: int | None = Field(default=None, ge=1, le=_RATE_MAX)
    bytes_out_per_s: int | None = Field(default=None, ge=1, le=_RATE_MAX)
    records_per_s: int | None = Field(default=None, ge=1, le=_RATE_MAX)


class MayQuery(Query):
    """What the caller wants to do."""

    operation: Literal["read", "write", "create", "alter", "delete", "describe"]
    resource: str = Field(min_length=3, max_length=8192, pattern=r"^[a-z_]+:.+$")
    """`KIND:NAME`."""


class May(Answer):
    """Whether the caller may do it."""

    allowed: bool


class TestQuery(MayQuery):
    """Who wants to do what."""

    user: str = Field(default="", max_length=249)
    """Left out: an anonymous client."""
    roles: str = Field(default="", max_length=1024)
    """By commas; left out: those of the user that the MetaService keeps."""
    client_id: str = Field(default="", max_length=1024)


class Tested(Answer):
    """What the rules of this node say; authorizers of plugins and web services are not asked."""

    allowed: bool
    reason: str


class DeletedEntry(Answer):
    """What was deleted, or would be."""

    name: str


class AccessRoutes:
    """`/api/v1/users`, `/rules`, `/quotas`, `/access/test`, `/whoami/may`. Who changes them can
    give itself every right, so the right to `alter` the cluster is not enough: it takes that to
    `create` it."""

    def __init__(self, node: AdministeredNode) -> None:
        self._node = node

    def routes(self) -> Sequence[AnyRoute]:
        """The routes."""
        user, rule, quota = "users/{user}", "rules/{rule}", "quotas/{who}"
        return [
            AdminListing("users", UserAnswer, self._users, self._user_rows,
                         lambda each: each.name, {"name": lambda each: each.name},
                         summary="List users that the MetaService keeps."),
            AdminRoute("POST", "users", self.add_user, UserAnswer, ChangeQuery, NewUser,
                       need=_GRANT, status=201),
            AdminRoute("GET", user, self.user, UserAnswer, NoQuery, tagged=True),
            AdminRoute("PATCH", user, self.change_user, UserAnswer, NoQuery, UserChanges,
                       need=_GRANT, tagged=True),
            AdminRoute("DELETE", user, self.delete_user, DeletedEntry, ChangeQuery, need=_GRANT,
                       tagged=True),
            AdminListing("rules", RuleAnswer, self._rules, self._rule_rows,
                         lambda each: each.rule_id,
                         {"id": lambda each: each.rule_id,
                          "resource": lambda each: f"{each.kind}:{each.name}"},
                         keep=_is_about, query=RulesQuery,
                         summary="List rules that the MetaService keeps."),
            AdminRoute("POST", "rules", self.add_rule, RulesMade, NoQuery, NewRule, need=_GRANT,
                       status=201),
            AdminRoute("GET", rule, self.rule, RuleAnswer, NoQuery, tagged=True),
            AdminRoute("DELETE", rule, self.delete_rule, DeletedEntry, ChangeQuery, need=_GRANT,
                       tagged=True),
            AdminListing("quotas", QuotaAnswer, self._quotas, self._quota_rows,
                         lambda each: each.principal, {"who": lambda each: each.principal},
                         summary="List quotas that the MetaService keeps."),
            AdminRoute("GET", quota, self.quota, QuotaAnswer, NoQuery, tagged=True),
            AdminRoute("PUT", quota, self.set_quota, QuotaAnswer, NoQuery, QuotaBody, need=_GRANT,
                       tagged=True),
            AdminRoute("DELETE", quota, self.delete_quota, DeletedEntry, ChangeQuery, need=_GRANT,
                       tagged=True),
            AdminRoute("GET", "access/test", self.test, Tested, TestQuery),
            AdminRoute("GET", "whoami/may", self.may, May, MayQuery, need=EACH),
        ]  # fmt: skip

    # -- users

    async def _users(self, request: AdminRequest) -> Sequence[UserReport]:
        return await self._node.operations.users()

    async def _user_rows(
        self, users: Sequence[UserReport], request: AdminRequest
    ) -> Sequence[UserAnswer]:
        return [_user(each) for each in users]

    async def _find(self, name: str) -> UserReport:
        for each in await self._node.operations.users():
            if each.name == name:
                return each
        raise UnknownEntry(f"there is no user {name}")

    async def user(self, request: AdminRequest) -> UserAnswer:
        """Describe a user. Raises UnknownEntry."""
        return _user(await self._find(request.path["user"]))

    async def add_user(self, request: AdminRequest) -> UserAnswer:
        """Add a user with a password. Raises Conflict: it exists."""
        given = expect(request.given, NewUser)
        if expect(request.asked, ChangeQuery).dry_run:
            return UserAnswer(name=given.name, roles=given.roles, disabled=False, login=[])
        _, made = await self._node.operations.put_user(
            given.name, create=True, password=given.password, roles=given.roles, disabled=False
        )
        return _user(made)

    async def change_user(self, request: AdminRequest) -> UserAnswer:
        """Change a user's password or roles, or disable it. Raises UnknownEntry."""
        given = expect(request.given, UserChanges)
        before, after = await self._node.operations.put_user(
            request.path["user"], create=False, password=given.password, roles=given.roles,
            disabled=given.disabled,
        )  # fmt: skip
        request.notes["before"] = None if before is None else _user(before).model_dump()
        request.notes["after"] = _user(after).model_dump()
        return _user(after)

    async def delete_user(self, request: AdminRequest) -> DeletedEntry:
        """Delete a user; rules and quotas that name it stay. Raises UnknownEntry."""
        found = await self._find(request.path["user"])
        request.notes["before"] = _user(found).model_dump()
        if not expect(request.asked, ChangeQuery).dry_run:
            await self._node.operations.delete_user(found.name)
        return DeletedEntry(name=found.name)

    # -- rules

    async def _rules(self, request: AdminRequest) -> Sequence[Rule]:
        return await self._node.operations.rules()

    async def _rule_rows(
        self, rules: Sequence[Rule], request: AdminRequest
    ) -> Sequence[RuleAnswer]:
        return [_rule(each) for each in rules]

    async def add_rule(self, request: AdminRequest) -> RulesMade:
        """Add rules, one for each principal and operation. Raises InvalidRequest."""
        given = expect(request.given, NewRule)
        kind, found, name = given.resource.partition(":")
        if not found:
            raise InvalidRequest(f"resource {given.resource[:100]!r} is not KIND:NAME")
        made = Rule(
            tuple(given.who), tuple(given.operations), kind, name, given.effect == "allow",
            tuple(given.qos), given.retain, given.id, given.exact,
        )  # fmt: skip
        return RulesMade(ids=list(await self._node.operations.put_rule(made)))

    async def rule(self, request: AdminRequest) -> RuleAnswer:
        """Describe a rule. Raises UnknownEntry."""
        wanted = request.path["rule"]
        for each in await self._node.operations.rules():
            if each.rule_id == wanted:
                return _rule(each)
        raise UnknownEntry(f"there is no rule {wanted[:200]}")

    async def delete_rule(self, request: AdminRequest) -> DeletedEntry:
        """Delete a rule. Raises UnknownEntry."""
        found = await self.rule(request)
        request.notes["before"] = found.model_dump()
        if not expect(request.asked, ChangeQuery).dry_run:
            await self._node.operations.delete_rule(found.id)
        return DeletedEntry(name=found.id)

    async def test(self, request: AdminRequest) -> Tested:
        """Tell whether the rules allow something, and which one decides."""
        asked = expect(request.asked, TestQuery)
        kind, _, name = asked.resource.partition(":")
        who = ANONYMOUS
        if asked.user:
            roles = asked.roles.split(",") if asked.roles else []
            if not roles:
                known = await self._node.operations.users()
                roles = [role for each in known if each.name == asked.user for role in each.roles]
            who = Principal(asked.user, roles=tuple(sorted(roles)))
        found = self._node.operations.verdict(
            who, Operation(asked.operation), Resource(kind, name),
            AccessContext("admin", asked.client_id),
        )  # fmt: skip
        return Tested(allowed=found.allowed, reason=found.reason)

    async def may(self, request: AdminRequest) -> May:
        """Tell whether the caller may do something, as it would be decided if it did."""
        asked = expect(request.asked, MayQuery)
        kind, _, name = asked.resource.partition(":")
        operation = Operation(asked.operation)
        return May(allowed=may(self._node.catalog, request, operation, kind, name))

    # -- quotas

    async def _quotas(self, request: AdminRequest) -> Sequence[Quota]:
        return await self._node.operations.quotas()

    async def _quota_rows(
        self, quotas: Sequence[Quota], request: AdminRequest
    ) -> Sequence[QuotaAnswer]:
        return [_quota(each) for each in quotas]

    async def _known_quota(self, who: str) -> QuotaAnswer | None:
        for each in await self._node.operations.quotas():
            if each.principal == who:
                return _quota(each)
        return None

    async def set_quota(self, request: AdminRequest) -> QuotaAnswer:
        """Set the quota of a principal, in place of the one that it has."""
        given, who = expect(request.given, QuotaBody), request.path["who"]
        head, _, tail = who.partition(":")
        if who not in ("anonymous", "any") and not (head in ("user", "role") and tail):
            raise InvalidRequest(f"{who[:100]!r} is none of user:NAME, role:NAME, anonymous, any")
        if given.bytes_in_per_s is given.bytes_out_per_s is given.records_per_s is None:
            raise InvalidRequest("give a limit: bytes_in_per_s, bytes_out_per_s or records_per_s")
        before = await self._known_quota(who)
        request.notes["before"] = None if before is None else before.model_dump()
        quota = Quota(
            who, bytes_in_per_s=given.bytes_in_per_s, bytes_out_per_s=given.bytes_out_per_s,
            records_per_s=given.records_per_s,
        )  # fmt: skip
        await self._node.operations.put_quota(quota)
        return _quota(quota)

    async def quota(self, request: AdminRequest) -> QuotaAnswer:
        """Describe a quota. Raises UnknownEntry."""
        found = await self._known_quota(request.path["who"])
        if found is None:
            raise UnknownEntry(f"{request.path['who'][:100]} has no quota")
        return found

    async def delete_quota(self, request: AdminRequest) -> DeletedEntry:
        """Delete a quota. Raises UnknownEntry."""
        before = await self.quota(request)
        request.notes["before"] = before.model_dump()
        if not expect(request.asked, ChangeQuery).dry_run:
            await self._node.operations.delete_quota(before.who)
        return DeletedEntry(name=before.who)


def _is_about(rule: Rule, request: AdminRequest) -> bool:
    who = expect(request.asked, RulesQuery).who
    return not who or who in rule.who


def _user(found: UserReport) -> UserAnswer:
    return UserAnswer(
        name=found.name, roles=list(found.roles), disabled=found.disabled, login=list(found.login)
    )


def _rule(found: Rule) -> RuleAnswer:
    return RuleAnswer(
        id=found.rule_id,
        effect="allow" if found.allow else "deny",
        who=list(found.who),
        operations=list(found.operations),
        resource=f"{found.kind}:{found.name}",
        qos=list(found.qos),
        retain=found.retain,
        exact=found.exact,
    )


def _quota(found: Quota) -> QuotaAnswer:
    return QuotaAnswer(
        who=found.principal,
        bytes_in_per_s=found.bytes_in_per_s,
        bytes_out_per_s=found.bytes_out_per_s,
        records_per_s=found.records_per_s,
    )
