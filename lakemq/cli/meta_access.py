"""How commands reach the MetaService: options, and one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, NoReturn, TypeVar

import typer

from lakemq.meta_service.api.errors import MetaError, StartupFailed
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient

T = TypeVar("T")
DEFAULT_ADDRESS = ["127.0.0.1:9701"]

Addresses = Annotated[
    list[str],
    typer.Option(
        "--address",
        "-a",
        envvar="LAKEMQ_META_ADDRESS",
        metavar="HOST:PORT",
        help="A member of the MetaService; may be repeated.",
    ),
]
TlsCert = Annotated[str, typer.Option(metavar="FILE", help="Certificate chain (PEM).")]
TlsKey = Annotated[str, typer.Option(metavar="FILE", help="Its private key (PEM).")]
TlsCa = Annotated[str, typer.Option(metavar="FILE", help="The members' authority (PEM).")]


def fail(error: Exception | str) -> NoReturn:
    typer.echo(f"lakemq: {error}", err=True)
    raise typer.Exit(1)


def ask_meta(
    addresses: list[str],
    cert: str,
    key: str,
    authority: str,
    ask: Callable[[MetaClient], Awaitable[T]],
) -> T:
    """What `ask` answers. A failure becomes one line and exit code 1."""
    from lakemq.meta_service.api.client import RemoteClient
    from lakemq.meta_service.server.tls import channel_credentials, load_pem

    async def asked() -> T:
        settings = MetaSettings(tls_cert=cert, tls_key=key, tls_ca=authority)
        credentials = channel_credentials(load_pem(settings))
        client = RemoteClient(addresses, credentials=credentials)
        try:
            return await ask(client)
        finally:
            await client.close()

    try:
        return asyncio.run(asked())
    except (MetaError, StartupFailed, OSError) as error:
        fail(f"MetaService at {', '.join(addresses)}: {error}")
