"""`lakemq explain`: where a message is, station by station, over the admin API of any node and from
the log and files of a table."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

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
    time_ms,
)
from lakemq.broker_core.api.command_line.completion import listed_names
from lakemq.spark_plugin.cli.explained_table import ExplainedTable, row_station
from lakemq.spark_plugin.cli.options import ExportIdOptions, TableOptions

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.maintenance.find_rows import FoundRow


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
    client: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Client id of its publisher.",
            autocompletion=listed_names("mqtt/clients", "client_id"),
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Not older: 15m, 2h, 1d ago, or an ISO 8601 time.")
    ] = "1h",
    until: Annotated[str, typer.Option(metavar="TIME", help="Not younger.")] = "",
    where: Annotated[
        str, typer.Option(metavar="CONDITION", help="Rows of the table: \"room = 'x' and co > 5\".")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=20, help="Messages shown.")] = 5,
    *,
    node: AdminOptions,
    table: TableOptions,
    ids: ExportIdOptions,
) -> None:
    """Tell where a message is: publisher, rule, binding, partition and offset, replicas, each
    delivery or why there was none, consumer groups; with --to also the file, row and commit of a
    table that hold it. With --where it begins at rows. Exit code 1 where none was found."""
    if [bool(record), bool(topic_name), bool(where)].count(True) != 1:
        fail(
            "explain takes one of --record TOPIC/PARTITION/OFFSET, --topic-name (with --client), "
            "and --where (with --to and --path or --table)"
        )
    if where:
        rows = ExplainedTable(table, ids).rows_where(where, limit)
        found = _Found([_of_row(node, each) for each in rows], [] if rows else [f"no row: {where}"])
    elif record:
        topic, partition, offset = place_of(record)
        path = f"explain/records/{quote(topic, safe='')}/{partition}/{offset}"
        found = _Found([_ask(node, path)], [])
    else:
        query = {"topic_name": topic_name, "client": client, "limit": str(limit)}
        found = _publishes(node, query, since, until)
    if table.to and not where:
        _add_table(node, ExplainedTable(table, ids), found.messages)
    _print(found)
    if not any(each["stations"][0]["state"] != "unknown" for each in found.messages):
        raise typer.Exit(ExitCode.FAILED)


class _Found(NamedTuple):
    messages: list[dict[str, Any]]
    notes: list[str]


def _publishes(node: AdminOptions, query: dict[str, str], since: str, until: str) -> _Found:
    query["since_ms"] = str(time_ms("--since", since))
    if until:
        query["until_ms"] = str(time_ms("--until", until))
    found = _ask(node, f"explain/publishes?{urlencode(query)}")
    notes = list(found["notes"])
    if not found["complete"]:
        more = clock(found["next_since_ms"])
        notes.append(f"there may be more: looked at {found['looked_at']} records; --since {more}")
    return _Found(found["found"], notes)


def _add_table(node: AdminOptions, lake: ExplainedTable, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        if message["topic"]:
            topic_id = _ask(node, f"topics/{quote(message['topic'], safe='')}")["topic_id"]
            message["stations"] += lake.stations(message, topic_id)


def _print(found: _Found) -> None:
    if is_json():
        print_json(found)
        return
    for number, message in enumerate(found.messages):
        if number:
            typer.echo("")
        show(message["stations"])
    for note in found.notes:
        typer.echo(f"lakemq: {note}", err=True)


def show(stations: list[dict[str, Any]]) -> None:
    """One line for each station: when, what, how it is known."""
    print_table(
        ("time (UTC)", "station", "state", "node", "what", "proof"),
        [
            (clock(each["at_ms"]), each["station"], each["state"], each["node"], each["what"],
             each["proof"])
            for each in stations
        ],
    )  # fmt: skip


def _of_row(node: AdminOptions, row: FoundRow) -> dict[str, Any]:
    """From a row of a table back to the device."""
    path = f"explain/records/{quote(row.topic, safe='')}/{row.partition}/{row.offset}"
    message: dict[str, Any] = _ask(node, path)
    message["stations"].append(row_station(row))
    return message


def _ask(node: AdminOptions, path: str) -> Any:
    return json.loads(ask_admin(node, f"api/v1/{path}"))
