"""`lakemq acl`: rules of who may do what, kept by the MetaService for all nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakemq.broker_core.api.access import ANONYMOUS, AccessContext, Principal, Resource, Rule
from lakemq.broker_core.api.command_line import (
    ExitCode,
    MetaOptions,
    fail,
    option_groups,
    print_table,
    say,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.configuration.config import load_config
from lakemq.broker_core.security.authz.rule_book import RuleBook
from lakemq.broker_core.security.authz.rules import ALIASES, check_rule, reason_of
from lakemq.broker_core.security.catalog_forms import acl_rules_of, rule_of
from lakemq.broker_core.security.settings import SecuritySettings
from lakemq.cli.completion import rule_ids, user_names
from lakemq.cli.meta_access import ask_meta
from lakemq.meta_service.api.auth import canonical_kind, kind_complaint
from lakemq.meta_service.api.types import MetaClient

acl = typer.Typer(
    no_args_is_help=True, help="Rules of who may do what. A rule that denies wins over all others."
)

Who = Annotated[
    list[str],
    typer.Option("--who", "-w", help="user:NAME, role:NAME, anonymous or any; repeatable."),
]
Operations = Annotated[
    list[str],
    typer.Option("--operation", "-o", help="publish, subscribe, read, ... or all; repeatable."),
]
Resources = Annotated[
    list[str],
    typer.Option("--resource", "-r", help="topic:NAME, topic_name:FILTER, ...; repeatable."),
]
Qos = Annotated[
    list[int] | None, typer.Option("--qos", min=0, max=2, help="Only of this QoS; repeatable.")
]
Retain = Annotated[
    bool | None, typer.Option("--retain/--no-retain", help="Only (not) retained publishes.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="LAKEMQ_CONFIG", metavar="FILE", help="A node's configuration."
    ),
]


@acl.command("add")
@option_groups
def add(
    who: Who,
    operation: Operations,
    resource: Resources,
    deny: Annotated[bool, typer.Option("--deny", help="Deny in place of allow.")] = False,
    qos: Qos = None,
    retain: Retain = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Only this very topic filter, not what it matches.")
    ] = False,
    rule_id: Annotated[str, typer.Option("--id", help="Names the rule.")] = "",
    config: Config = None,
    *,
    members: MetaOptions,
) -> None:
    """Add a rule; the same one twice is one. Warns where rules that allow change nothing, as far as
    the configuration tells: give a node's."""
    book = RuleBook(_settings(config), lambda: None)
    rules = []
    for each in resource:
        kind, _, name = each.partition(":")
        made = Rule(
            tuple(who),
            tuple(operation),
            kind,
            name,
            not deny,
            tuple(qos or ()),
            retain,
            rule_id,
            exact,
        )
        if complaint := check_rule(made):
            fail(complaint, ExitCode.USAGE)
        rules += acl_rules_of(made)
    if rule_id and len(rules) > 1:
        fail("--id names one rule: one --who, one --operation, one --resource", ExitCode.USAGE)

    async def put(meta: MetaClient) -> None:
        for rule in rules:
            await meta.put_rule(rule)

    ask_meta(members, put)
    added = [rule.rule_id for rule in rules]
    say("\n".join(f"added {each}" for each in added), added=added)
    book.replace({rule.rule_id: rule_of(rule) for rule in rules})
    if void := book.rules.void():
        typer.echo(f"lakemq: warning: where nodes are configured like this one, {void}", err=True)


@acl.command("list")
@option_groups
def list_rules(
    *,
    members: MetaOptions,
) -> None:
    """List the rules that the MetaService keeps."""
    kept = ask_meta(members, lambda meta: meta.rules())
    rows = [
        (
            rule.rule_id,
            "allow" if rule.allow else "deny",
            list(rule.who),
            list(rule.operations),
            f"{rule.kind}:{rule.name}",
            _conditions(rule),
        )
        for rule in map(rule_of, kept)
    ]
    print_table(("rule", "effect", "who", "operation", "resource", "conditions"), rows)


def _conditions(rule: Rule) -> str:
    found = [f"qos {each}" for each in rule.qos]
    if rule.retain is not None:
        found.append("retained" if rule.retain else "not retained")
    if rule.exact:
        found.append("exact")
    return ", ".join(found)


@acl.command("delete")
@option_groups
def delete(
    rule_id: Annotated[str, typer.Argument(autocompletion=rule_ids)],
    *,
    members: MetaOptions,
) -> None:
    """Delete a rule by its id."""
    ask_meta(members, lambda meta: meta.delete_rule(rule_id))
    say(f"deleted {rule_id}", deleted=rule_id)


@acl.command("test")
@option_groups
def test_rules(
    operation: Annotated[str, typer.Option("--operation", "-o")],
    resource: Annotated[str, typer.Option("--resource", "-r", help="KIND:NAME")],
    user: Annotated[
        str,
        typer.Option("--user", "-u", help="Else: an anonymous client.", autocompletion=user_names),
    ] = "",
    role: Annotated[list[str] | None, typer.Option("--role", help="Repeatable.")] = None,
    client_id: Annotated[str, typer.Option("--client-id")] = "",
    qos: Annotated[int | None, typer.Option("--qos", min=0, max=2)] = None,
    retain: Annotated[bool | None, typer.Option("--retain/--no-retain")] = None,
    config: Config = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Rules of the configuration alone.")
    ] = False,
    *,
    members: MetaOptions,
) -> None:
    """Show whether an operation is allowed, and by which rule. Exit code 1: denied."""
    kind, found, name = resource.partition(":")
    if operation not in ALIASES or not found:
        fail("--operation takes an operation, --resource KIND:NAME", ExitCode.USAGE)
    kind = canonical_kind(kind)
    if complaint := kind_complaint(kind):
        fail(complaint, ExitCode.USAGE)
    book = RuleBook(_settings(config), lambda: None)
    if not offline:
        kept = ask_meta(members, lambda meta: meta.rules())
        book.replace({rule.rule_id: rule_of(rule) for rule in kept})
    principal = Principal(user, roles=tuple(sorted(role or ()))) if user else ANONYMOUS
    context = AccessContext("mqtt", client_id, qos=qos, retain=retain)
    if book.is_admin(principal):
        say("allowed: an admin", allowed=True, reason="an admin")
        return
    allowed, rule = book.rules.verdict(principal, ALIASES[operation], Resource(kind, name), context)
    reason = reason_of(rule)
    say(f"{'allowed' if allowed else 'denied'}: {reason}", allowed=allowed, reason=reason)
    if not allowed:
        raise typer.Exit(ExitCode.FAILED)


def _settings(config: Path | None) -> SecuritySettings:
    try:
        return load_config(config, {}).security
    except LakeMQError as error:
        fail(error)
