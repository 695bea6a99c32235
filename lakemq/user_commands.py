"""`lakemq user`: users with passwords."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from broker_core.api.errors import LakeMQError
from broker_core.security.users import UserRecord, check_roles, check_user_name
from lakemq.user_file import put_user, remove_user, users_of, with_password

user = typer.Typer(no_args_is_help=True, help="Users with passwords.")

File = Annotated[
    Path, typer.Option("--file", "-f", envvar="LAKEMQ_USER_FILE", help="The password file.")
]
Roles = Annotated[
    list[str] | None, typer.Option("--role", "-r", metavar="ROLE", help="A role; repeatable.")
]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Take the password from standard input.")
]


def _fail(error: Exception | str) -> NoReturn:
    typer.echo(f"lakemq: {error}", err=True)
    raise typer.Exit(1)


def _password(from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    if not password:
        _fail("the password is empty")
    return password


@user.command("add")
def add(name: str, file: File, role: Roles = None, password_stdin: FromStdin = False) -> None:
    """Add a user; asks for the password."""
    try:
        check_user_name(name)
        check_roles(role or ())
        if name in users_of(file):
            _fail(f"user {name} exists already; 'lakemq user passwd' changes the password")
        made = UserRecord(name, roles=tuple(dict.fromkeys(role or ())))
        put_user(file, with_password(made, _password(password_stdin)))
    except LakeMQError as error:
        _fail(error)
    typer.echo(f"added {name}")


@user.command("passwd")
def passwd(name: str, file: File, password_stdin: FromStdin = False) -> None:
    """Give a user another password."""
    try:
        found = _found(file, name)
        put_user(file, with_password(found, _password(password_stdin)))
    except LakeMQError as error:
        _fail(error)
    typer.echo(f"changed the password of {name}")


@user.command("roles")
def roles(name: str, file: File, role: Roles = None) -> None:
    """Give a user these roles in place of those it has."""
    try:
        check_roles(role or ())
        put_user(file, replace(_found(file, name), roles=tuple(dict.fromkeys(role or ()))))
    except LakeMQError as error:
        _fail(error)
    typer.echo(f"{name}: {', '.join(role or ()) or 'no roles'}")


@user.command("remove")
def remove(name: str, file: File) -> None:
    """Remove a user."""
    try:
        _found(file, name)
        remove_user(file, name)
    except LakeMQError as error:
        _fail(error)
    typer.echo(f"removed {name}")


@user.command("list")
def list_users(file: File) -> None:
    """List users, their roles and how they can log in."""
    try:
        users = users_of(file)
    except LakeMQError as error:
        _fail(error)
    table = Table(box=None, pad_edge=False)
    for heading in ("user", "roles", "logs in by"):
        table.add_column(heading, overflow="fold")
    for each in sorted(users.values(), key=lambda one: one.name):
        ways = ["password"] * bool(each.password_hash) + [keys.mechanism for keys in each.scram]
        table.add_row(each.name, ", ".join(each.roles), ", ".join(ways) or "nothing")
    Console().print(table)


def _found(file: Path, name: str) -> UserRecord:
    users = users_of(file)
    if name not in users:
        _fail(f"there is no user {name} in {file}")
    return users[name]
