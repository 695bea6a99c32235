"""`lakemq` where only `lakemq-client` is installed: the commands that speak the native protocol."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lakemq import __version__
from lakemq.broker_core.api.command_line import ExitCode, option_groups, say
from lakemq.plugins.native.cli.command_list import COMMANDS

app = typer.Typer(name="lakemq", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
@option_groups
def version() -> None:
    """Print the version."""
    say(f"lakemq {__version__}", version=__version__)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lakemq {__version__}")
        raise typer.Exit


@app.callback()
def _lakemq(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """The client of LakeMQ. A broker, exports and more commands come with: pip install lakemq."""


def run() -> None:
    """Run the command line of this process."""
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if not word.startswith("-") and word not in {"version", *(name for name, _ in COMMANDS)}:
        typer.echo(
            f"lakemq: {word} is no command of lakemq-client; pip install lakemq has more",
            err=True,
        )
        sys.exit(ExitCode.USAGE)
    for name, command in COMMANDS:
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)  # type: ignore[type-var]
    app()
