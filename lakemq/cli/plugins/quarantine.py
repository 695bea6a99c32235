"""`lakemq plugin resume`."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    ExitCode,
    fail,
    option_groups,
    print_table,
)
from lakemq.broker_core.api.command_line.completion import listed_names
from lakemq.plugins.admin.cli.asking import listed

PluginName = Annotated[
    str,
    typer.Argument(
        help="As in its section: [plugins.NAME].", autocompletion=listed_names("plugins", "name")
    ),
]


@option_groups
def resume(
    name: PluginName,
    of: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NODE",
            help="On this node alone; else on all nodes.",
            autocompletion=listed_names("nodes", "node"),
        ),
    ] = "",
    *,
    node: AdminOptions,
) -> None:
    """End the quarantines of a plugin: its interceptors are called again at once.

    A plugin that fails again is quarantined again.
    """
    found = [
        each for each in listed(node, "plugins", {"q": name, "node": of}) if each["name"] == name
    ]
    if not found:
        fail(f"no node has a plugin {name}", ExitCode.UNKNOWN)
    ended = []
    for each in found:
        path = f"nodes/{quote(each['node'], safe='')}/plugins/{quote(name, safe='')}/resume"
        if each.get("quarantines"):
            done = json.loads(ask_admin(node, f"api/v1/{path}", "POST"))
            ended += [{"node": done["node"], **one} for one in done["ended"]]
    rows = [(each["node"], each["topic"] or "all", each["reason"]) for each in ended]
    print_table(("node", "topic", "was quarantined because"), rows, data=ended)
