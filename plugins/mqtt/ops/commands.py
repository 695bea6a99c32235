"""`lakemq mqtt`: clients of a node, slow ones, bans, over its HTTP admin."""

from __future__ import annotations

import base64
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn
from urllib.parse import quote, urlencode

import typer
from rich.console import Console
from rich.table import Table

mqtt = typer.Typer(no_args_is_help=True, help="MQTT clients of a node, slow ones, bans.")

Admin = Annotated[
    str,
    typer.Option(
        "--admin", envvar="LAKEMQ_ADMIN", metavar="HOST:PORT", help="The node's HTTP admin."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT = "127.0.0.1:9703"
_TIMEOUT_S = 10
_WIDTH_MAX = 10_000
"""Rows are not broken, so that they can be searched; a terminal wraps them."""
_TIMES = {
    "connected_ms": "since",
    "session_ends_ms": "session ends",
    "at_ms": "at",
    "until_ms": "until",
}
"""What is a time, and its heading."""


def _fail(text: str) -> NoReturn:
    typer.echo(f"lakemq: {text}", err=True)
    raise typer.Exit(1)


def _ask(admin: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the node answers; one clear line and exit code 1 when it does not."""
    base = admin if admin.startswith(("http://", "https://")) else f"http://{admin}"
    request = urllib.request.Request(
        f"{base}/api/v1/mqtt/{path}",
        data=None if method == "GET" else json.dumps(body or {}).encode(),
        method=method,
        headers={"Content-Type": "application/json", **_login(os.environ)},
    )
    try:
        tls = ssl.create_default_context(cafile=os.environ.get("LAKEMQ_TLS_CA") or None)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        _fail(_message(error))
    except (OSError, ValueError) as error:
        _fail(f"{admin}: {error}")


def _login(environment: Mapping[str, str]) -> dict[str, str]:
    """LAKEMQ_TOKEN, or LAKEMQ_USERNAME and LAKEMQ_PASSWORD."""
    token, user, password = (
        environment.get(f"LAKEMQ_{name}") or "" for name in ("TOKEN", "USERNAME", "PASSWORD")
    )
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        shown = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {shown}"}
    return {}


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def _time(value: int | None) -> str:
    if not value:
        return ""
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _show(rows: list[dict[str, Any]], columns: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(_heading(column), no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(column, row[column]) for column in columns))
    Console(width=_WIDTH_MAX).print(table)


def _heading(column: str) -> str:
    return _TIMES.get(column) or column.replace("_", " ")


def _cell(column: str, value: Any) -> str:
    if column in _TIMES:
        return _time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


@mqtt.command("clients")
def list_clients(
    prefix: Annotated[str, typer.Option(help="Only client ids that begin so.")] = "",
    connected: Annotated[
        bool | None, typer.Option("--connected/--away", help="Only those.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most clients shown.")] = 100,
    admin: Admin = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List clients, by client id."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        query = {"prefix": prefix, "after": after, "limit": str(min(1000, limit - len(found)))}
        if connected is not None:
            query["connected"] = str(connected).lower()
        page = _ask(admin, "GET", f"clients?{urlencode(query)}")
        found += page["clients"]
        after = page["next"]
    if as_json:
        typer.echo(json.dumps(found))
        return
    _show(
        found,
        ["client_id", "connected", "connected_ms", "principal", "peer_host", "protocol",
         "subscriptions", "inflight", "queued"],
    )  # fmt: skip
    if after is not None:
        typer.echo("there are more: --limit")


@mqtt.command("client")
def show_client(client_id: str, admin: Admin = DEFAULT, as_json: AsJson = False) -> None:
    """Show all about one client."""
    found = _ask(admin, "GET", f"clients/{quote(client_id, safe='')}")
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in found.items():
        shown = json.dumps(value) if isinstance(value, dict | list) else _cell(name, value)
        table.add_row(_heading(name), shown)
    Console(width=_WIDTH_MAX).print(table)


@mqtt.command("kick")
def kick_client(
    client_id: str,
    session: Annotated[bool, typer.Option("--session", help="End its session, too.")] = False,
    admin: Admin = DEFAULT,
) -> None:
    """End a client's connection. It may come back: see `ban`."""
    query = "?session=true" if session else ""
    done = _ask(admin, "DELETE", f"clients/{quote(client_id, safe='')}{query}")
    typer.echo("disconnected" if done["disconnected"] else "it was not connected")
    if done["session_ended"]:
        typer.echo("session ended")


@mqtt.command("slow")
def list_slow(
    clear: Annotated[bool, typer.Option("--clear", help="Forget them.")] = False,
    admin: Admin = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List slow subscribers, slowest first."""
    if clear:
        _ask(admin, "DELETE", "slow")
        return
    found = _ask(admin, "GET", "slow")["slow"]
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found, ["client_id", "latency_ms", "topic", "at_ms", "count"])


@mqtt.command("bans")
def list_bans(admin: Admin = DEFAULT, as_json: AsJson = False) -> None:
    """List who may not connect, but for the configured ones."""
    found = _ask(admin, "GET", "bans")["bans"]
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found, ["kind", "value", "until_ms", "why"])


@mqtt.command("ban")
def ban(
    kind: Annotated[str, typer.Argument(help="client_id, user or host (address or network).")],
    value: str,
    seconds: Annotated[int | None, typer.Option(min=1, help="For how long; else for ever.")] = None,
    why: Annotated[str, typer.Option(help="For the list.")] = "",
    admin: Admin = DEFAULT,
) -> None:
    """Let a client, user or address connect no more, and end its connections."""
    body = {"kind": kind, "value": value, "seconds": seconds, "why": why}
    done = _ask(admin, "POST", "bans", body)
    typer.echo(f"banned; connections ended: {done['disconnected']}")


@mqtt.command("unban")
def unban(kind: str, value: str, admin: Admin = DEFAULT) -> None:
    """Lift a ban."""
    _ask(admin, "DELETE", f"bans/{quote(kind, safe='')}/{quote(value, safe='')}")
