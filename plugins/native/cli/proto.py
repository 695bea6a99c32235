"""`lakemq proto`: the protocol's definition, for clients in other languages."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer

from lakemq import __version__
from lakemq.broker_core.api.command_line import fail, option_groups, say

_SOURCE: Final = "lakemq/plugins/native/proto/"
PACKAGE: Final = "lakemq/native/v1/"
"""Where protoc and buf look for the files of the package `lakemq.native.v1`."""


def proto_files() -> dict[str, str]:
    """Path below the folder of protos -> text, of every public file."""
    return {
        PACKAGE
        + each.name: f"// From LakeMQ {__version__}: docs/clients.md says what may change.\n"
        + each.read_text().replace(_SOURCE, PACKAGE)
        for each in resources.files("lakemq.plugins.native.proto").iterdir()
        if each.name.endswith(".proto")
    }


@option_groups
def proto(
    folder: Annotated[Path, typer.Argument(help="Files of an older version there are replaced.")],
) -> None:
    """Write the .proto files of the native protocol, for clients in other languages."""
    files = proto_files()
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            fail(f"{path}: {error.strerror}", cause=error)
    say(f"wrote {len(files)} files to {folder / PACKAGE}", files=[*map(str, sorted(files))])
