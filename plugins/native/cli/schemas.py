"""`lakemq schema`: the registry of schemas from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lakemq.plugins.native.cli.commands import Bootstrap, client_of, fail

schema = typer.Typer(no_args_is_help=True, help="Register, list, get, check and delete schemas.")
Kind = Annotated[
    str, typer.Option("--type", "-t", help="json-schema, avro or protobuf; default: by the name.")
]
_KINDS = {".json": "json-schema", ".avsc": "avro", ".proto": "protobuf"}


def _read(file: Path, kind: str) -> tuple[str, str]:
    """(type, text)."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {error}")
    found = kind or _KINDS.get(file.suffix, "")
    if not found:
        fail(f"{file}: give --type; known endings: {', '.join(_KINDS)}")
    return found, text


@schema.command("register")
def register(
    subject: str, file: Path, kind: Kind = "", bootstrap: Bootstrap = "127.0.0.1:9700"
) -> None:
    """Register a file as the new version of a subject."""
    schema_type, text = _read(file, kind)
    with client_of(bootstrap) as client:
        made = client.schemas.register(subject, schema_type, text)
    typer.echo(f"{subject} version {made.version}, id {made.schema_id}")


@schema.command("check")
def check(
    subject: str, file: Path, kind: Kind = "", bootstrap: Bootstrap = "127.0.0.1:9700"
) -> None:
    """Tell what would make a registration fail. Exit code 1: something would."""
    schema_type, text = _read(file, kind)
    with client_of(bootstrap) as client:
        problems = client.schemas.check(subject, schema_type, text)
    for each in problems:
        typer.echo(each)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{file} fits {subject}")


@schema.command("list")
def list_subjects(bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """List all subjects."""
    with client_of(bootstrap) as client:
        found = client.schemas.subjects()
    table = Table(box=None, pad_edge=False)
    for heading in ("subject", "compatibility", "versions (id)"):
        table.add_column(heading)
    for each in found:
        versions = ", ".join(f"{version} ({number})" for version, number in each.versions)
        table.add_row(each.name, each.compatibility, versions)
    Console().print(table)


@schema.command("get")
def get(
    subject: str,
    version: Annotated[int | None, typer.Option("--version", min=1)] = None,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Print a schema: the latest, or another version."""
    with client_of(bootstrap) as client:
        typer.echo(client.schemas.get(subject, version).text)


@schema.command("compatibility")
def compatibility(
    rule: Annotated[
        str, typer.Argument(help="none, backward, forward or full, also -transitive; or default.")
    ],
    subject: Annotated[str, typer.Option("--subject", "-s", help="Default: all others.")] = "",
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Set the rule that new versions must keep."""
    with client_of(bootstrap) as client:
        client.schemas.set_compatibility(subject, None if rule == "default" else rule)
    typer.echo(f"{subject or 'all others'}: {rule}")


@schema.command("delete")
def delete(
    subject: str,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Forget a version, or a whole subject. Values that name it can't be decoded any more."""
    if not yes:
        typer.confirm(f"Forget {subject} version {version or 'all'}?", abort=True)
    with client_of(bootstrap) as client:
        client.schemas.delete(subject, version)
    typer.echo(f"deleted {subject}")
