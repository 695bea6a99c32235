"""`lakemq init`: a configuration file to begin with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import ExitCode, fail, option_groups, say


@option_groups
def init(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Made new; its folder must be there.")
    ] = Path("lakemq.toml"),
) -> None:
    """Write a configuration file with every setting, its default and what it does.

    A file that is there stays as it is: then the exit code is 1.
    """
    from lakemq.cli.configuration.commented_file import commented_file

    try:
        # Readable by the owner alone, since it may get secrets.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"{file} is there already; it stays as it is")
    except OSError as error:
        fail(f"{file}: {error.strerror}", ExitCode.USAGE)
    with open(descriptor, "w", encoding="utf-8") as opened:
        opened.write(commented_file())
    say(f"wrote {file}; start a node with: lakemq start -c {file}", written=str(file))
