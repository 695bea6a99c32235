"""What the commands of `lakemq meta` share: options, and a client for as long as a call takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeVar

import typer

from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.settings import MetaSettings

if TYPE_CHECKING:
    import grpc

    from lakemq.meta_service.api.client import RemoteClient

T = TypeVar("T")
Addresses = Annotated[
    list[str],
    typer.Option("--address", "-a", metavar="HOST:PORT", help="A member; may be repeated."),
]
TlsCert = Annotated[str, typer.Option(metavar="FILE", help="Certificate chain (PEM).")]
TlsKey = Annotated[str, typer.Option(metavar="FILE", help="Its private key (PEM).")]
TlsCa = Annotated[str, typer.Option(metavar="FILE", help="The members' authority (PEM).")]
DEFAULT: Final = ["127.0.0.1:9701"]
ATTEMPT_S: Final = 10.0
"""Longer than a broker's patience: a plan for thousands of topics takes some seconds."""


def fail(error: object) -> NoReturn:
    typer.echo(f"lakemq meta: {error}", err=True)
    raise typer.Exit(1)


def show(headings: tuple[str, ...], rows: Sequence[Sequence[str]]) -> None:
    """A table in plain columns: nothing is cut off, and other programs can read it. The last
    column may be longer than the terminal is wide."""
    lines = [headings, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)]
        typer.echo("  ".join(cells).rstrip())


def credentials_from(cert: str, key: str, authority: str) -> grpc.ChannelCredentials | None:
    from lakemq.meta_service.server.tls import channel_credentials, load_pem

    return channel_credentials(load_pem(MetaSettings(tls_cert=cert, tls_key=key, tls_ca=authority)))


def run(call: Callable[[], Awaitable[T]]) -> T:
    """Its result; an error becomes one line and exit code 1."""

    async def called() -> T:
        return await call()

    try:
        return asyncio.run(called())
    except (MetaError, OSError) as error:
        fail(error)


def ask(
    addresses: list[str],
    credentials: grpc.ChannelCredentials | None,
    call: Callable[[RemoteClient], Awaitable[T]],
) -> T:
    """What `call` gives for a client of these members."""
    from lakemq.meta_service.api.client import RemoteClient

    async def called() -> T:
        client = RemoteClient(addresses, credentials=credentials, attempt_s=ATTEMPT_S)
        try:
            return await call(client)
        finally:
            await client.close()

    return run(called)
