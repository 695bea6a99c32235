"""Goal: rules say what they say in words: deny wins, then allow, then the word for the rest. A
plain evaluator, rule by rule over all topic names, says the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.access import (
    ANONYMOUS,
    AccessContext,
    Operation,
    Principal,
    Resource,
    Rule,
)
from lakemq.broker_core.security.authz.rules import RuleSet, check_rule
from lakemq.broker_core.security.catalog_forms import acl_rules_of, rule_of
from lakemq.broker_core.security.settings import RuleSettings
from lakemq.meta_service.api.auth import AclRule
from tests.unit.broker_core.test_topic_filters import FILTERS, NAMES, matched

ANN = Principal("ann", roles=("operator",))
BOB = Principal("bob")
HERE = AccessContext("mqtt", "c1", qos=1, retain=False)


def rule(who: str, operation: str, resource: str, allow: bool = True, **conditions: object) -> Rule:
    kind, _, name = resource.partition(":")
    made = Rule((who,), (operation,), kind, name, allow, **conditions)  # type: ignore[arg-type]
    assert check_rule(made) == ""
    return made


def may(
    rules: list[Rule],
    principal: Principal,
    operation: Operation,
    resource: str,
    context: AccessContext = HERE,
    *,
    unmatched: bool = False,
) -> bool:
    kind, _, name = resource.partition(":")
    made = RuleSet(rules, unmatched_allows=unmatched)
    return made.allows(principal, operation, Resource(kind, name), context)


READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def test_what_no_rule_is_about_has_one_word() -> None:
    assert may([], ANN, READ, "topic:t", unmatched=True)
    assert not may([], ANN, READ, "topic:t")


def test_deny_wins_whatever_the_order() -> None:
    rules = [rule("any", "all", "topic:*"), rule("user:ann", "write", "topic:audit", False)]
    for order in (rules, rules[::-1]):
        assert not may(order, ANN, WRITE, "topic:audit")
        assert may(order, ANN, READ, "topic:audit")
        assert may(order, BOB, WRITE, "topic:audit")


def test_users_roles_and_strangers_are_told_apart() -> None:
    assert may([rule("user:ann", "read", "topic:t")], ANN, READ, "topic:t")
    assert may([rule("role:operator", "read", "topic:t")], ANN, READ, "topic:t")
    assert not may([rule("role:operator", "read", "topic:t")], BOB, READ, "topic:t")
    assert may([rule("anonymous", "read", "topic:t")], ANONYMOUS, READ, "topic:t")
    assert not may([rule("anonymous", "read", "topic:t")], ANN, READ, "topic:t")
    # an authenticated user may be called anonymous; a stranger is not that user
    assert not may([rule("user:anonymous", "read", "topic:t")], ANONYMOUS, READ, "topic:t")
    assert not may([rule("anonymous", "read", "topic:t")], Principal("anonymous"), READ, "topic:t")


def test_names_end_in_a_star_or_are_whole() -> None:
    rules = [rule("any", "read", "topic:logs-*"), rule("any", "read", "topic:a")]
    assert may(rules, BOB, READ, "topic:logs-eu") and may(rules, BOB, READ, "topic:a")
    assert not may(rules, BOB, READ, "topic:log") and not may(rules, BOB, READ, "topic:ab")
    assert not may(rules, BOB, READ, "group:logs-eu")


def test_who_may_use_may_see() -> None:
    rules = [rule("any", "write", "topic:t")]
    assert may(rules, BOB, DESCRIBE, "topic:t") and not may(rules, BOB, READ, "topic:t")
    assert not may([rule("any", "create", "topic:t")], BOB, DESCRIBE, "topic:t")
    denied = [*rules, rule("any", "write", "topic:t", False)]
    assert may(denied, BOB, DESCRIBE, "topic:t"), "a denied write hides nothing"
    hidden = [*rules, rule("any", "describe", "topic:t", False)]
    assert not may(hidden, BOB, DESCRIBE, "topic:t") and may(hidden, BOB, WRITE, "topic:t")


def test_placeholders_stand_for_the_client_and_the_user() -> None:
    rules = [rule("any", "publish", "topic_name:devices/%c/#")]
    assert may(rules, ANN, WRITE, "topic_name:devices/c1/t")
    assert not may(rules, ANN, WRITE, "topic_name:devices/c2/t")
    rules = [rule("any", "subscribe", "topic_name:users/%u/+")]
    assert may(rules, ANN, READ, "topic_name:users/ann/+")
    assert not may(rules, BOB, READ, "topic_name:users/ann/+")
    assert not may(rules, ANONYMOUS, READ, "topic_name:users/anonymous/+")
    assert may([rule("any", "read", "group:%u-*")], ANN, READ, "group:ann-1")


@pytest.mark.parametrize("client_id", ["+", "#", "a/b", "", "c1/#"])
def test_a_client_id_that_is_a_wildcard_gives_no_right(client_id: str) -> None:
    rules = [rule("any", "all", "topic_name:devices/%c/#")]
    context = AccessContext("mqtt", client_id, qos=0, retain=False)
    for asked in ("devices/+/#", "devices/other/x", "devices/a/b/x", f"devices/{client_id}/x"):
        assert not may(rules, ANN, READ, f"topic_name:{asked}", context)


def test_a_client_id_that_spells_a_placeholder_is_a_text() -> None:
    rules = [rule("any", "publish", "topic_name:x/%c")]
    context = AccessContext("mqtt", "%u", qos=0, retain=False)
    assert not may(rules, ANN, WRITE, "topic_name:x/ann", context)
    assert may(rules, ANN, WRITE, "topic_name:x/%u", context)


def test_a_subscription_wider_than_the_rights_is_refused() -> None:
    rules = [rule("any", "subscribe", "topic_name:plant/1/#")]
    for inside in ("plant/1/#", "plant/1/+/t", "plant/1"):
        assert may(rules, ANN, READ, f"topic_name:{inside}")
    for wider in ("#", "plant/#", "plant/+/t", "+/1/#", "plant/1x"):
        assert not may(rules, ANN, READ, f"topic_name:{wider}")


def test_a_subscription_that_touches_what_is_denied_is_refused() -> None:
    rules = [
        rule("any", "subscribe", "topic_name:#"),
        rule("any", "subscribe", "topic_name:plant/+/secret/#", False),
    ]
    for touching in ("#", "plant/#", "plant/1/secret", "plant/+/+/x", "+/+/secret/y"):
        assert not may(rules, ANN, READ, f"topic_name:{touching}")
    for clear in ("plant/+/open/#", "other/#", "plant/1"):
        assert may(rules, ANN, READ, f"topic_name:{clear}")


def test_an_exact_rule_is_about_one_filter_alone() -> None:
    rules = [
        rule("any", "all", "topic_name:#"),
        rule("any", "subscribe", "topic_name:#", False, exact=True),
    ]
    assert not may(rules, ANN, READ, "topic_name:#")
    assert not may(rules, ANN, READ, "topic_name:+/#")  # the same topic names
    for narrower in ("a/#", "+/+/#", "+", "a/b"):
        assert may(rules, ANN, READ, f"topic_name:{narrower}")
    assert may(rules, ANN, WRITE, "topic_name:a/b")


def test_an_exact_rule_allows_its_filter_and_no_part_of_it() -> None:
    rules = [rule("any", "all", "topic_name:a/%u/#", exact=True)]
    assert may(rules, ANN, READ, "topic_name:a/ann/#")
    for other in ("a/ann/b", "a/ann", "a/bob/#", "a/#"):
        assert not may(rules, ANN, READ, f"topic_name:{other}")


def test_qos_and_retain_are_conditions() -> None:
    rules = [rule("any", "publish", "topic_name:t", qos=(0, 1), retain=False)]
    for qos, retain in itertools.product((0, 1, 2), (False, True)):
        context = AccessContext("mqtt", "c1", qos=qos, retain=retain)
        assert may(rules, ANN, WRITE, "topic_name:t", context) is (qos < 2 and not retain)


def test_a_bearer_of_rules_has_nothing_beside_them() -> None:
    own = (rule("any", "publish", "topic_name:mine/#"),)
    bearer = Principal("ann", rules=own)
    assert may([], bearer, WRITE, "topic_name:mine/1", unmatched=True)
    assert not may([], bearer, WRITE, "topic_name:other", unmatched=True)
    denied = [rule("user:ann", "publish", "topic_name:mine/2", False)]
    assert not may(denied, bearer, WRITE, "topic_name:mine/2", unmatched=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Rule(("ann",), ("read",), "topic", "t"), "who 'ann'"),
        (Rule(("user:",), ("read",), "topic", "t"), "who 'user:'"),
        (Rule(("any",), ("raed",), "topic", "t"), "operation 'raed'"),
        (Rule(("any",), ("read",), "topic_name", "a/#/b"), "not a topic filter"),
        (Rule(("any",), ("read",), "topic_name", "*"), "wildcards of MQTT"),
        (Rule(("any",), ("read",), "topic", "a*b"), "at the end"),
        (Rule(("any",), ("read",), "any", "a"), "any:\\*"),
        (Rule(("any",), ("read",), "topic", ""), "no name"),
        (Rule(("any",), ("read",), "topic", "t", qos=(3,)), "qos"),
        (Rule(("any",), ("read",), "topic", "t", exact=True), "exact"),
        (Rule((), ("read",), "topic", "t"), "needs"),
        (Rule(("any",), ("all",), "topc", "t"), "'topc'; did you mean 'topic'"),
        (Rule(("any",), ("all",), "Topic", "t"), "'Topic'; did you mean 'topic'"),
        (Rule(("any",), ("all",), "transactions", "t"), "did you mean 'transaction'"),
        (Rule(("any",), ("all",), "nonsense", "t"), "known are topic, topic_name, group, cluster"),
    ],
)
def test_wrong_rules_are_explained(wrong: Rule, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert check_rule(wrong) == "", check_rule(wrong)


@pytest.mark.parametrize("kind", ["topic", "group", "cluster", "sink", "transaction", "schema"])
def test_a_rule_about_each_kind_is_about_it(kind: str) -> None:
    rules = [rule("user:ann", "write", f"{kind}:pay*")]
    assert may(rules, ANN, WRITE, f"{kind}:payments")
    assert not may(rules, ANN, WRITE, f"{kind}:other")


def test_the_older_name_of_a_kind_is_understood() -> None:
    made = rule("user:ann", "write", "transactional_id:payments", False)
    (kept,) = acl_rules_of(made)
    assert (kept.resource, kept.pattern) == ("transaction", "payments")
    stored = AclRule("r", "user:ann", "deny", "write", "transactional_id", "payments")
    assert not may([rule_of(stored)], ANN, WRITE, "transaction:payments", unmatched=True)
    (written,) = RuleSettings(
        who=["any"], operations=["all"], resources=["transactional_id:x"]
    ).rules()
    assert written.kind == "transaction"


# -- the same by trying everything

RULES = st.builds(
    lambda who, operations, name, allow, qos, retain, exact: Rule(
        tuple(who), tuple(operations), "topic_name", name, allow, tuple(qos), retain, exact=exact
    ),
    st.lists(st.sampled_from(["user:ann", "role:operator", "any", "anonymous"]), min_size=1),
    st.lists(st.sampled_from(["read", "publish", "all", "describe"]), min_size=1),
    FILTERS,
    st.booleans(),
    st.lists(st.integers(0, 2), max_size=2),
    st.sampled_from([None, True, False]),
    st.booleans(),
)


def plainly(
    rules: list[Rule], principal: Principal, operation: Operation, name: str, context: AccessContext
) -> bool:
    """No filter logic: sets of topic names."""
    asked = matched(name) if operation is READ else {tuple(name.split("/"))}
    about = []
    for each in rules:
        mine = {"anonymous"} if principal.kind == "anonymous" else {f"user:{principal.name}"}
        mine |= {"any"} | {f"role:{role}" for role in principal.roles}
        does = {"publish": "write", "subscribe": "read"}
        named = {does.get(one, one) for one in each.operations}
        if not mine & set(each.who) or not {"all", operation.value} & named:
            continue
        if each.qos and context.qos not in each.qos:
            continue
        if each.retain is not None and each.retain is not context.retain:
            continue
        if each.exact and asked != matched(each.name):
            continue
        about.append(each)
    if any(not each.allow and asked & matched(each.name) for each in about):
        return False
    return any(each.allow and asked <= matched(each.name) for each in about)


@given(
    st.lists(RULES, max_size=5),
    st.sampled_from([ANN, BOB, ANONYMOUS]),
    st.one_of(
        st.tuples(st.just(READ), FILTERS),
        st.tuples(st.just(WRITE), st.sampled_from(["/".join(name) for name in NAMES])),
    ),
    st.integers(0, 2),
    st.booleans(),
)
def test_agrees_with_the_plain_evaluator(
    rules: list[Rule],
    principal: Principal,
    asked: tuple[Operation, str],
    qos: int,
    retain: bool,
) -> None:
    operation, name = asked
    context = AccessContext("mqtt", "c1", qos=qos, retain=retain)
    expected = plainly(rules, principal, operation, name, context)
    assert may(rules, principal, operation, f"topic_name:{name}", context) is expected


# -- as the MetaService keeps them


@given(RULES)
def test_a_kept_rule_says_the_same(written: Rule) -> None:
    kept = [rule_of(each) for each in acl_rules_of(written)]
    assert len({each.rule_id for each in kept}) == len({(e.who, e.operations) for e in kept})
    for each in kept:
        assert (each.kind, each.name, each.allow) == (written.kind, written.name, written.allow)
        assert (set(each.qos), each.retain) == (set(written.qos), written.retain)
        assert each.exact is written.exact
    assert {each.who[0] for each in kept} == set(written.who)
    assert {each.operations[0] for each in kept} == set(written.operations)


@pytest.mark.parametrize("name", ["topic:a", "topic:a*", "topic:*", "any:*", "group:%u-*"])
def test_names_survive_the_way_to_the_catalog(name: str) -> None:
    written = rule("any", "all", name, rule_id="one")
    (kept,) = acl_rules_of(written)
    assert rule_of(kept) == written
