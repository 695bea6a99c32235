"""Options that the commands of every package share.

A command takes a whole group of options as one parameter whose type is a dataclass:

    @topic.command("list")
    @option_groups
    def list_topics(broker: BrokerOptions) -> None: ...

The group's fields are what typer shows: `--bootstrap`, `--tls-ca` and so on. Secrets have no
option, since other users of the machine see a command's arguments: they come from the environment.
`option_groups` gives every command `--output` and `--json` too: see `output`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, get_type_hints

import typer

from lakemq.broker_core.api.command_line.output import Output, printed_as

NAMES_MAX: Final = 500
"""Names that a shell is given to complete: more are no help to who types; some shells get slow."""
Completion = Callable[[typer.Context, str], list[str]]
"""(the line so far, begin of a word) -> words that begin so."""
_CONNECTION: Final = "Connection"
_OUTPUT: Final = "Output"


def words(*names: str) -> Completion:
    """For `typer.Option(autocompletion=...)`: these, of an option that takes others, too."""

    def found(context: typer.Context, incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return found


TlsCert = Annotated[
    str,
    typer.Option(
        envvar="LAKEMQ_TLS_CERT",
        metavar="FILE",
        help="Certificate chain of this client (PEM).",
        rich_help_panel=_CONNECTION,
    ),
]
TlsKey = Annotated[
    str,
    typer.Option(
        envvar="LAKEMQ_TLS_KEY",
        metavar="FILE",
        help="Private key of the certificate (PEM).",
        rich_help_panel=_CONNECTION,
    ),
]
TlsCa = Annotated[
    str,
    typer.Option(
        envvar="LAKEMQ_TLS_CA",
        metavar="FILE",
        help="Authorities that may have signed the server's certificate (PEM).",
        rich_help_panel=_CONNECTION,
    ),
]
Username = Annotated[
    str,
    typer.Option(
        envvar="LAKEMQ_USERNAME",
        metavar="NAME",
        help="User to log in as; the password is read from LAKEMQ_PASSWORD.",
        rich_help_panel=_CONNECTION,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """Options of every command."""

    output: Annotated[
        Output,
        typer.Option(
            envvar="LAKEMQ_OUTPUT", help="How results are printed.", rich_help_panel=_OUTPUT
        ),
    ] = Output.TEXT
    as_json: Annotated[
        bool, typer.Option("--json", help="Short for --output json.", rich_help_panel=_OUTPUT)
    ] = False


@dataclasses.dataclass(frozen=True)
class BrokerOptions:
    """Options of a command that talks to a broker over the native protocol."""

    bootstrap: Annotated[
        str,
        typer.Option(
            envvar="LAKEMQ_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Native port of a broker.",
            rich_help_panel=_CONNECTION,
        ),
    ] = "127.0.0.1:9700"
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_ca: TlsCa = ""
    username: Username = ""


@dataclasses.dataclass(frozen=True)
class MetaOptions:
    """Options of a command that talks to the MetaService."""

    address: Annotated[
        list[str],
        typer.Option(
            "--address",
            "-a",
            envvar="LAKEMQ_META_ADDRESS",
            metavar="HOST:PORT",
            help="A member of the MetaService; repeatable.",
            rich_help_panel=_CONNECTION,
        ),
    ] = dataclasses.field(default_factory=lambda: ["127.0.0.1:9701"])
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_ca: TlsCa = ""


@dataclasses.dataclass(frozen=True)
class AdminOptions:
    """Options of a command that talks to a node's HTTP admin."""

    admin: Annotated[
        str,
        typer.Option(
            envvar="LAKEMQ_ADMIN",
            metavar="ADDRESS",
            help="HTTP admin of a node: HOST:PORT or a URL.",
            rich_help_panel=_CONNECTION,
        ),
    ] = "127.0.0.1:9703"
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_ca: TlsCa = ""
    username: Username = ""


def secret(name: str) -> str | None:
    """`LAKEMQ_<name>` of the environment: PASSWORD or TOKEN. None if it is unset or empty."""
    return os.environ.get(f"LAKEMQ_{name}") or None


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let typer see, in place of each parameter whose type is a dataclass, an option for each of
    its fields. Fields need a default. Adds the options of `OutputOptions`, which `output` obeys."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]) and isinstance(hints[name], type):
            groups[name] = hints[name]
            parameters += _options_of(hints[name])
        else:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    parameters += _options_of(OutputOptions)

    @functools.wraps(command)
    def run(*, output: Output, as_json: bool, **given: Any) -> None:
        for name, group in groups.items():
            names = [field.name for field in dataclasses.fields(group)]
            given[name] = group(**{each: given.pop(each) for each in names})
        with printed_as(Output.JSON if as_json else output), _quiet_without_reader():
            command(**given)
            sys.stdout.flush()

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__  # typer would look at the command itself
    return run


@contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """When the reader of a pipe has closed it, as in `lakemq consume t | head`,
    the command ends as SIGPIPE ends others: no word, exit code 141."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None


def _options_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(
                field.default
                if field.default_factory is dataclasses.MISSING
                else field.default_factory()
            ),
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
