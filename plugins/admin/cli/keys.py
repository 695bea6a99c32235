"""`lakemq key`: API keys, bearer tokens for programs."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    ExitCode,
    clock,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
    say,
)
from lakemq.broker_core.api.command_line.completion import listed_names
from lakemq.plugins.admin.cli.asking import listed

key = typer.Typer(
    no_args_is_help=True,
    help="API keys: bearer tokens for programs, which any node takes (LAKEMQ_TOKEN).",
)
_UNITS_S = {"h": 3600, "d": 86_400}


@key.command("create")
@option_groups
def create(
    says: Annotated[str, typer.Argument(metavar="PURPOSE", help="What it is for.")],
    role: Annotated[
        list[str] | None, typer.Option("--role", "-r", metavar="ROLE", help="A role; repeatable.")
    ] = None,
    expires: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long it is good, like 12h or 30d; else for good."),
    ] = "",
    *,
    node: AdminOptions,
) -> None:
    """Make a key. Its text is printed now, on standard output, and can never be had again."""
    body: dict[str, Any] = {"says": says, "roles": list(dict.fromkeys(role or ()))}
    if expires:
        found = re.fullmatch(r"([0-9]{1,6})([hd])", expires)
        if found is None:
            fail(f"--expires {expires!r}: it takes hours or days, like 12h or 30d", ExitCode.USAGE)
        body["expires_s"] = int(found[1]) * _UNITS_S[found[2]]
    made = json.loads(ask_admin(node, "api/v1/keys", "POST", body))
    if is_json():
        print_json(made)
        return
    typer.echo(made["key"])
    end = "for good" if made["expires_ms"] is None else f"until {clock(made['expires_ms'])} UTC"
    typer.echo(f"lakemq: key {made['id']} is good {end}", err=True)


@key.command("list")
@option_groups
def list_keys(
    text: Annotated[str, typer.Option("--match", help="A text in its id or purpose.")] = "",
    *,
    node: AdminOptions,
) -> None:
    """List keys: what for, roles, who made them, their ends, and when a node saw them last."""
    found = listed(node, "keys", {"q": text})
    rows = [
        (
            each["id"], each["says"], each["roles"], each["made_by"],
            *(clock(each[name])[:19].replace("T", " ")
              for name in ("made_ms", "expires_ms", "last_used_ms")),
        )
        for each in found
    ]  # fmt: skip
    headings = ("key", "for", "roles", "made by", "made (UTC)", "expires (UTC)", "last used (UTC)")
    print_table(headings, rows, data=found)


@key.command("revoke")
@option_groups
def revoke(
    key_id: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Id of a key, as `list` shows it.",
            autocompletion=listed_names("keys", "id"),
        ),
    ],
    *,
    node: AdminOptions,
) -> None:
    """Revoke a key, at once and on all nodes; connections that it opened end."""
    ask_admin(node, f"api/v1/keys/{quote(key_id, safe='')}", "DELETE")
    say(f"revoked {key_id}", revoked=key_id)
