"""Nodes whose users are in a password file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from lakemq.cli.commands import app

USERS_ONLY: Final = """
[security]
anonymous = "never"
admins = ["user:root"]
[[security.authenticators]]
kind = "password_file"
file = "{folder}/users"
"""
"""Configuration: nobody but the users of `{folder}`, of whom root may do everything."""


def add_user(folder: Path, name: str, *roles: str) -> None:
    """Add a user to the folder's password file; the password is `login(name)`'s."""
    arguments = ["user", "add", name, "--file", str(folder / "users"), "--password-stdin"]
    for role in roles:
        arguments += ["--role", role]
    outcome = CliRunner().invoke(app, arguments, input=f"{name}'s password\n")
    assert outcome.exit_code == 0, outcome.output


def login(name: str) -> dict[str, str]:
    """What `lakemq.Client` takes to be this user."""
    return {"username": name, "password": f"{name}'s password"}
