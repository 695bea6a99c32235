"""How commands call the MetaService: one client for as long as a call takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from lakemq.broker_core.api.command_line import MetaOptions, fail
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.meta_service.api.errors import MetaError, StartupFailed
from lakemq.meta_service.api.settings import MetaSettings

if TYPE_CHECKING:
    import grpc

    from lakemq.meta_service.api.remote.client import RemoteClient

T = TypeVar("T")
_ATTEMPT_S: Final = 10.0
"""Longer than a broker waits: a plan for thousands of topics takes some seconds."""


def ask_meta(members: MetaOptions, ask: Callable[[RemoteClient], Awaitable[T]]) -> T:
    """What `ask` answers. An error ends the command with one line."""
    from lakemq.meta_service.api.remote.client import RemoteClient

    async def asked() -> T:
        credentials = credentials_of(members)
        client = RemoteClient(members.address, credentials=credentials, attempt_s=_ATTEMPT_S)
        try:
            return await ask(client)
        finally:
            await client.close()

    try:
        return asyncio.run(asked())
    except LakeMQError as error:
        fail(error)
    except (MetaError, StartupFailed, OSError) as error:
        fail(f"MetaService at {', '.join(members.address)}: {error}", cause=error)


def run_meta(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` answers, which names the member in its errors."""

    async def called() -> T:
        return await call()

    try:
        return asyncio.run(called())
    except (MetaError, StartupFailed, OSError) as error:
        fail(error)


def credentials_of(members: MetaOptions) -> grpc.ChannelCredentials | None:
    """Of mutual TLS; None: plain text."""
    from lakemq.meta_service.server.tls import channel_credentials, load_pem

    settings = MetaSettings(
        tls_cert=members.tls_cert, tls_key=members.tls_key, tls_ca=members.tls_ca
    )
    return channel_credentials(load_pem(settings))
