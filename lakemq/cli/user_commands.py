"""`lakemq user`: users with passwords, in the MetaService or in a password file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import (
    ExitCode,
    MetaOptions,
    fail,
    option_groups,
    print_table,
    say,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.security.authn.passwords import with_password
from lakemq.broker_core.security.authn.users import UserRecord, check_roles, check_user_name
from lakemq.cli.completion import user_names
from lakemq.cli.users.user_store import FileStore, MetaStore, UserStore

user = typer.Typer(
    no_args_is_help=True,
    help="Users with passwords: in the MetaService, for all nodes, or in a password file.",
)

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        envvar="LAKEMQ_USER_FILE",
        metavar="FILE",
        help="A password file, in place of the MetaService.",
    ),
]
Name = Annotated[str, typer.Argument(help="A user.", autocompletion=user_names)]
Roles = Annotated[
    list[str] | None, typer.Option("--role", "-r", metavar="ROLE", help="A role; repeatable.")
]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Take the password from standard input.")
]


def _store(file: Path | None, members: MetaOptions) -> UserStore:
    return MetaStore(members) if file is None else FileStore(file)


def _password(from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if not password:
        fail("the password is empty", ExitCode.USAGE)
    return password


def _found(store: UserStore, name: str) -> UserRecord:
    found = store.find(name)
    if found is None:
        fail(f"there is no user {name}", ExitCode.UNKNOWN)
    return found


@user.command("add")
@option_groups
def add(
    name: str,
    file: File = None,
    role: Roles = None,
    password_stdin: FromStdin = False,
    *,
    members: MetaOptions,
) -> None:
    """Add a user; asks for the password."""
    store = _store(file, members)
    try:
        check_user_name(name)
        check_roles(role or ())
        if store.find(name) is not None:
            fail(f"user {name} exists already; 'lakemq user passwd' changes the password")
        made = UserRecord(name, roles=tuple(dict.fromkeys(role or ())))
        store.put(with_password(made, _password(password_stdin)))
    except LakeMQError as error:
        fail(error)
    say(f"added {name}", added=name)


@user.command("passwd")
@option_groups
def passwd(
    name: Name,
    file: File = None,
    password_stdin: FromStdin = False,
    *,
    members: MetaOptions,
) -> None:
    """Give a user another password."""
    store = _store(file, members)
    try:
        store.put(with_password(_found(store, name), _password(password_stdin)))
    except LakeMQError as error:
        fail(error)
    say(f"changed the password of {name}", changed=name)


@user.command("roles")
@option_groups
def roles(
    name: Name,
    file: File = None,
    role: Roles = None,
    *,
    members: MetaOptions,
) -> None:
    """Give a user these roles in place of those it has."""
    store = _store(file, members)
    try:
        check_roles(role or ())
        store.put(replace(_found(store, name), roles=tuple(dict.fromkeys(role or ()))))
    except LakeMQError as error:
        fail(error)
    given = list(dict.fromkeys(role or ()))
    say(f"{name}: {', '.join(given) or 'no roles'}", user=name, roles=given)


@user.command("delete")
@option_groups
def delete(
    name: Name,
    file: File = None,
    *,
    members: MetaOptions,
) -> None:
    """Delete a user."""
    store = _store(file, members)
    try:
        _found(store, name)
        store.delete(name)
    except LakeMQError as error:
        fail(error)
    say(f"deleted {name}", deleted=name)


@user.command("list")
@option_groups
def list_users(
    file: File = None,
    *,
    members: MetaOptions,
) -> None:
    """List users, their roles and how they can log in."""
    try:
        users = _store(file, members).users()
    except LakeMQError as error:
        fail(error)
    rows = []
    for each in sorted(users, key=lambda one: one.name):
        ways = ["password"] * bool(each.password_hash) + [keys.mechanism for keys in each.scram]
        rows.append((each.name, list(each.roles), ["disabled"] if each.disabled else ways))
    print_table(("user", "roles", "login"), rows)
