"""Evaluates access rules: deny wins, then allow, then the default for what no rule covers.

Rules have no order, so those of the file, of the MetaService and of a token join without a
question of precedence. A subscription's filter is allowed when one rule that allows covers all of
it, and refused when a rule that denies overlaps it: deliveries need no check of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lakemq.broker_core.api.access import AccessContext, Operation, Principal, Resource, Rule
from lakemq.broker_core.api.topic_filters import Levels, covers, is_filter, levels_of, overlaps
from lakemq.meta_service.api.auth import canonical_kind, kind_complaint

ANY: Final = "any"
ALIASES: Final[Mapping[str, Operation]] = {
    **{operation.value: operation for operation in Operation},
    "publish": Operation.WRITE,
    "subscribe": Operation.READ,
}
_IMPLY_DESCRIBE: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.ALTER,
    Operation.DELETE,
    Operation.DESCRIBE,
)
"""Each of these implies DESCRIBE, as in Kafka's ACLs."""
_CACHED_MAX: Final = 10_000
_MARK: Final = re.compile("%[cu]")


def check_rule(rule: Rule) -> str:
    """What is wrong with a rule; empty: nothing."""
    if not rule.who or not rule.operations:
        return "a rule needs `who` and `operations`"
    for who in rule.who:
        head, _, tail = who.partition(":")
        if who not in ("anonymous", ANY) and not (head in ("user", "role") and tail):
            return f"who {who!r}; it takes user:<name>, role:<name>, anonymous or any"
    for name in rule.operations:
        if name != "all" and name not in ALIASES:
            return f"operation {name!r}; known are all, {', '.join(sorted(ALIASES))}"
    if any(qos not in (0, 1, 2) for qos in rule.qos):
        return f"qos {list(rule.qos)}; it takes 0, 1, 2"
    if rule.exact and rule.kind != "topic_name":
        return f"resource {rule.kind}:{rule.name}; exact is for topic_name alone"
    return _check_name(rule.kind, rule.name)


def _check_name(kind: str, name: str) -> str:
    if not kind or not name:
        return f"resource {kind}:{name} has no kind or no name"
    if kind != ANY and (complaint := kind_complaint(kind)):
        return complaint
    if kind == "topic_name":
        if "*" in name.split("/"):
            return f"topic filter {name!r}: the wildcards of MQTT are + and #, not *"
        return "" if is_filter(name) else f"{name!r} is not a topic filter"
    if kind == ANY and name != "*":
        return "a rule for any kind of resource is for all names: any:*"
    if "*" in name[:-1]:
        return f"{kind} {name!r}: * may only stand at the end"
    return ""


class _Pattern(NamedTuple):
    """A rule's name, ready to be compared."""

    rule: Rule
    text: str
    levels: Levels
    """Of a `topic_name` without placeholders, else empty."""
    fills: bool
    """It has placeholders."""


class _RelevantRules(NamedTuple):
    """The rules for one principal, one operation and one kind of resource."""

    denies: Sequence[_Pattern]
    allows: Sequence[_Pattern]


class RuleSet:
    """An immutable set of rules with a cache of which apply to whom."""

    def __init__(self, rules: Iterable[Rule] = (), *, unmatched_allows: bool = True) -> None:
        self.rules = tuple(rules)
        self.unmatched_allows = unmatched_allows
        """The default for what no rule covers."""
        self._by_who: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for who in rule.who:
                self._by_who.setdefault(who, []).append(rule)
        self._relevant: dict[tuple[object, ...], _RelevantRules] = {}

    def void(self) -> str:
        """Why rules that allow have no effect; empty: they have, or there are none."""
        if not self.unmatched_allows or not any(rule.allow for rule in self.rules):
            return ""
        return (
            "security.unmatched is allow: what no rule covers is allowed to everybody, so rules "
            'that allow have no effect; set security.unmatched = "deny"'
        )

    def allows(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool:
        """Whether the principal may."""
        return self.verdict(principal, operation, resource, context)[0]

    def verdict(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> tuple[bool, Rule | None]:
        """Whether it may, and the rule that decided; None: no rule covers it."""
        key = (
            principal.kind,
            principal.name,
            principal.roles,
            principal.rules,
            operation,
            resource.kind,
        )
        relevant = self._relevant.get(key)
        if relevant is None:
            if len(self._relevant) >= _CACHED_MAX:
                # Emptied rather than aged: it is filled again within moments, and a hit must cost
                # one look-up.
                self._relevant.clear()
            relevant = self._relevant_rules(principal, operation, resource.kind)
            self._relevant[key] = relevant
        asked = levels_of(resource.name) if resource.kind == "topic_name" else ()
        for pattern in relevant.denies:
            if _covers(pattern, principal, resource, asked, context):
                return False, pattern.rule
        for pattern in relevant.allows:
            if _covers(pattern, principal, resource, asked, context):
                return True, pattern.rule
        # A principal that brought rules of its own may do what they allow and nothing else.
        return self.unmatched_allows and not principal.rules, None

    def _relevant_rules(
        self, principal: Principal, operation: Operation, kind: str
    ) -> _RelevantRules:
        denies: list[_Pattern] = []
        allows: list[_Pattern] = []
        for rule in (*self._rules_for(principal), *principal.rules):
            if canonical_kind(rule.kind) not in (kind, ANY) or not _has(rule, operation):
                continue
            (allows if rule.allow else denies).append(_pattern(rule))
        return _RelevantRules(denies, allows)

    def _rules_for(self, principal: Principal) -> list[Rule]:
        names = [ANY, *(f"role:{role}" for role in principal.roles)]
        names.append("anonymous" if principal.kind == "anonymous" else f"user:{principal.name}")
        found = {id(rule): rule for who in names for rule in self._by_who.get(who, ())}
        return list(found.values())


def _operations(rule: Rule) -> set[Operation]:
    return {ALIASES[name] for name in rule.operations if name != "all"}


def _has(rule: Rule, operation: Operation) -> bool:
    if "all" in rule.operations:
        return True
    mine = _operations(rule)
    if operation is Operation.DESCRIBE and rule.allow:
        return not mine.isdisjoint(_IMPLY_DESCRIBE)
    return operation in mine


def _pattern(rule: Rule) -> _Pattern:
    fills = "%c" in rule.name or "%u" in rule.name
    levels = levels_of(rule.name) if rule.kind == "topic_name" and not fills else ()
    return _Pattern(rule, rule.name, levels, fills)


def _covers(
    pattern: _Pattern,
    principal: Principal,
    resource: Resource,
    asked: Levels,
    context: AccessContext,
) -> bool:
    rule = pattern.rule
    if rule.qos and context.qos not in rule.qos:
        return False
    if rule.retain is not None and context.retain is not rule.retain:
        return False
    if rule.kind == ANY:
        return True
    text = pattern.text
    if pattern.fills:
        filled = _filled(pattern, principal, context)
        if filled is None:
            return False
        text = filled
    if resource.kind == "topic_name":
        levels = pattern.levels or levels_of(text)
        if rule.exact:
            return levels == asked
        # All of a filter must be allowed, while a denied part is enough to refuse it: deliveries
        # are not checked.
        return covers(levels, asked) if rule.allow else overlaps(levels, asked)
    if pattern.text.endswith("*"):
        return resource.name.startswith(text[:-1])
    return resource.name == text


def _filled(pattern: _Pattern, principal: Principal, context: AccessContext) -> str | None:
    """The name with client id and user in place; None: the rule does not apply to this client.

    A client chooses its id: one that would be a wildcard, or more than a level, gets no right by
    it, but is still denied.
    """
    rule = pattern.rule
    user = principal.name if principal.kind == "user" else ""
    values = {"%c": context.client_id, "%u": user}
    used = [values[mark] for mark in _MARK.findall(pattern.text)]
    if not all(used):
        return None
    is_filter_rule = rule.kind == "topic_name"
    if is_filter_rule and rule.allow and any(set(value) & set("/+#") for value in used):
        return None
    text = _MARK.sub(lambda mark: values[mark.group()], pattern.text)
    return None if is_filter_rule and not is_filter(text) else text


def reason_of(rule: Rule | None) -> str:
    """Why a verdict is as it is, in words."""
    if rule is None:
        return "no rule matches, so security.unmatched applies"
    who, operations = ", ".join(rule.who), ", ".join(rule.operations)
    name = f"rule {rule.rule_id}" if rule.rule_id else "a rule of the configuration"
    verb = "allows" if rule.allow else "denies"
    return f"{name} {verb} {who} to {operations} {rule.kind}:{rule.name}"
