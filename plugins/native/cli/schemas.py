"""`lakemq schema`: the registry of schemas from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    Yes,
    confirm,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
    say,
    words,
)
from lakemq.plugins.native.cli.completion import SubjectName, subject_names
from lakemq.plugins.native.cli.connection import client_of

schema = typer.Typer(no_args_is_help=True, help="Register, list, get, check and delete schemas.")
Kind = Annotated[
    str,
    typer.Option(
        "--type",
        "-t",
        help="json-schema, avro or protobuf; default: by the name.",
        autocompletion=words("json-schema", "avro", "protobuf"),
    ),
]
_RULES = (
    "none", "backward", "forward", "full", "backward-transitive", "forward-transitive",
    "full-transitive", "default",
)  # fmt: skip
_KINDS = {".json": "json-schema", ".avsc": "avro", ".proto": "protobuf"}


def _read(file: Path, kind: str) -> tuple[str, str]:
    """(type, text)."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {file}: {error}", ExitCode.USAGE)
    found = kind or _KINDS.get(file.suffix, "")
    if not found:
        fail(f"{file}: give --type; known endings: {', '.join(_KINDS)}", ExitCode.USAGE)
    return found, text


@schema.command("register")
@option_groups
def register(subject: SubjectName, file: Path, kind: Kind = "", *, broker: BrokerOptions) -> None:
    """Register a file as the new version of a subject."""
    schema_type, text = _read(file, kind)
    with client_of(broker) as client:
        made = client.schemas.register(subject, schema_type, text)
    said = f"{subject} version {made.version}, id {made.schema_id}"
    say(said, subject=subject, version=made.version, id=made.schema_id)


@schema.command("check")
@option_groups
def check(subject: SubjectName, file: Path, kind: Kind = "", *, broker: BrokerOptions) -> None:
    """Check whether a file could be registered. Exit code 1 if not."""
    schema_type, text = _read(file, kind)
    with client_of(broker) as client:
        problems = client.schemas.check(subject, schema_type, text)
    said = "\n".join(problems) or f"{file} can be registered as {subject}"
    say(said, subject=subject, problems=problems)
    if problems:
        raise typer.Exit(ExitCode.FAILED)


@schema.command("list")
@option_groups
def list_subjects(broker: BrokerOptions) -> None:
    """List all subjects."""
    with client_of(broker) as client:
        found = client.schemas.subjects()
    rows = []
    for each in found:
        versions = ", ".join(f"{version} ({number})" for version, number in each.versions)
        rows.append((each.name, each.compatibility, versions))
    print_table(("subject", "compatibility", "versions (id)"), rows, data=found)


@schema.command("get")
@option_groups
def get(
    subject: SubjectName,
    version: Annotated[int | None, typer.Option("--version", min=1)] = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Print a schema: the latest, or another version."""
    with client_of(broker) as client:
        found = client.schemas.get(subject, version)
    if is_json():
        print_json(found)
    else:
        typer.echo(found.text)


@schema.command("compatibility")
@option_groups
def compatibility(
    rule: Annotated[
        str,
        typer.Argument(
            help="none, backward, forward or full, also -transitive; or default.",
            autocompletion=words(*_RULES),
        ),
    ],
    subject: Annotated[
        str,
        typer.Option("--subject", "-s", help="Default: all others.", autocompletion=subject_names),
    ] = "",
    *,
    broker: BrokerOptions,
) -> None:
    """Set the rule that new versions must keep."""
    with client_of(broker) as client:
        client.schemas.set_compatibility(subject, None if rule == "default" else rule)
    say(f"{subject or 'all others'}: {rule}", subject=subject or None, compatibility=rule)


@schema.command("delete")
@option_groups
def delete(
    subject: SubjectName,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: all.")] = None,
    yes: Yes = False,
    *,
    broker: BrokerOptions,
) -> None:
    """Delete a version, or a whole subject. Values that refer to it can no longer be decoded."""
    if not yes:
        confirm(f"Delete {subject} version {version or 'all'}?")
    with client_of(broker) as client:
        client.schemas.delete(subject, version)
    say(f"deleted {subject}", deleted=subject, version=version)
