"""`lakemq mqtt`: clients, slow ones, bans, over the admin API of a node."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    option_groups,
    print_table,
    progress,
    say,
)
from lakemq.broker_core.api.command_line.completion import listed_names

mqtt = typer.Typer(no_args_is_help=True, help="MQTT clients of a node, slow ones, bans.")

_TIMES = {
    "connected_ms": "since",
    "session_ends_ms": "session ends",
    "at_ms": "at",
    "until_ms": "until",
}
"""What is a time, and its heading."""


ClientId = Annotated[str, typer.Argument(autocompletion=listed_names("mqtt/clients", "client_id"))]


def _ask(node: AdminOptions, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The node's answer to a request below `/api/v1/mqtt/`."""
    return json.loads(ask_admin(node, f"api/v1/mqtt/{path}", method, body))


def _time(value: int | None) -> str:
    if not value:
        return ""
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _show(rows: list[dict[str, Any]], columns: list[str]) -> None:
    cells = [[_cell(column, row[column]) for column in columns] for row in rows]
    print_table(list(map(_heading, columns)), cells, data=rows)


def _heading(column: str) -> str:
    return _TIMES.get(column) or column.replace("_", " ")


def _cell(column: str, value: Any) -> Any:
    if column in _TIMES:
        return _time(value)
    return "" if value is None else value


@mqtt.command("clients")
@option_groups
def list_clients(
    prefix: Annotated[str, typer.Option(help="Only client ids that begin so.")] = "",
    connected: Annotated[
        bool | None, typer.Option("--connected/--away", help="Only those.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most clients shown.")] = 100,
    *,
    node: AdminOptions,
) -> None:
    """List clients, by client id."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        query = {"prefix": prefix, "cursor": after, "limit": str(min(500, limit - len(found)))}
        if connected is not None:
            query["connected"] = str(connected).lower()
        page = _ask(node, "GET", f"clients?{urlencode(query)}")
        found += page["data"]
        after = page["meta"]["next"]
    _show(
        found,
        ["client_id", "connected", "connected_ms", "principal", "peer_host", "protocol",
         "subscriptions", "inflight", "queued"],
    )  # fmt: skip
    if after is not None:
        progress("there are more: --limit")


@mqtt.command("client")
@option_groups
def show_client(client_id: ClientId, *, node: AdminOptions) -> None:
    """Show all about one client."""
    found = _ask(node, "GET", f"clients/{quote(client_id, safe='')}")
    rows = []
    for name, value in found.items():
        shown = json.dumps(value) if isinstance(value, dict | list) else _cell(name, value)
        rows.append((_heading(name), shown))
    print_table(("field", "value"), rows, data=found)


@mqtt.command("kick")
@option_groups
def kick_client(
    client_id: ClientId,
    session: Annotated[bool, typer.Option("--session", help="End its session, too.")] = False,
    *,
    node: AdminOptions,
) -> None:
    """End a client's connection, on whichever node it is. It may come back: see `ban`."""
    lines: list[str] = []
    done: dict[str, Any] = {}
    for holder in _nodes_of(node, client_id) or [""]:
        query = urlencode({"session": str(session).lower(), "node": holder})
        done = _ask(node, "DELETE", f"clients/{quote(client_id, safe='')}?{query}")
        lines.append("disconnected" if done["disconnected"] else "it was not connected")
        lines += ["session ended"] if done["session_ended"] else []
    say("\n".join(lines), **done)


def _nodes_of(node: AdminOptions, client_id: str) -> list[str]:
    """Nodes that have a session of the client."""
    page = _ask(node, "GET", f"clients?{urlencode({'prefix': client_id, 'limit': '500'})}")
    return [str(one["node"]) for one in page["data"] if one["client_id"] == client_id]


@mqtt.command("slow")
@option_groups
def list_slow(
    clear: Annotated[bool, typer.Option("--clear", help="Forget them, on all nodes.")] = False,
    *,
    node: AdminOptions,
) -> None:
    """List slow subscribers, slowest first."""
    if clear:
        _ask(node, "DELETE", "slow?node=*")
        say("forgotten", cleared=True)
        return
    found = _ask(node, "GET", "slow?limit=500")["data"]
    _show(found, ["client_id", "latency_ms", "topic", "at_ms", "count"])


@mqtt.command("bans")
@option_groups
def list_bans(node: AdminOptions) -> None:
    """List who may not connect, but for the configured ones."""
    # Every node tells those of operators.
    rows = _ask(node, "GET", "bans?limit=500")["data"]
    found = list({(one["kind"], one["value"]): one for one in rows}.values())
    _show(found, ["kind", "value", "until_ms", "why"])


@mqtt.command("ban")
@option_groups
def ban(
    kind: Annotated[str, typer.Argument(help="client_id, user or host (address or network).")],
    value: str,
    seconds: Annotated[int | None, typer.Option(min=1, help="For how long; else for ever.")] = None,
    why: Annotated[str, typer.Option(help="For the list.")] = "",
    *,
    node: AdminOptions,
) -> None:
    """Let a client, user or address connect no more, and end its connections."""
    body = {"kind": kind, "value": value, "seconds": seconds, "why": why}
    done = _ask(node, "POST", "bans", body)
    say(f"banned; connections ended: {done['disconnected']}", **done)


@mqtt.command("unban")
@option_groups
def unban(
    kind: str,
    value: Annotated[str, typer.Argument(autocompletion=listed_names("mqtt/bans", "value"))],
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="On every node.")] = False,
    *,
    node: AdminOptions,
) -> None:
    """Lift a ban."""
    query = "?node=*" if all_nodes else ""
    _ask(node, "DELETE", f"bans/{quote(kind, safe='')}/{quote(value, safe='')}{query}")
    say(f"{kind} {value} may connect again", kind=kind, value=value, unbanned=True)
