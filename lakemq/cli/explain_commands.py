"""`lakemq explain`: where a message is, station by station, over the admin API of any node."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    AsJson,
    fail,
    option_groups,
    print_table,
)

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def time_ms(option: str, text: str, now_ms: int) -> int:
    """`15m` ago, or an ISO 8601 time (UTC where it names no zone), as ms since 1970. Ends the
    command for anything else."""
    ago = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if ago is not None:
        return max(0, now_ms - 1000 * int(ago[1]) * _UNITS_S[ago[2]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} {text!r}: it takes how long ago, like 15m, 2h, 1d, or an ISO 8601 time")
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def place_of(text: str) -> tuple[str, str, str]:
    """`topic/partition/offset` -> its parts. Ends the command for anything else."""
    found = re.fullmatch(r"([^/]+)/([0-9]+)/([0-9]+)", text)
    if found is None:
        fail(f"--record {text!r}: it takes TOPIC/PARTITION/OFFSET, like readings/0/4711")
    return found[1], found[2], found[3]


@option_groups
def explain(
    record: Annotated[
        str, typer.Option(metavar="TOPIC/PARTITION/OFFSET", help="A record of the journal.")
    ] = "",
    topic_name: Annotated[
        str, typer.Option(metavar="NAME", help="MQTT topic name that it was published to.")
    ] = "",
    client: Annotated[str, typer.Option(metavar="ID", help="Client id of its publisher.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Not older: 15m, 2h, 1d ago, or an ISO 8601 time.")
    ] = "1h",
    until: Annotated[str, typer.Option(metavar="TIME", help="Not younger.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=20, help="Messages shown.")] = 5,
    as_json: AsJson = False,
    *,
    node: AdminOptions,
) -> None:
    """Tell where a message is: publisher, rule, binding, partition and offset, replicas, each
    delivery or why there was none, consumer groups. Exit code 1 where none was found."""
    if bool(record) == bool(topic_name):
        fail("explain takes --record TOPIC/PARTITION/OFFSET, or --topic-name with --client")
    if record:
        topic, partition, offset = place_of(record)
        path = f"explain/records/{quote(topic, safe='')}/{partition}/{offset}"
        messages: list[dict[str, Any]] = [_ask(node, path)]
        notes: list[str] = []
    else:
        now_ms = time.time_ns() // 1_000_000
        query = {"topic_name": topic_name, "client": client, "limit": str(limit)}
        query["since_ms"] = str(time_ms("--since", since, now_ms))
        if until:
            query["until_ms"] = str(time_ms("--until", until, now_ms))
        found = _ask(node, f"explain/publishes?{urlencode(query)}")
        messages, notes = found["found"], found["notes"]
        if not found["complete"]:
            more = _clock(found["next_since_ms"])
            notes.append(
                f"there may be more: looked at {found['looked_at']} records; --since {more}"
            )
    if as_json:
        typer.echo(json.dumps({"messages": messages, "notes": notes}, ensure_ascii=False))
    else:
        for number, message in enumerate(messages):
            if number:
                typer.echo("")
            show(message["stations"])
        for note in notes:
            typer.echo(f"lakemq: {note}", err=True)
    if all(each["stations"][0]["state"] == "unknown" for each in messages):
        raise typer.Exit(1)


def show(stations: list[dict[str, Any]]) -> None:
    """One line for each station: when, what, how it is known."""
    print_table(
        ("time (UTC)", "station", "state", "node", "what", "proof"),
        [
            (_clock(each["at_ms"]), each["station"], each["state"], each["node"], each["what"],
             each["proof"])
            for each in stations
        ],
    )  # fmt: skip


def _ask(node: AdminOptions, path: str) -> Any:
    return json.loads(ask_admin(node, f"api/v1/{path}"))


def _clock(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    found = datetime.fromtimestamp(at_ms / 1000, UTC)
    return found.isoformat(timespec="milliseconds").removesuffix("+00:00")
