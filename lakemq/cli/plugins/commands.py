"""`lakemq plugin`."""

from __future__ import annotations

import json
import keyword
import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from lakemq.broker_core.api.admin_client import ask_admin
from lakemq.broker_core.api.command_line import (
    AdminOptions,
    ExitCode,
    fail,
    option_groups,
    print_table,
    say,
)
from lakemq.broker_core.api.command_line.completion import listed_names
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.cli.plugins.quarantine import PluginName, resume
from lakemq.cli.plugins.replay import replay
from lakemq.cli.start import ConfigFile, load

plugin = typer.Typer(
    no_args_is_help=True, help="What plugins there are; begin, replay, reload, resume one."
)
TEMPLATE: Final = Path(__file__).parent / "template"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


@plugin.command("list")
@option_groups
def list_plugins(config: ConfigFile = None) -> None:
    """Show plugins: version, on or off, what they register, why they failed."""
    host = PluginHost(load(config).source)
    try:
        host.load(strict=False, disabled_too=True)
    except LakeMQError as error:
        fail(error)
    rows = []
    for plugin in host.plugins:
        state = "failed" if plugin.error else "on" if plugin.enabled else "off"
        hooks = [each.removeprefix("register_") for each in plugin.hooks]
        rows.append(
            (plugin.name, plugin.version, plugin.distribution, state, plugin.error or hooks)
        )
    print_table(("plugin", "version", "from", "state", "registers"), rows)
    if any(plugin.error and plugin.enabled for plugin in host.plugins):
        raise typer.Exit(ExitCode.FAILED)


@plugin.command("reload")
@option_groups
def reload(
    name: PluginName,
    of: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NODE",
            help="Of this node; else of the one that is asked.",
            autocompletion=listed_names("nodes", "node"),
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Import and check it, and change nothing.")
    ] = False,
    *,
    node: AdminOptions,
) -> None:
    """Have a running node go on with a plugin's new code, once that is installed.

    Code that fails changes nothing. Listeners with clients and storage engines need a restart.
    """
    asked = of or json.loads(ask_admin(node, "api/v1/node"))["node_id"]
    path = f"nodes/{quote(asked, safe='')}/plugins/{quote(name, safe='')}/reload"
    done = json.loads(ask_admin(node, f"api/v1/{path}?dry_run={str(dry_run).lower()}", "POST"))
    would = "would reload" if dry_run else "reloaded"
    say(
        f"{would} {name} on {done['node']}: {done['version']}, was {done['before']}",
        **done, dry_run=dry_run,
    )  # fmt: skip


@plugin.command("new")
@option_groups
def new(
    name: Annotated[str, typer.Argument(help="Of its section: [plugins.NAME].")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="To write to; default: lakemq-NAME.")
    ] = None,
) -> None:
    """Write a new plugin that works: a package with settings, an interceptor and tests."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        fail(f"name {name!r}: lower-case letters and digits, words joined by -", ExitCode.USAGE)
    target = folder or Path(f"lakemq-{name}")
    try:
        written = write_plugin(name, target)
    except OSError as error:
        fail(f"{error.filename or target}: {error.strerror}", ExitCode.FAILED)
    next_steps = f"cd {target}; pip install -e '.[test]'; pytest; see README.md"
    say(
        f"{target}: {len(written)} files\nNext: {next_steps}",
        folder=str(target), files=[str(each) for each in written],
    )  # fmt: skip


plugin.command("resume")(resume)
plugin.command("replay")(replay)


def write_plugin(name: str, target: Path) -> list[Path]:
    """The template under another name; the files. Raises OSError, also where `target` is there."""
    words = name.split("-")
    package = "_".join(words)
    title = "".join(word.capitalize() for word in words)
    target.mkdir(parents=True)
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        place = Path(str(source.relative_to(TEMPLATE)).replace("sample", package))
        text = source.read_text(encoding="utf-8")
        for shown, real in (
            ("lakemq_sample", f"lakemq_{package}"),
            ("SampleSettings", f"{title}Settings"),
            ("test_sample", f"test_{package}"),
            ("sample", name),
        ):
            text = text.replace(shown, real)
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")
        written.append(place)
    return written
