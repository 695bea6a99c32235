"""Converts users, rules and quotas between the broker's types and the MetaService's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from lakemq.broker_core.api.access import Rule
from lakemq.broker_core.security.authn.scram import ScramKeys
from lakemq.broker_core.security.authn.users import UserRecord
from lakemq.broker_core.security.quotas import Limits
from lakemq.meta_service.api.auth import AclRule, Quota, ScramCredential, User, canonical_kind


def record_of(user: User) -> UserRecord:
    """The broker's form of a user of the MetaService."""
    return UserRecord(
        user.name,
        user.password_hash,
        tuple(
            ScramKeys(each.mechanism, each.salt, each.iterations, each.stored_key, each.server_key)
            for each in user.scram
        ),
        user.roles,
        user.attributes,
        user.disabled,
    )


def user_of(record: UserRecord) -> User:
    """The MetaService's form of a user."""
    return User(
        record.name,
        record.roles,
        record.attributes,
        record.disabled,
        tuple(
            ScramCredential(
                each.mechanism, each.salt, each.iterations, each.stored_key, each.server_key
            )
            for each in record.scram
        ),
        record.password_hash,
    )


def rule_of(acl_rule: AclRule) -> Rule:
    """`*` there is `any`, `all` or `any:*` here; a prefix there has a `*` behind it here, and the
    literal name of a `topic_name` is `exact`."""
    name = acl_rule.pattern + "*" if acl_rule.pattern_type == "prefixed" else acl_rule.pattern
    return Rule(
        ("any" if acl_rule.principal == "*" else acl_rule.principal,),
        ("all" if acl_rule.operation == "*" else acl_rule.operation,),
        "any" if acl_rule.resource == "*" else canonical_kind(acl_rule.resource),
        name,
        acl_rule.effect != "deny",
        acl_rule.qos,
        acl_rule.retain,
        acl_rule.rule_id,
        acl_rule.resource == "topic_name" and acl_rule.pattern_type == "literal",
    )


def limits_of(quotas: Mapping[str, Quota]) -> dict[str, Limits]:
    """Limits by whom they are for; `*` there is `any` here."""
    return {
        "any" if who == "*" else who: Limits(
            each.bytes_in_per_s, each.bytes_out_per_s, each.records_per_s
        )
        for who, each in quotas.items()
    }


def acl_rules_of(rule: Rule) -> list[AclRule]:
    """Inverse; one for each principal and operation. Without an id of its own, a rule's id is made
    of what it says, so that the same rule twice is one."""
    found: list[AclRule] = []
    for who in rule.who:
        for operation in rule.operations:
            made = _acl_rule(rule, who, operation)
            several = len(rule.who) * len(rule.operations) > 1
            if not rule.rule_id:
                rule_id = hashlib.sha256(repr(made).encode()).hexdigest()[:12]
            else:
                rule_id = f"{rule.rule_id}-{len(found) + 1}" if several else rule.rule_id
            found.append(replace(made, rule_id=rule_id))
    return found


def _acl_rule(rule: Rule, who: str, operation: str) -> AclRule:
    if rule.kind == "topic_name":
        pattern, pattern_type = rule.name, "literal" if rule.exact else "filter"
    elif rule.name.endswith("*") and rule.name != "*":
        pattern, pattern_type = rule.name[:-1], "prefixed"
    else:
        pattern, pattern_type = rule.name, "literal"
    return AclRule(
        "",
        "*" if who == "any" else who,
        "allow" if rule.allow else "deny",
        "*" if operation == "all" else operation,
        "*" if rule.kind == "any" else canonical_kind(rule.kind),
        pattern,
        pattern_type,
        tuple(sorted(set(rule.qos))),
        rule.retain,
    )
